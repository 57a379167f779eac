"""Those who wait for a free connection, in the order in which they came.

A connection that is put back wakes the first of them alone: if it woke all, a thousand waiters would do nothing but
look who is first, and one of them might wait for ever behind those who come later.
"""

from collections import deque
from contextlib import suppress

from holdfast.contracts.runtime import Event, Runtime

LOOK_AGAIN = 0.05
"""How often the first looks without being woken, in seconds."""


class CallerQueue:
    """A queue of callers. Every method may be called by any thread: each step on a deque is atomic."""

    def __init__(self, runtime: Runtime) -> None:
        """Start without callers."""
        self._runtime = runtime
        self._waiting: deque[Event] = deque()

    def is_first(self, place: Event | None) -> bool:
        """Tell whether this is the first place; None is that of a caller who has not joined."""
        try:
            return self._waiting[0] is place
        except IndexError:
            return place is None

    def new(self) -> Event:
        """Return a place that is not in the queue yet, for an interrupt may come before the caller has it."""
        return self._runtime.event()

    def join(self, place: Event) -> None:
        """Put a place at the end of the queue."""
        self._waiting.append(place)

    async def wait(self, place: Event, until: float) -> None:
        """Wait until this may be the first place. Call `place.clear()` before all that was looked at before this."""
        if self.is_first(place):
            until = min(until, self._runtime.now() + LOOK_AGAIN)
        await place.wait(until)

    def leave(self, place: Event) -> None:
        """Leave the queue, and wake who is first then."""
        with suppress(ValueError):
            self._waiting.remove(place)
        self.wake()

    def wake(self) -> None:
        """Let the first look again."""
        with suppress(IndexError):
            self._waiting[0].set()

    def wake_all(self) -> None:
        """Let all look again, because there will be no more connections."""
        for each in list(self._waiting):
            each.set()
