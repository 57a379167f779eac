"""Many callers of one client that take steps on the same name at the same time, on a database."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from simulation.sql.direct import DirectSqlDatabase, capabilities_of
from simulation.sql.server import SqlRules, SqlServer
from tenure import Outcome
from tenure.contracts.messages import AcquireRequest, Granted, Queued, ReleaseRequest, Reply, WithdrawRequest
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.single import SingleFlight
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.sql import shared_steps
from tenure.stores.sql.database import SqlSnapshot
from tenure.stores.sql.shared_steps import LONGEST, MULTIPLE, USUAL, SharedSteps
from tenure.stores.sql.store import SqlStore
from tenure.stores.tabled import Steps
from tenure.table.state import NameState
from tenure.table.step import Step

T = TypeVar("T")

SECOND = 1_000_000
RULES = SqlRules(60 * SECOND)
CROWD = 100


@pytest.fixture(autouse=True)
def _a_stall_is_no_lost_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin no step beside one that hangs, though the machine stands still for a moment."""
    monkeypatch.setattr(shared_steps, "NEXT_AFTER", 10.0)


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


def test_the_step_of_a_cancelled_caller_goes_on_for_the_others() -> None:
    """They are in the step that it takes for all, and get their replies from it."""

    async def scene(store: SqlStore, database: GatedDatabase, until: float) -> None:
        database.gate.clear()
        tasks = await begin(store, until, 10)
        tasks[0].cancel()
        database.requests = 0
        database.gate.set()
        replies = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(replies[0], asyncio.CancelledError)
        assert all(isinstance(each, Granted | Queued) for each in replies[1:])
        assert database.requests <= 1  # the write

    play(scene)


def test_nobody_waits_long_for_a_lost_reply_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step is taken though the one before it has not ended."""
    monkeypatch.setattr(shared_steps, "NEXT_AFTER", 0.1)

    async def scene(store: SqlStore, database: GatedDatabase, until: float) -> None:
        database.gate.clear()
        [first] = await begin(store, until, 1)
        stuck, database.gate = database.gate, asyncio.Event()
        database.gate.set()
        replies = [await task for task in await begin(store, until, 10, 1)]
        assert [type(reply) for reply in replies] == [Granted] * 2 + [Queued] * 8
        assert not first.done()
        stuck.set()
        assert isinstance(await first, Queued)

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


def test_an_interrupted_thread_leaves_the_next_step_to_another() -> None:
    """Ctrl-C in the step of one thread ends that step, and a thread that waited takes its own at once."""
    begun, interrupt, ended = threading.Event(), threading.Event(), list[object]()

    async def take(name: str, snapshot: SqlSnapshot | None, work: Callable[[Steps], Any], until: float) -> object:
        if not begun.is_set():
            begun.set()
            assert interrupt.wait(10.0)
            raise KeyboardInterrupt
        return work(Steps(lambda name: NameState(0), 1, 1, lambda channel: True))

    runtime = ThreadsRuntime()
    shared, until = SharedSteps(runtime, "here", take), runtime.now() + 10.0

    def first() -> None:
        try:
            drive(shared.take("name", lambda step: "first", until))
        except KeyboardInterrupt as error:
            ended.append(error)

    threads = [
        threading.Thread(target=first),
        threading.Thread(target=lambda: ended.append(drive(shared.take("name", lambda step: "next", until)))),
    ]
    threads[0].start()
    assert begun.wait(10.0)
    threads[1].start()
    while not shared._queues["name"].waiting:
        time.sleep(0.001)
    interrupt.set()
    for thread in threads:
        thread.join(10.0)
    assert runtime.now() < until
    assert {type(each) for each in ended} == {KeyboardInterrupt, str}
    assert not shared.under_way("name")


async def take_at_once(name: str, snapshot: SqlSnapshot | None, work: Callable[[Steps], Any], until: float) -> object:
    """Take a step on a name that nobody uses."""
    return work(Steps(lambda name: NameState(0), 1, 1, lambda channel: True))


def test_a_request_that_another_thread_has_just_taken_may_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller, whose time is up in that moment, does not say that it was not sent."""

    class Taken(deque[Any]):
        def append(self, value: object, /) -> None:
            """Another thread takes it at once."""

    monkeypatch.setattr(shared_steps, "deque", Taken)
    runtime = ThreadsRuntime()
    shared = SharedSteps(runtime, "here", take_at_once)
    with pytest.raises(OutcomeUnknown):
        drive(shared.take("name", lambda step: "late", runtime.now() - 1.0))


