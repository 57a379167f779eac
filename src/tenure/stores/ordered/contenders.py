"""The contender registry: what one client knows of its own contenders.

A *contender* is registered from its first request to its end. The store removes it when its requests stop: a session
proves only that the process lives, not that the thread or task which acquired the name does. A contender is forgotten
only when its entry is certainly gone or was removed. A forgotten entry would block the name as long as the session
lives.

Here stands as well the text of an entry: the owner and the ttl as the store keeps them and `inspect` shows them.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import AcquireRequest, HolderView, WaiterView
from tenure.outcome import Outcome
from tenure.stores.ordered.entries import Detail, Entry, Kind

REMEMBERED = 30.0
"""For how many seconds the outcome of an ended request is remembered."""

WOKEN_TTL = 1.0
"""The least time, in seconds, in which a waiter that was woken must send its request again."""

BESIDES = "+"
"""The end of the id under which a waiter watches what it does not wait for itself. A watch is replaced by its id."""


@dataclass(slots=True, eq=False)
class Contender:
    """One holder or waiter of this client."""

    request: AcquireRequest
    ends_at: float
    """The local instant at which the contender expires, unless a request or a renewal arrives for it."""
    entry: Entry | None = None
    """The contender's entry in the store; None until the store replied to a join."""
    block: bool = False
    """Whether the store has a BLOCK entry for it."""
    light: bool = False
    """Whether the store may have LIGHT entries for it."""
    unsure: bool = False
    """Whether one of its joins got no reply, so that it may still arrive."""
    hears: bool = False
    """Whether it watches what those before it wait for, under its id with BESIDES."""
    told: bool = False
    """Whether the holders that can hand off were told that it waits."""
    holds: bool = False
    """Whether the client was told that the name is granted."""
    idle_at: float = float("-inf")
    """The last local instant at which its entry certainly did not hold the name: it was not there, or it waited."""
    confirmed: bool = False
    """Whether its entry says that the contender has taken up its grant."""
    seen: dict[int, float] = field(default_factory=dict[int, float])
    """By their order, since when this waiter has seen other holders that have not confirmed their grants."""
    lease_ends_at: float = 0.0
    """The local instant at which the lease of a holder ends; a renewal under way may postpone it."""
    ttl: int = 0
    """The ttl that the entry shows to people, in microseconds."""
    text: str = ""
    """The owner that the entry shows to people."""

    def traces(self) -> tuple[int, int]:
        """Return the order of its entry, and the number of entries that it added besides."""
        return 0 if self.entry is None else self.entry.order, self.block + self.light


@dataclass(slots=True)
class Past:
    """The outcome of an ended request."""

    until: float
    """The local instant until which the outcome is remembered."""
    outcome: Outcome | None
    """None: the request was withdrawn before it was granted."""
    order: int = 0
    """The order of its entry."""
    added: int = 0
    """The number of entries that it added besides its own."""


