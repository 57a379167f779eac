"""A cancellation of a task that connects by asyncio is never lost, whatever the driver does with it."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from tenure import StoreUnavailable
from tenure.runtimes import clocks
from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.mysql import aio
from tenure.stores.mysql.aio import MySqlAsyncLink
from tenure.stores.mysql.options import MySqlDeployment


class Swallowing:
    """A driver's connection that takes one cancellation for nothing, as wait_for() does in some Pythons."""

    def __init__(self, **_: object) -> None:
        """Begin without a cancellation."""
        self.closed = False
        made.append(self)

    async def connect(self) -> "Swallowing":
        """Go on to shake hands after the first cancellation."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if shakes_hands_for_ever[0]:
                await asyncio.Event().wait()
        return self

    def close(self) -> None:
        """Close it."""
        self.closed = True


made: list[Swallowing] = []
shakes_hands_for_ever = [False]


def link_of(way: str) -> MySqlAsyncLink:
    """Return a link that connects to a host of its URL, or by a factory of the user's."""
    connect = (lambda: Swallowing().connect()) if way == "factory" else None
    return MySqlAsyncLink(AsyncioRuntime(), MySqlDeployment([("127.0.0.1", 1)], connect=connect))


async def begin(way: str, seconds: float) -> tuple["asyncio.Task[Any]", Swallowing]:
    """Begin to connect; return the task that does, and the driver's connection."""
    task = asyncio.create_task(link_of(way).dial(clocks.steady() + seconds))
    for _ in range(9):
        await asyncio.sleep(0)  # the driver waits then
    return task, made.pop()


@pytest.mark.parametrize("for_ever", [False, True], ids=["connects", "hangs"])
@pytest.mark.parametrize("way", ["url", "factory"])
def test_a_cancellation_while_connecting_is_not_lost(way: str, for_ever: bool) -> None:
    """The caller is cancelled, and the driver's attempt has ended and left no connection."""
    shakes_hands_for_ever[0] = for_ever

    async def main() -> None:
        task, connection = await begin(way, 60.0)
        task.cancel()
        await asyncio.wait({task}, timeout=30.0)
        assert task.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert connection.closed or for_ever

    with patch.object(aio, "Connection", Swallowing):
        asyncio.run(main())


@pytest.mark.parametrize("way", ["url", "factory"])
def test_an_attempt_to_connect_that_is_late_is_given_up(way: str) -> None:
    """It ends by the deadline of its caller, though the driver goes on after it was cancelled once."""
    shakes_hands_for_ever[0] = True

    async def main() -> None:
        task, _ = await begin(way, 0.05)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(task, 30.0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with patch.object(aio, "Connection", Swallowing):
        asyncio.run(main())


@pytest.mark.parametrize("way", ["url", "factory"])
def test_who_connects_is_not_cancelled_with_the_task_of_the_driver(way: str) -> None:
    """Others have cancelled that task, as with all tasks of the loop."""
    shakes_hands_for_ever[0] = True

    async def main() -> None:
        task, _ = await begin(way, 60.0)
        of_driver = asyncio.all_tasks() - {asyncio.current_task(), task}
        while of_driver:
            for each in of_driver:
                each.cancel()
            _, of_driver = await asyncio.wait(of_driver, timeout=0.01)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(task, 30.0)

    with patch.object(aio, "Connection", Swallowing):
        asyncio.run(main())
