"""What one client knows of its own contenders.

A *place* is one of them, from the first ask to its end. The store ends it by itself when its owner has fallen silent:
a session says that the process lives, not that whoever acquired in it does. A place is forgotten only when its
contender is gone for certain, or was removed: else it would stand in everybody's way for as long as the session lives.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from holdfast.contracts.messages import Ask
from holdfast.outcome import Outcome
from holdfast.stores.ordered.entries import Entry

REMEMBERED = 30.0
"""For how many seconds it is known what became of a request that has ended."""


@dataclass(slots=True, eq=False)
class Place:
    """A contender of this client."""

    ask: Ask
    ends_at: float
    """The local instant after which it is ended, if nobody is heard of it."""
    entry: Entry | None = None
    """None until a join was answered."""
    block: bool = False
    """Whether there is a BLOCK for it."""
    light: bool = False
    """Whether there may be LIGHT entries for it."""
    unsure: bool = False
    """Whether a join of it went unanswered, and may still arrive."""
    holds: bool = False
    """Whether it was told that it holds."""
    lease_ends_at: float = 0.0
    """The local instant when its lease ends, if it holds; a renewal that is under way may put off its end further."""
    ttl: int = 0
    """What people read of its ttl, in microseconds."""
    text: str = ""
    """What people read of its owner."""

    def traces(self) -> tuple[int, int]:
        """Return where it stood, and how many entries it made beside its own."""
        return 0 if self.entry is None else self.entry.order, self.block + self.light


@dataclass(slots=True)
class Past:
    """What became of a request."""

    until: float
    """Until when it is remembered."""
    outcome: Outcome | None
    """None: it was given up before it held anything."""
    order: int = 0
    """Where it stood."""
    added: int = 0
    """How many entries it made beside its own."""


@dataclass(slots=True)
class Places:
    """All contenders of a client, and for a while those that were."""

    mutex: AbstractContextManager[Any]
    now: Callable[[], float]
    live: dict[str, Place] = field(default_factory=dict[str, Place])
    past: dict[str, Past] = field(default_factory=dict[str, Past])
    ending: set[str] = field(default_factory=set[str])
    """Requests that are being ended for their silence."""

    def find(self, request: str, ask: Ask, ends_at: float) -> Place:
        """Return the place of a request, which is heard of until `ends_at`, made if there is none."""
        with self.mutex:
            place = self.live.get(request)
            if place is None:
                place = self.live[request] = Place(ask, ends_at, ttl=ask.ttl, text=ask.owner)
            place.ends_at = max(place.ends_at, ends_at)
            return place

    def hear(self, request: str, ends_at: float) -> Place | None:
        """Return the place of a request, if it goes on, and let it go on at least until `ends_at`."""
        with self.mutex:
            place = self.live.get(request)
            if place is not None:
                place.ends_at = max(place.ends_at, ends_at)
            return place

    def wake(self, place: Place, ends_at: float) -> None:
        """Let a place that waits go on until `ends_at` only."""
        with self.mutex:
            if not place.holds:
                place.ends_at = ends_at

    def hold(self, place: Place, ends_at: float) -> bool:
        """Note that a place is told that it holds, until `ends_at` at least; False if it was ended meanwhile."""
        with self.mutex:
            if self.live.get(place.ask.request) is not place:
                return False
            place.ends_at = place.lease_ends_at = max(place.lease_ends_at, ends_at) if place.holds else ends_at
            place.holds = True
            return True

    def has_run_out(self, place: Place) -> bool:
        """Tell whether a lease is over, though nobody has ended its place yet."""
        with self.mutex:
            return place.holds and place.lease_ends_at <= self.now()

    def end(self, request: str, outcome: Outcome | None) -> None:
        """Forget a place, but for its outcome."""
        with self.mutex:
            self._end(request, outcome)

    def end_of(self, request: str, token: int, outcome: Outcome) -> None:
        """Forget a place because the contender with this token is gone, unless it may have another by now."""
        with self.mutex:
            place = self.live.get(request)
            if place is None or (place.entry is not None and place.entry.token == token):
                self._end(request, outcome)

    def _end(self, request: str, outcome: Outcome | None) -> None:
        place = self.live.pop(request, None)
        known = self.past.get(request)
        if known is None or outcome is None or place is not None:
            self.past[request] = Past(self.now() + REMEMBERED, outcome, *(place.traces() if place else (0, 0)))

    def revive(self, place: Place, ends_at: float) -> bool:
        """Take in a place that was ended while a join of it was under way, to be ended once more; True if it was."""
        with self.mutex:
            living = self.live.get(place.ask.request)
            if living is place:
                return False
            if living is None:
                self.live[place.ask.request] = place
                place.ends_at = ends_at
            else:  # it was asked for again meanwhile, and now it may be there twice
                living.unsure = True
            return True

    def drop(self, request: str) -> None:
        """Forget a place, as if it had never been."""
        with self.mutex:
            self.live.pop(request, None)

    def silent(self, now: float) -> list[Place]:
        """Take out those that nobody was heard of for too long, to be ended; and forget what is long past."""
        with self.mutex:
            over = [place for place in self.live.values() if place.ends_at <= now]
            for place in over:
                del self.live[place.ask.request]
                self.ending.add(place.ask.request)
                order, added = place.traces()
                added += bool(place.ask.lock_delay)  # which is kept in its place
                self.past[place.ask.request] = Past(now + REMEMBERED, Outcome.EXPIRED, order, added)
            for request in [request for request, past in self.past.items() if past.until <= now]:
                del self.past[request]
            return over

    def next_end(self) -> float:
        """Return when the next one ends, if nobody is heard."""
        with self.mutex:
            return min((place.ends_at for place in self.live.values()), default=float("inf"))
