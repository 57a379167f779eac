"""Virtual time for tests: leases expire when a test moves the clock, however busy this machine is.

`run` runs asyncio in virtual time. The loop's clock, which the clients and `source()` use as well, stands still while a
task can run, and then steps to the next timer. `stopped_clock` is for threads: they block in real time, but no lease
ages until the test moves the clock. tests/core/test_virtual.py shows the use of both.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from tenure.contracts.store import StoreSource
from tenure.runtimes import clocks
from tenure.stores.memory import MemoryTable, memory_source

T = TypeVar("T")

START = 1000.0


class Clock:
    """A steady clock that moves only by `advance`."""

    def __init__(self) -> None:
        """Start at a time after zero."""
        self.time = START

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.time

    def advance(self, seconds: float) -> float:
        """Move the clock ahead; return its new time."""
        self.time += seconds
        return self.time


class SkippingSelector(selectors.DefaultSelector):
    """A selector that moves a clock instead of waiting."""

    def __init__(self, clock: Clock) -> None:
        """Move `clock`."""
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready files; if there are none, move the clock ahead by `timeout`."""
        if ready := super().select(0):
            return ready
        if timeout is None:
            raise RuntimeError("this loop cannot make progress: it has no timer, and no file is ready")
        self._clock.advance(max(0.0, timeout))
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while a task can run."""

    def __init__(self, clock: Clock) -> None:
        """Use `clock`."""
        self._clock = clock
        super().__init__(SkippingSelector(clock))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._clock.time


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main()` as asyncio.run() does, in virtual time. Objects that read the clock must be made inside it."""
    with stopped_clock() as clock, asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main())


@contextmanager
def stopped_clock() -> Generator[Clock]:
    """Replace the steady clock by a clock that stands still until the test moves it."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "steady", clock)
        yield clock


def stand_still(seconds: float) -> None:
    """Move the virtual clock ahead without running tasks, as for a stopped process. No lease is renewed meanwhile."""
    clock = clocks.steady
    assert isinstance(clock, Clock), "this is not virtual time"
    clock.advance(seconds)


def source() -> StoreSource:
    """Return the source of a store in memory that uses the replaced clock, for clients that share it."""
    return memory_source(table())


def micros() -> int:
    """Return the time of the replaced clock in whole microseconds, the unit of a store."""
    return round(clocks.steady() * 1_000_000)


def table() -> MemoryTable:
    """Make a table in memory that uses the replaced clock."""
    return MemoryTable(micros)