@dataclass(slots=True)
class ContenderRegistry:
    """All contenders of a client, and for a while those that have ended."""

    mutex: AbstractContextManager[Any]
    now: Callable[[], float]
    live: dict[str, Contender] = field(default_factory=dict[str, Contender])
    past: dict[str, Past] = field(default_factory=dict[str, Past])
    ending: set[str] = field(default_factory=set[str])
    """The ids of the requests whose expired contenders are being removed."""

    def find(self, request_id: str, request: AcquireRequest, ends_at: float) -> Contender:
        """Return the contender of a request, which lives at least until `ends_at`; add one if there is none."""
        with self.mutex:
            contender = self.live.get(request_id)
            if contender is None:
                contender = self.live[request_id] = Contender(request, ends_at, ttl=request.ttl, text=request.owner)
            contender.ends_at = max(contender.ends_at, ends_at)
            return contender

    def hear(self, request_id: str, ends_at: float) -> Contender | None:
        """Return the contender of a request if there is one, and let it live at least until `ends_at`."""
        with self.mutex:
            contender = self.live.get(request_id)
            if contender is not None:
                contender.ends_at = max(contender.ends_at, ends_at)
            return contender

    def wake(self, contender: Contender, ends_at: float) -> None:
        """Let a waiter live only until `ends_at`."""
        with self.mutex:
            if not contender.holds:
                contender.ends_at = ends_at

    def hold(self, contender: Contender, ends_at: float) -> bool:
        """Record that a contender holds the name at least until `ends_at`; return False if it was ended meanwhile."""
        with self.mutex:
            if self.live.get(contender.request.request_id) is not contender:
                return False
            contender.ends_at = contender.lease_ends_at = (
                max(contender.lease_ends_at, ends_at) if contender.holds else ends_at
            )
            contender.holds = True
            return True

    def has_run_out(self, contender: Contender) -> bool:
        """Return whether the lease of a contender has expired, though the contender was not removed yet."""
        with self.mutex:
            return contender.holds and contender.lease_ends_at <= self.now()

    def end(self, request_id: str, outcome: Outcome | None) -> None:
        """Remove a contender and remember its outcome."""
        with self.mutex:
            self._end(request_id, outcome)

    def end_of(self, request_id: str, token: int, outcome: Outcome) -> None:
        """Remove the contender with this token, because its entry is gone, unless it may have a newer entry."""
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
        """Register a contender again that was ended during its join, so that it is removed once more; True if so."""
        with self.mutex:
            living = self.live.get(contender.request.request_id)
            if living is contender:
                return False
            if living is None:
                self.live[contender.request.request_id] = contender
                contender.ends_at = ends_at
            else:  # the request was repeated meanwhile, so the store may have two entries of it
                living.unsure = True
            return True

    def drop(self, request_id: str) -> None:
        """Remove a contender without remembering an outcome."""
        with self.mutex:
            self.live.pop(request_id, None)

    def silent(self, now: float) -> list[Contender]:
        """Remove and return the expired contenders, which the caller must end; forget old outcomes."""
        with self.mutex:
            over = [contender for contender in self.live.values() if contender.ends_at <= now]
            for contender in over:
                del self.live[contender.request.request_id]
                self.ending.add(contender.request.request_id)
                order, added = contender.traces()
                added += bool(contender.request.lock_delay)  # a PLACEHOLDER for the lock delay replaces it
                self.past[contender.request.request_id] = Past(now + REMEMBERED, Outcome.EXPIRED, order, added)
            for request_id in [request_id for request_id, past in self.past.items() if past.until <= now]:
                del self.past[request_id]
            return over

    def next_end(self) -> float:
        """Return the local instant at which the next contender expires, if no request arrives for it."""
        with self.mutex:
            return min((contender.ends_at for contender in self.live.values()), default=float("inf"))


@dataclass(slots=True, frozen=True)
class EntryText:
    """The text of an entry, for people to read."""

    owner: str
    ttl: int
    """In microseconds."""
    confirmed: bool = False
    """Whether the contender has taken up its grant (`renewing.py`)."""

    def text(self) -> str:
        """Encode the text as JSON."""
        return json.dumps([self.owner, self.ttl, 1][: 2 + self.confirmed], separators=(",", ":"))


def read_text(text: str) -> EntryText:
    """Decode the text of an entry; an unreadable text yields the owner "?" and the ttl 0."""
    try:
        owner, ttl, *confirmed = json.loads(text)
        return EntryText(str(owner), int(ttl), bool(confirmed))
    except (TypeError, ValueError):
        return EntryText("?", 0)


def text_of(contender: Contender) -> str:
    """Return the text of a contender's entry."""
    return EntryText(contender.text, contender.ttl, contender.confirmed).text()


def holder_view(entry: Entry, detail: Detail) -> HolderView:
    """Return the view of a holder.

    Nobody else knows when a lease was renewed last, so the view shows the whole ttl of one that was. Of one that was
    not, it shows what is left if the contender did not wait: a contender that is dead does not seem to go on.
    """
    told = read_text(detail.text)
    ttl = seconds(told.ttl)
    left = ttl if told.confirmed else max(0.0, ttl - detail.age)
    released = entry.kind is Kind.PLACEHOLDER
    return HolderView(
        told.owner, entry.token_at(detail.position), entry.weight, detail.age, left, ttl, released=released
    )


def waiter_view(entry: Entry, detail: Detail) -> WaiterView:
    """Return the view of a waiter. A waiter whose entry exists is alive."""
    return WaiterView(read_text(detail.text).owner, entry.weight, detail.age, alive=True)
