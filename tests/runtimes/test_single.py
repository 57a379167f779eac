"""One of several callers makes what all of them need, and the others wait for it."""

import asyncio
import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from tenure import AsyncClient, StoreUnavailable
from tenure.runtimes import aio
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.single import SingleFlight
from tenure.runtimes.threads import ThreadsRuntime, drive
from tests import virtual
from tests.etcd.scenes import Meanwhile
from tests.hazards.helpers import cancel_all
from tests.hazards.interrupting import sweep

T = TypeVar("T")

TEST_TIMEOUT = 30.0
AT_ONCE = 0.01


class Thing:
    """A resource that is needed until a caller has made it."""

    def __init__(self, runtime: ThreadsRuntime | AsyncioRuntime) -> None:
        """Start without the resource."""
        self.runtime = runtime
        self.flight = SingleFlight(runtime)
        self.begun = 0
        self.made = 0
        self.entered = runtime.event()
        self.go_on = runtime.event()
        self.errors: list[BaseException] = []

    async def make(self) -> None:
        """Make it when the test allows; fail if an error is left."""
        self.begun += 1
        self.entered.set()
        assert await self.go_on.wait(self.runtime.now() + TEST_TIMEOUT)
        if self.errors:
            raise self.errors.pop()
        self.made += 1

    async def have(self, within: float = TEST_TIMEOUT) -> bool:
        """Have it made, once."""
        return await self.flight.run(lambda: not self.made, self.make, self.runtime.now() + within)


def test_many_threads_make_it_once() -> None:
    """All callers have it afterwards."""
    thing = Thing(ThreadsRuntime())
    had: list[bool] = []
    threads = [threading.Thread(target=lambda: had.append(drive(thing.have()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert drive(thing.entered.wait(thing.runtime.now() + TEST_TIMEOUT))
    thing.go_on.set()
    for thread in threads:
        thread.join(TEST_TIMEOUT)
    assert had == [True] * 8
    assert thing.made == thing.begun == 1


def test_a_caller_that_comes_later_makes_no_other() -> None:
    """This holds even if another thread makes it between the check and the decision to make it."""
    thing = Thing(ThreadsRuntime())
    thing.go_on.set()
    thing.flight._mutex = Meanwhile(lambda: drive(thing.have()))
    assert drive(thing.have())
    assert thing.begun == 1


def test_a_failure_is_raised_for_the_caller_that_began() -> None:
    """The others see that it is still needed, and one of them begins anew."""

    async def main() -> None:
        thing = Thing(AsyncioRuntime())
        thing.errors.append(OSError("no"))
        first, second = (asyncio.ensure_future(thing.have()) for _ in range(2))
        await thing.entered.wait(None)
        thing.go_on.set()
        with pytest.raises(OSError, match="no"):
            await first
        assert await second
        assert thing.begun == 1
        assert await thing.have()
        assert thing.made == 1

    asyncio.run(main())


def test_it_goes_on_when_the_caller_that_began_is_cancelled() -> None:
    """The waiting callers get it all the same; it does not begin twice."""

    async def main() -> None:
        thing = Thing(AsyncioRuntime())
        first, second = (asyncio.ensure_future(thing.have()) for _ in range(2))
        await thing.entered.wait(None)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not await thing.flight.settle(thing.runtime.now() + AT_ONCE)
        thing.go_on.set()
        assert await second
        assert thing.made == thing.begun == 1
        assert await thing.flight.settle(thing.runtime.now())

    asyncio.run(main())


def test_a_store_is_opened_by_the_next_caller() -> None:
    """A program cancelled all tasks of its loop just before the one that opens the store began."""

    async def main(*, caller_too: bool) -> None:
        async with AsyncClient(store=virtual.source()) as client:
            first = asyncio.create_task(client.lock("first").acquire(timeout=1))
            await asyncio.sleep(0)
            await cancel_all(*(() if caller_too else (first,)))
            async with client.lock("next", timeout=1):
                pass
            await asyncio.wait({first})
            assert first.cancelled() or not first.exception()

    virtual.run(partial(main, caller_too=True))
    virtual.run(partial(main, caller_too=False))


def test_work_for_a_loop_that_is_closed_is_closed(recwarn: pytest.WarningsRecorder) -> None:
    """The runtime closes the coroutine, because Python warns of one that was never awaited."""

    async def runtime_here() -> AsyncioRuntime:
        return AsyncioRuntime()

    async def work() -> None:
        raise AssertionError("it begins")

    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="is closed"):
            await runtime.finish(work())

    runtime = asyncio.run(runtime_here())
    asyncio.run(elsewhere())
    gc.collect()
    assert not list(recwarn)


def as_it_is(work: T) -> T:
    """Return work that has not begun."""
    return work


def test_a_planted_bug_that_waits_for_what_never_began_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a client would open its store no more."""
    monkeypatch.setattr(aio, "_begun", as_it_is)
    with pytest.raises(StoreUnavailable):
        test_a_store_is_opened_by_the_next_caller()


def test_a_caller_waits_no_longer_than_its_limit() -> None:
    """Its error says that another caller is still at work."""

    async def main() -> None:
        thing = Thing(AsyncioRuntime())
        first = asyncio.ensure_future(thing.have())
        await thing.entered.wait(None)
        assert not await thing.have(AT_ONCE)
        thing.go_on.set()
        assert await first

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_leaves_it_to_the_next() -> None:
    """After an interrupt at any place, no caller waits for a thread that does not work on it any more."""
    things: list[Thing] = []

    def have(_: int) -> Callable[[], object]:
        things.append(Thing(ThreadsRuntime()))
        things[-1].go_on.set()
        return lambda: drive(things[-1].have())

    for number, where in sweep(have):
        assert drive(things[-1].have(AT_ONCE)), (number, where)
        assert things[-1].made == 1
    assert len(things) > 1
