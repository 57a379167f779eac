"""What one client knows of its own contenders.

A *place* is one of them, from the first ask to its end. The store ends it by itself when its owner has fallen silent:
a session says that the process lives, not that whoever acquired in it does. A place is forgotten only when its
contender is gone for certain, or was removed: else it would stand in everybody's way for as long as the session lives.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from holdfast.contracts.messages import AcquireRequest
from holdfast.outcome import Outcome
from holdfast.stores.ordered.entries import Entry

REMEMBERED = 30.0
"""For how many seconds it is known what became of a request that has ended."""


@dataclass(slots=True, eq=False)
class Contender:
    """A contender of this client."""

    request: AcquireRequest
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
class ContenderRegistry:
    """All contenders of a client, and for a while those that were."""

    mutex: AbstractContextManager[Any]
    now: Callable[[], float]
    live: dict[str, Contender] = field(default_factory=dict[str, Contender])
    past: dict[str, Past] = field(default_factory=dict[str, Past])
    ending: set[str] = field(default_factory=set[str])
    """Requests that are being ended for their silence."""

    def find(self, request_id: str, request: AcquireRequest, ends_at: float) -> Contender:
        """Return the place of a request, which is heard of until `ends_at`, made if there is none."""
        with self.mutex:
            contender = self.live.get(request_id)
            if contender is None:
                contender = self.live[request_id] = Contender(request, ends_at, ttl=request.ttl, text=request.owner)
            contender.ends_at = max(contender.ends_at, ends_at)
            return contender

    def hear(self, request_id: str, ends_at: float) -> Contender | None:
        """Return the place of a request, if it goes on, and let it go on at least until `ends_at`."""
        with self.mutex:
            contender = self.live.get(request_id)
            if contender is not None:
                contender.ends_at = max(contender.ends_at, ends_at)
            return contender

    def wake(self, contender: Contender, ends_at: float) -> None:
        """Let a place that waits go on until `ends_at` only."""
        with self.mutex:
            if not contender.holds:
                contender.ends_at = ends_at

    def hold(self, contender: Contender, ends_at: float) -> bool:
        """Note that a place is told that it holds, until `ends_at` at least; False if it was ended meanwhile."""
        with self.mutex:
            if self.live.get(contender.request.request_id) is not contender:
                return False
            contender.ends_at = contender.lease_ends_at = (
                max(contender.lease_ends_at, ends_at) if contender.holds else ends_at
            )
            contender.holds = True
            return True

    def has_run_out(self, contender: Contender) -> bool:
        """Tell whether a lease is over, though nobody has ended its place yet."""
        with self.mutex:
            return contender.holds and contender.lease_ends_at <= self.now()

    def end(self, request_id: str, outcome: Outcome | None) -> None:
        """Forget a place, but for its outcome."""
        with self.mutex:
            self._end(request_id, outcome)

    def end_of(self, request_id: str, token: int, outcome: Outcome) -> None:
        """Forget a place because the contender with this token is gone, unless it may have another by now."""
        with self.mutex:
            contender = self.live.get(request_id)
            if contender is None or (contender.entry is not None and contender.entry.token == token):
                self._end(request_id, outcome)

    def _end(self, request_id: str, outcome: Outcome | None) -> None:
        contender = self.live.pop(request_id, None)
        known = self.past.get(request_id)
        if known is None or outcome is None or contender is not None:
            self.past[request_id] = Past(
                self.now() + REMEMBERED, outcome, *(contender.traces() if contender else (0, 0))
            )

    def revive(self, contender: Contender, ends_at: float) -> bool:
        """Take in a place that was ended while a join of it was under way, to be ended once more; True if it was."""
        with self.mutex:
            living = self.live.get(contender.request.request_id)
            if living is contender:
                return False
            if living is None:
                self.live[contender.request.request_id] = contender
                contender.ends_at = ends_at
            else:  # it was asked for again meanwhile, and now it may be there twice
                living.unsure = True
            return True

    def drop(self, request_id: str) -> None:
        """Forget a place, as if it had never been."""
        with self.mutex:
            self.live.pop(request_id, None)

    def silent(self, now: float) -> list[Contender]:
        """Take out those that nobody was heard of for too long, to be ended; and forget what is long past."""
        with self.mutex:
            over = [contender for contender in self.live.values() if contender.ends_at <= now]
            for contender in over:
                del self.live[contender.request.request_id]
                self.ending.add(contender.request.request_id)
                order, added = contender.traces()
                added += bool(contender.request.lock_delay)  # which is kept in its place
                self.past[contender.request.request_id] = Past(now + REMEMBERED, Outcome.EXPIRED, order, added)
            for request_id in [request_id for request_id, past in self.past.items() if past.until <= now]:
                del self.past[request_id]
            return over

    def next_end(self) -> float:
        """Return when the next one ends, if nobody is heard."""
        with self.mutex:
            return min((contender.ends_at for contender in self.live.values()), default=float("inf"))
