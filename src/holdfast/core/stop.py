"""How a thread that waits for a lock is told to stop waiting.

Tasks are cancelled; a thread that blocks can't be. So a wait may be given a `Stop`, which any other thread sets.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from holdfast.errors import Stopped


class Waiters(Protocol):
    """Where waits can be woken: a session."""

    def wake_all(self, stop: "Stop") -> None:
        """Have all that wait with `stop` look at it."""


class Stop:
    """Tells threads to wait no more: give it to any number of `acquire(stop=...)`, and `set()` it from any thread.

    Whoever waits with it, or is about to, then gets `Stopped`, holds nothing and keeps no place in any queue. A request
    that is under way ends first, which may take the client's `operation_timeout`. Once set, it stays so.
    """

    __slots__ = ("_is_set", "_waits")

    def __init__(self) -> None:
        """Make one that is not set."""
        self._is_set = False
        self._waits: dict[int, Waiters] = {}

    def set(self) -> None:
        """Stop all waits that it was given to, and those that it will be given to. Idempotent."""
        self._is_set = True
        for waiters in list(self._waits.values()):
            waiters.wake_all(self)

    def is_set(self) -> bool:
        """Tell whether it was set."""
        return self._is_set

    def check(self, name: str) -> None:
        """Raise Stopped if it was set; internal."""
        if self._is_set:
            raise Stopped(
                f"the wait for {name!r} was stopped: its Stop was set. Nothing is held, and no place in the queue is "
                "kept; acquire with another Stop to wait again."
            )

    @contextmanager
    def watching(self, waiters: Waiters, name: str) -> Generator[None, None, None]:
        """Have `waiters` woken if it is set meanwhile; internal."""
        wait = object()
        self._waits[id(wait)] = waiters
        try:
            self.check(name)
            yield
        finally:
            del self._waits[id(wait)]
