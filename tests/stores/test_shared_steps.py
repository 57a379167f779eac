"""Many callers of one client that take steps on the same name at the same time, on a database."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from holdfast import Outcome
from holdfast.contracts.messages import AcquireRequest, Granted, Queued, ReleaseRequest, Reply
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.stores.sql.store import SqlStore
from simulation.sql.direct import DirectSqlDatabase, capabilities_of
from simulation.sql.server import SqlRules, SqlServer

T = TypeVar("T")

SECOND = 1_000_000
RULES = SqlRules(60 * SECOND)
CROWD = 100


class GatedDatabase(DirectSqlDatabase):
    """A database that answers as soon as its gate is open, and counts the requests."""

    def __init__(self) -> None:
        """Start with an open gate."""
        super().__init__(SqlServer(lambda: 1_000 * SECOND, lambda names, at, granted: None), RULES, "channel")
        self.gate = asyncio.Event()
        self.gate.set()
        self.requests = 0
        self.error: Exception | None = None

    async def _call(self, work: Callable[[SqlServer], T], until: float) -> T:
        self.requests += 1
        await asyncio.wait_for(self.gate.wait(), 10.0)
        if self.error is not None:
            raise self.error
        return await super()._call(work, until)


def ask(request_id: str) -> AcquireRequest:
    """Return a request for one of two permits."""
    return AcquireRequest("name", request_id, "channel", request_id, 10 * SECOND, SECOND, 4 * SECOND, 1, 2)


def play(scene: Callable[[SqlStore, GatedDatabase, float], Coroutine[Any, Any, None]]) -> None:
    """Run a scene with a store whose requests may take ten seconds."""

    async def main() -> None:
        database, runtime = GatedDatabase(), AsyncioRuntime()
        store = SqlStore("here", runtime, database, capabilities_of(RULES))
        await store.open(lambda notification: None, runtime.now() + 10.0)
        await scene(store, database, runtime.now() + 10.0)

    asyncio.run(main())


async def begin(store: SqlStore, until: float, count: int = CROWD, first: int = 0) -> list["asyncio.Task[Reply]"]:
    """Start as many requests, and let each of them come as far as it can."""
    numbers = range(first, first + count)
    tasks = [asyncio.create_task(store.acquire(ask(f"r{number:03}"), until)) for number in numbers]
    for _ in range(10):
        await asyncio.sleep(0)
    return tasks


def test_a_crowd_takes_one_step_together() -> None:
    """A hundred requests that come during one take one more step, in their order; so does their repetition."""

    async def scene(store: SqlStore, database: GatedDatabase, until: float) -> None:
        for _ in range(2):
            database.requests = 0
            database.gate.clear()
            tasks = await begin(store, until)
            database.gate.set()
            replies = [await task for task in tasks]
            assert [type(reply) for reply in replies] == [Granted] * 2 + [Queued] * (CROWD - 2)
            assert [reply.place for reply in replies if isinstance(reply, Queued)] == list(range(CROWD - 2))
            assert database.requests <= 5

    play(scene)


def test_a_release_does_not_wait_behind_the_crowd() -> None:
    """It is done in the next step, and hands the permit over."""

    async def scene(store: SqlStore, database: GatedDatabase, until: float) -> None:
        granted = await store.acquire(ask("r000"), until)
        assert isinstance(granted, Granted)
        await begin(store, until)
        database.requests = 0
        database.gate.clear()
        again = await begin(store, until)
        release = asyncio.create_task(store.release(ReleaseRequest("name", "r000", granted.token), until))
        await asyncio.sleep(0)
        database.gate.set()
        assert await release is Outcome.RELEASED
        assert database.requests <= 6
        await asyncio.gather(*again)
        view = await store.inspect("name", until)
        assert [each.owner for each in view.holders] == ["r001", "r002"]

    play(scene)


@pytest.mark.parametrize("error", [StoreUnavailable("refused"), OutcomeUnknown("no reply")])
def test_all_are_told_why_their_step_failed(error: StoreUnavailable) -> None:
    """Everyone whose request was in the step gets its error, and none of them waits for ever."""

    async def scene(store: SqlStore, database: GatedDatabase, until: float) -> None:
        database.gate.clear()
        tasks = await begin(store, until, 10)
        database.error = error
        database.gate.set()
        raised = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in raised] == [type(error)] * 10
        assert len({id(each) for each in raised}) == 10  # else threads would write into one traceback
        database.error = None
        assert isinstance(await store.acquire(ask("later"), until), Granted)

    play(scene)


def test_who_is_cancelled_leaves_the_others_alone() -> None:
    """The one that takes the step for all, or one that waits for it: the others get their replies."""

    async def scene(store: SqlStore, database: GatedDatabase, until: float) -> None:
        database.gate.clear()
        tasks = await begin(store, until, 1) + await begin(store, until, 9, 1)
        for number in (0, 5):
            tasks[number].cancel()
        database.gate.set()
        raised = await asyncio.gather(*tasks, return_exceptions=True)
        assert [number for number, each in enumerate(raised) if isinstance(each, asyncio.CancelledError)] == [0, 5]
        assert sum(isinstance(each, Granted | Queued) for each in raised) == 8
        view = await store.inspect("name", until)
        assert "r005" not in [each.owner for each in view.waiters]

    play(scene)


def test_a_request_that_was_not_sent_in_time_says_so() -> None:
    """One whose step was begun may have been carried out, and one that waited for the next certainly was not."""

    async def scene(store: SqlStore, database: GatedDatabase, until: float) -> None:
        soon = until - 10.0 + 0.05
        database.gate.clear()
        first = asyncio.create_task(store.acquire(ask("first"), until))
        await asyncio.sleep(0)
        late = asyncio.create_task(store.acquire(ask("late"), soon))
        with pytest.raises(StoreUnavailable, match="before it was sent") as raised:
            await late
        assert not isinstance(raised.value, OutcomeUnknown)
        database.gate.set()
        assert isinstance(await first, Granted)
        assert [each.owner for each in (await store.inspect("name", until)).holders] == ["first"]

    play(scene)
