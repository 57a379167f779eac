"""Those who wait for a free connection, in the order in which they came.

A connection that is put back wakes the first of them alone: if it woke all, a thousand waiters would do nothing but
look who is first, and one of them might wait for ever behind those who come later.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tenure.contracts.runtime import Event, Runtime

T = TypeVar("T")

LOOK_AGAIN, LOOK_SELDOM = 0.05, 1.0
"""How often the first, and anybody else, looks without being woken, in seconds: an interrupt may cost a wake-up."""


class CallerQueue:
    """A queue of callers. Every method may be called by any thread: each step on a deque is atomic."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[Event] = deque()
        self._closed = False

    async def first_result(self, look: Callable[[float], T | None], until: float) -> T | None:
        """Call `look` with the present instant whenever this caller is first; return what it returns, once it does.

        Return None if the time is over or the queue is closed before.
        """
        now = self._runtime.now()
        if not self._waiting and not self._closed and now < until and (found := look(now)) is not None:
            return found
        place = self._runtime.event()
        try:
            self._waiting.append(place)
            while True:
                place.clear()  # before all looks, so that no wake-up after them is missed
                now = self._runtime.now()
                if self._closed or now >= until:
                    return None
                first = self._waiting[0] is place
                if first and (found := look(now)) is not None:
                    return found
                await place.wait(min(until, now + (LOOK_AGAIN if first else LOOK_SELDOM)))
        finally:
            try:  # noqa: SIM105 - an interrupt may come with any call of Python's, and would leave the place behind
                self._waiting.remove(place)
            except ValueError:  # an interrupt came before it was there
                pass
            self.wake()

    def wake(self) -> None:
        """Let the first look again."""
        with suppress(IndexError):
            self._waiting[0].set()

    def close(self) -> None:
        """End all waits."""
        self._closed = True
        for each in list(self._waiting):
            each.set()
