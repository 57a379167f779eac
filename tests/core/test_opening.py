"""A session opens its store once, within the time limit of the caller."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tenure import AsyncClient, Client, StoreError, StoreUnavailable
from tenure.contracts.messages import Notification
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core.access import OPENING
from tenure.runtimes.threads import drive
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests import virtual
from tests.etcd.scenes import Meanwhile

RETRY_FOR = 10.0
TIMEOUT = 1.0
"""The defaults of a client."""


class Opening(MemoryStore):
    """A store whose opening a test defines."""

    def __init__(self, runtime: Runtime, table: MemoryTable, tries: "Tries") -> None:
        super().__init__(runtime, table)
        self._tries = tries

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Run the attempts to open."""
        self._tries.began.append(self._runtime.now())
        await self._tries.each(self._runtime, until)
        return await super().open(deliver, until)


class Tries:
    """A store in memory whose openings end as `each` says."""

    def __init__(self, each: Callable[[Runtime, float], Coroutine[Any, Any, None]]) -> None:
        self.each = each
        self.began: list[float] = []
        """When they began."""
        self._table = virtual.table()

    def source(self) -> StoreSource:
        """Return the source for a client's store."""
        return StoreSource("a test", MemoryStore.capabilities, lambda runtime: Opening(runtime, self._table, self))


async def say_nothing(runtime: Runtime, until: float) -> None:
    """Accept the connection and never answer."""
    await runtime.sleep(until - runtime.now())
    raise StoreUnavailable("no answer")


async def refuse(runtime: Runtime, until: float) -> None:
    """Refuse at once."""
    raise StoreUnavailable("connection refused")


async def took(doing: Coroutine[Any, Any, object], error: type[Exception] = StoreUnavailable) -> float:
    """Return how long it takes to fail."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(error):
        await doing
    return asyncio.get_running_loop().time() - began


def test_a_store_is_opened_once_for_all_callers() -> None:
    """The store opens once, even if another thread opens it between the check and the decision to open it."""
    table = MemoryTable()
    with Client(store=memory_source(table)) as client:
        session = client.session()
        session.opening._mutex = Meanwhile(lambda: drive(session.open()))
        drive(session.open())
        assert len(table._channels) == 1
    assert table._channels == {}


@pytest.mark.parametrize("each", [say_nothing, refuse])
@pytest.mark.parametrize("timeout", [0.5, 3.0, 30.0, None])
def test_an_opening_takes_no_longer_than_its_caller_has(
    each: Callable[[Runtime, float], Coroutine[Any, Any, None]], timeout: float | None
) -> None:
    """The limit is the acquisition's `timeout`, or the client's `retry_for`, within which the last attempt begins."""

    async def main() -> None:
        async with AsyncClient(store=Tries(each).source()) as client:
            tried = RETRY_FOR if timeout is None else min(timeout, RETRY_FOR)
            allowed = RETRY_FOR + TIMEOUT if timeout is None else min(timeout, RETRY_FOR + TIMEOUT)
            for lock in (client.lock("name", timeout=timeout), client.multilock(["a", "b"], timeout=timeout)):
                spent = await took(lock.acquire())
                assert tried - 1.0 <= spent <= allowed + 0.001

    virtual.run(main)


def test_an_acquisition_without_a_wait_tries_once() -> None:
    """It takes one `operation_timeout`; another operation may take three, because an opening is several requests."""

    async def main() -> None:
        tries = Tries(say_nothing)
        async with AsyncClient(store=tries.source()) as client:
            assert await took(client.lock("name").try_acquire()) == pytest.approx(TIMEOUT)
            assert await took(client.multilock(["name", "other"]).try_acquire()) == pytest.approx(TIMEOUT)
            assert await took(client.inspect("name")) == pytest.approx(OPENING * TIMEOUT)
            assert len(tries.began) == 3

    virtual.run(main)


def test_a_caller_with_less_time_does_not_wait_for_one_with_more() -> None:
    """The caller that opens the store goes on; the other one gives up when its own time is over."""

    async def main() -> None:
        tries = Tries(say_nothing)
        async with AsyncClient(store=tries.source()) as client:
            patient = asyncio.create_task(took(client.lock("name", timeout=4).acquire()))
            await asyncio.sleep(0)
            assert await took(client.lock("name", timeout=0.5).acquire()) == pytest.approx(0.5)
            assert len(tries.began) == 1
            assert await patient == pytest.approx(4)

    virtual.run(main)


def test_a_store_that_comes_up_in_time_is_used() -> None:
    """Attempts repeat after growing pauses, and never at the same time as those of another client."""

    async def up_after_three_seconds(runtime: Runtime, until: float) -> None:
        if runtime.now() < virtual.START + 3.0:
            await refuse(runtime, until)

    async def main() -> None:
        herd = [Tries(up_after_three_seconds) for _ in range(5)]
        clients = [AsyncClient(store=each.source()) for each in herd]
        leases = await asyncio.gather(*(client.lock("name").acquire() for client in clients))
        assert all(lease.remaining() > 0.0 for lease in leases)
        for each in herd:
            pauses = [later - sooner for sooner, later in itertools.pairwise(each.began)]
            assert max(pauses[-2:]) > 2 * pauses[0]
        again = [each.began[1:-1] for each in herd]
        assert len(set(itertools.chain(*again))) == sum(map(len, again))
        for client in clients:
            await client.close()

    virtual.run(main)


def test_an_error_that_a_retry_cannot_repair_is_raised_at_once() -> None:
    """A wrong password is such an error."""

    async def deny(runtime: Runtime, until: float) -> None:
        raise StoreError("the password is wrong")

    async def main() -> None:
        tries = Tries(deny)
        async with AsyncClient(store=tries.source()) as client:
            assert await took(client.lock("name").acquire(), StoreError) == 0.0
            assert len(tries.began) == 1

    virtual.run(main)