def test_no_request_is_granted_before_it_was_sent() -> None:
    """A snapshot serves only the request for which it was read: others in the step may have been sent after that."""

    async def main() -> None:
        runtime, taken, gate = AsyncioRuntime(), list[SqlSnapshot | None](), asyncio.Event()

        async def take(name: str, snapshot: SqlSnapshot | None, work: Callable[[Steps], Any], until: float) -> object:
            taken.append(snapshot)
            await asyncio.wait_for(gate.wait(), 10.0)
            return work(Steps(lambda name: NameState(0), 1, 1, lambda channel: True))

        shared, until = SharedSteps(runtime, "here", take), runtime.now() + 10.0
        early = SqlSnapshot(1_000 * SECOND, [])
        first = asyncio.create_task(shared.take("name", lambda step: None, until, early))
        await asyncio.sleep(0.01)
        others = [
            asyncio.create_task(shared.take("name", lambda step: None, until, snapshot)) for snapshot in (early, None)
        ]
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(first, *others)
        assert taken == [early, None]

    asyncio.run(main())


class Clockwork(AsyncioRuntime):
    """A runtime whose clock goes on only when somebody sleeps, or the test says so."""

    def __init__(self) -> None:
        """Begin now."""
        super().__init__()
        self.time = self.now()
        self.naps: list[float] = []
        self.now = lambda: self.time

    async def sleep(self, seconds: float) -> None:
        """Sleep at once."""
        self.naps.append(seconds)
        self.time += seconds


def test_waiters_pause_after_a_slow_step_the_longer_the_slower_it_was() -> None:
    """The pause is a multiple of the time that the step took, up to a second. After a usual step there is none."""

    async def main() -> None:
        runtime, gate = Clockwork(), asyncio.Semaphore(0)

        async def take(name: str, snapshot: SqlSnapshot | None, work: Callable[[Steps], Any], until: float) -> object:
            await asyncio.wait_for(gate.acquire(), 10.0)
            return work(Steps(lambda name: NameState(0), 1, 1, lambda channel: True))

        shared, until = SharedSteps(runtime, "here", take), runtime.now() + 100.0
        for took in (0.001, 0.1, 10.0):
            runtime.naps.clear()
            others = list[asyncio.Task[None]]()
            for _ in range(2):  # the second keeps the first one's line
                others.append(asyncio.create_task(shared.take("name", lambda step: None, until)))
                await asyncio.sleep(0)
            runtime.time += took
            gate.release()
            await others[0]
            await shared.pause("name", until)
            await shared.pause("name", until)  # the pause is over
            await shared.pause("another", until)
            assert runtime.naps == ([] if took < USUAL else [pytest.approx(min(MULTIPLE * (took - USUAL), LONGEST))])
            gate.release()
            await others[1]
            await shared.pause("name", until)  # no step is under way: there is no line to pause in
            assert len(runtime.naps) <= 1

    asyncio.run(main())


