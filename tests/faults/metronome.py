"""The metronome, which detects when the machine itself stalls: then no program can make progress."""

import threading
from types import TracebackType
from typing import Self

from tenure.runtimes.clocks import steady

TICK = 0.01
LATE = 0.04
"""The least delay of a late tick, in seconds: the machine stalled or was overloaded."""


class Metronome:
    """Ticks in a thread of its own, and records late ticks."""

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []
        self._begin = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metronome")

    def __enter__(self) -> Self:
        self._begin = steady()  # not in the thread: it may not run before the first stall
        self._thread.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        before = self._begin
        while not self._over.wait(TICK):
            now = steady()
            if now - before > TICK + LATE:
                self._late.append((before + TICK, now))
            before = now

    def elapsed(self, since: float) -> float:
        """Return the time since an instant, without the stalls of the machine."""
        now = steady()
        return now - since - self.missed(since, now)

    def missed(self, begin: float, end: float) -> float:
        """Return the total duration of missed ticks between two instants, in seconds."""
        return sum(max(0.0, min(end, until) - max(begin, since)) for since, until in self._late)
