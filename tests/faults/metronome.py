"""Notices when the machine itself stands still: what cannot run cannot go on, whatever it is."""

import threading
from types import TracebackType
from typing import Self

from holdfast.runtimes.clocks import steady

TICK = 0.01
LATE = 0.04
"""By how many seconds a tick is late if the machine stood still, or had more to do than it can."""


class Metronome:
    """Ticks in a thread of its own, and remembers which ticks were late."""

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metronome")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        before = steady()
        while not self._over.wait(TICK):
            now = steady()
            if now - before > TICK + LATE:
                self._late.append((before + TICK, now))
            before = now

    def elapsed(self, since: float) -> float:
        """Return how much time has passed since an instant in which the machine did not stand still."""
        now = steady()
        return now - since - self.missed(since, now)

    def missed(self, begin: float, end: float) -> float:
        """Return for how many seconds between two instants it did not tick when it should have."""
        return sum(max(0.0, min(end, until) - max(begin, since)) for since, until in self._late)