def test_nobody_but_waiters_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release, a withdrawal and a request that does not wait go on at once."""
    paused: list[str] = []

    async def pause(self: SharedSteps, name: str, until: float) -> None:
        paused.append(name)

    monkeypatch.setattr(SharedSteps, "pause", pause)

    async def scene(store: SqlStore, database: GatedDatabase, until: float) -> None:
        granted = await store.acquire(ask("r000"), until)
        assert isinstance(granted, Granted)
        assert paused == ["name"]
        await store.acquire(replace(ask("r001"), wait=False), until)
        await store.release(ReleaseRequest("name", "r000", granted.token), until)
        await store.withdraw(WithdrawRequest("name", "r001", unsure=True), until)
        assert paused == ["name"]

    play(scene)


def test_the_next_step_waits_longer_for_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else many steps would wait for one row, each for all the others."""
    monkeypatch.setattr(shared_steps, "NEXT_AFTER", 0.1)
    waits: list[float] = []

    async def main() -> None:
        runtime, gate = Clockwork(), asyncio.Semaphore(0)
        fly = SingleFlight.run

        async def noting(
            self: SingleFlight, needed: Callable[[], bool], work: Callable[[], Coroutine[Any, Any, None]], until: float
        ) -> bool:
            waits.append(until - runtime.now())
            return await fly(self, needed, work, until + 10.0)

        monkeypatch.setattr(SingleFlight, "run", noting)

        async def take(name: str, snapshot: SqlSnapshot | None, work: Callable[[Steps], Any], until: float) -> object:
            await asyncio.wait_for(gate.acquire(), 10.0)
            return work(Steps(lambda name: NameState(0), 1, 1, lambda channel: True))

        shared, until = SharedSteps(runtime, "here", take), runtime.now() + 100.0
        tasks = list[asyncio.Task[None]]()
        for took in (0.001, 0.2, 10.0, 0.0):
            while len(tasks) < 2:
                tasks.append(asyncio.create_task(shared.take("name", lambda step: None, until)))
                await asyncio.sleep(0)
            runtime.time += took
            gate.release()
            await tasks.pop(0)
        gate.release()
        await tasks.pop()

    asyncio.run(main())
    assert sorted({round(each, 3) for each in waits}) == [0.1, 0.8, LONGEST]


def mix_up_replies(patch: pytest.MonkeyPatch) -> None:
    """Give the replies of a step to its callers in another order."""
    in_order = shared_steps._all_of

    def reversed_of(name: str, shares: Sequence[Any]) -> Callable[[Steps], list[Any]]:
        work = in_order(name, shares)
        return lambda steps: work(steps)[::-1]

    patch.setattr(shared_steps, "_all_of", reversed_of)


def keep_what_was_cancelled(patch: pytest.MonkeyPatch) -> None:
    """Send a request though its caller has gone."""

    class Keeping(deque[Any]):
        def remove(self, value: object, /) -> None:
            """Keep it."""

    patch.setattr(shared_steps, "deque", Keeping)


def end_with_the_first(patch: pytest.MonkeyPatch) -> None:
    """Give up the step for all when the caller that takes it is cancelled."""

    async def finish(_: AsyncioRuntime, work: Coroutine[Any, Any, T]) -> T:
        return await work

    patch.setattr(AsyncioRuntime, "finish", finish)


def raise_one_error(patch: pytest.MonkeyPatch) -> None:
    """Let all callers raise the same error."""

    def same(error: Exception) -> Exception:
        return error

    patch.setattr(shared_steps, "_another", same)


def take_each_step_alone(patch: pytest.MonkeyPatch) -> None:
    """Take no steps together."""

    async def take(
        self: SharedSteps, name: str, work: Callable[[Step], T], until: float, snapshot: SqlSnapshot | None = None
    ) -> T:
        result: T = await self._take(name, snapshot, lambda steps: work(steps.on(name)), until)
        return result

    patch.setattr(SharedSteps, "take", take)


def never_pause(patch: pytest.MonkeyPatch) -> None:
    """Let waiters ask as often as ever."""

    async def pause(self: SharedSteps, name: str, until: float) -> None:
        pass

    patch.setattr(SharedSteps, "pause", pause)


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (never_pause, test_waiters_pause_after_a_slow_step_the_longer_the_slower_it_was),
        (mix_up_replies, test_a_crowd_takes_one_step_together),
        (take_each_step_alone, test_a_release_does_not_wait_behind_the_crowd),
        (keep_what_was_cancelled, test_who_is_cancelled_leaves_the_others_alone),
        (end_with_the_first, test_the_step_of_a_cancelled_caller_goes_on_for_the_others),
        (raise_one_error, lambda: test_all_are_told_why_their_step_failed(StoreUnavailable("refused"))),
    ],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], test: Callable[[], None]
) -> None:
    """The test of the promise fails with the bug."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, asyncio.CancelledError)):
        test()
