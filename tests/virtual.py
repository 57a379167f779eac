"""Time that is the test's own: leases run out when a test says so, however busy this machine is.

`run` drives asyncio in virtual time: the loop's clock, which is also that of the clients and of `source()`, stands
still while anything can be done, and then goes on to the next timer. `stopped_clock` is for threads: they block in real
time, but no lease grows older until the test moves the clock. tests/core/test_virtual.py shows how both are used.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from holdfast.contracts.store import StoreSource
from holdfast.runtimes import clocks
from holdfast.stores.memory import MemoryTable, memory_source

T = TypeVar("T")

START = 1000.0


class Clock:
    """A steady clock that goes on when it is told to."""

    def __init__(self) -> None:
        """Start some time after the boot."""
        self.time = START

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.time

    def advance(self, seconds: float) -> float:
        """Let time pass, all at once; return what time it is then."""
        self.time += seconds
        return self.time


class SkippingSelector(selectors.DefaultSelector):
    """A selector that lets virtual time pass instead of waiting."""

    def __init__(self, clock: Clock) -> None:
        """Move `clock`."""
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; if nothing is, it is `timeout` seconds later at once."""
        if ready := super().select(0):
            return ready
        if timeout is None:
            raise RuntimeError("nothing can happen any more in this loop: no timer is set, and nothing is ready")
        self._clock.advance(max(0.0, timeout))
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while it has something to do."""

    def __init__(self, clock: Clock) -> None:
        """Run by `clock`."""
        self._clock = clock
        super().__init__(SkippingSelector(clock))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._clock.time


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main()` as asyncio.run() does, in virtual time. Whatever tells the time must be made inside it."""
    with stopped_clock() as clock, asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main())


@contextmanager
def stopped_clock() -> Generator[Clock]:
    """Replace the steady clock by one that stands still until it is told to go on."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "steady", clock)
        yield clock


def stand_still(seconds: float) -> None:
    """In virtual time: let time pass all at once, as for a process that was stopped. Nothing is renewed meanwhile."""
    clock = clocks.steady
    assert isinstance(clock, Clock), "this is not virtual time"
    clock.advance(seconds)


def source() -> StoreSource:
    """Make a store in memory whose clock is the replaced one, for clients that share it."""
    return memory_source(table())


def micros() -> int:
    """Return the replaced clock in whole microseconds, as a store wants it."""
    return round(clocks.steady() * 1_000_000)


def table() -> MemoryTable:
    """Make a table in memory whose clock is the replaced one."""
    return MemoryTable(micros)
