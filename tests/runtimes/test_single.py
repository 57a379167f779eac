"""One of those who need something sees to it, and the others wait for that one."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.runtimes.single import SingleFlight
from holdfast.runtimes.threads import ThreadsRuntime, drive
from tests.etcd.scenes import Meanwhile
from tests.hazards.interrupting import sweep

TEST_TIMEOUT = 30.0
AT_ONCE = 0.01


class Thing:
    """What is needed until somebody has made it."""

    def __init__(self, runtime: ThreadsRuntime | AsyncioRuntime) -> None:
        """Nobody has made it."""
        self.runtime = runtime
        self.flight = SingleFlight(runtime)
        self.begun = 0
        self.made = 0
        self.entered = runtime.event()
        self.go_on = runtime.event()
        self.errors: list[BaseException] = []

    async def make(self) -> None:
        """Make it when it may go on; fail if there is an error left."""
        self.begun += 1
        self.entered.set()
        assert await self.go_on.wait(self.runtime.now() + TEST_TIMEOUT)
        if self.errors:
            raise self.errors.pop()
        self.made += 1

    async def have(self, within: float = TEST_TIMEOUT) -> bool:
        """See to it that it is made, once."""
        return await self.flight.fly(lambda: not self.made, self.make, self.runtime.now() + within)


def test_many_threads_make_it_once() -> None:
    """All of them have it then."""
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


def test_who_comes_when_it_is_made_makes_no_other() -> None:
    """Also if another thread made it between a look and the decision to do so."""
    thing = Thing(ThreadsRuntime())
    thing.go_on.set()
    thing.flight._mutex = Meanwhile(lambda: drive(thing.have()))
    assert drive(thing.have())
    assert thing.begun == 1


def test_a_failure_is_told_to_who_began_it() -> None:
    """The others see that it is still needed, and one of them begins it anew."""

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


def test_it_goes_on_without_a_beginner_who_is_cancelled() -> None:
    """Who waits for it has it all the same; it is not begun twice."""

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


def test_nobody_waits_longer_than_it_may() -> None:
    """It is told that somebody is still at it."""

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
    """Wherever a signal handler raises, nobody waits for a thread that is not at it any more."""
    things: list[Thing] = []

    def have(_: int) -> Callable[[], object]:
        things.append(Thing(ThreadsRuntime()))
        things[-1].go_on.set()
        return lambda: drive(things[-1].have())

    for number, where in sweep(have):
        assert drive(things[-1].have(AT_ONCE)), (number, where)
        assert things[-1].made == 1
    assert len(things) > 1
