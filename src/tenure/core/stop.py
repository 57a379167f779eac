"""The `Stop`, which ends the wait of a thread for a lock.

A task can be cancelled; a thread that blocks cannot. So a thread may wait with a `Stop`, which any other thread sets.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from tenure.errors import Stopped


class Waiters(Protocol):
    """The waiters of a session: the part of the session that a `Stop` calls."""

    def wake_all(self, stop: "Stop") -> None:
        """Wake all waiters that were given `stop`, which then see that it is set."""


class Stop:
    """Ends the waits of threads: give it to any number of `acquire(stop=...)`, and `set()` it from any thread.

    Each thread that waits with it, or begins to, then gets `Stopped`, holds nothing and has no place in any queue. A
    request that is under way ends first, which may take the client's `operation_timeout`. A `Stop` that is set stays
    set.
    """

    __slots__ = ("_is_set", "_waits")

    def __init__(self) -> None:
        """Make a `Stop` that is not set."""
        self._is_set = False
        self._waits: dict[int, Waiters] = {}

    def set(self) -> None:
        """Stop all waits that this `Stop` was given to, and all later ones. Idempotent."""
        self._is_set = True
        for waiters in list(self._waits.values()):
            waiters.wake_all(self)

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def check(self, name: str) -> None:
        """Raise Stopped if it is set; internal."""
        if self._is_set:
            raise Stopped(
                f"the wait for {name!r} was stopped: its Stop was set. Nothing is held, and the place in the queue is "
                "given up: acquire with another Stop to wait again."
            )

    @contextmanager
    def watching(self, waiters: Waiters, name: str) -> Generator[None, None, None]:
        """Wake `waiters` if it is set meanwhile; raise Stopped if it is set already; internal."""
        wait = object()
        self._waits[id(wait)] = waiters
        try:
            self.check(name)
            yield
        finally:
            del self._waits[id(wait)]
