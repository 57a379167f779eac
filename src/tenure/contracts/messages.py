"""The messages between clients and stores: requests, replies, notifications and views.

Times are whole microseconds, except in views; instants are those of the store's clock. Every request carries the id of
its acquisition, so that a store recognises a request that is repeated after a lost reply, and gives the same reply.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tenure.contracts.owner_metadata import read_metadata
from tenure.errors import StoreError, Vote
from tenure.outcome import Outcome


class SharedPart:
    """The part that all requests of one lock have in common: all fields but the id, the proposal and `wait`.

    A store may keep here what it has computed from these fields.
    """

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: Any = None


@dataclass(slots=True)
class AcquireRequest:
    """A request to acquire a name. Repeated with the same `request_id`, it asks whether it is granted by now."""

    name: str
    request_id: str
    channel: str
    """The channel for pushed grants; empty if the client has none, and re-polls instead."""
    owner: str
    """The owner of the request, with its metadata, for people to read."""
    ttl: int
    """The length of the lease, granted in a reply or by a push."""
    interval: int
    """How often the head of the queue re-polls."""
    waiter_ttl: int
    """How long a waiter counts as alive after its last request; in some stores longer, far back in a queue."""
    weight: int = 1
    capacity: int = 1
    lock_delay: int = 0
    proposal: int = 0
    """The client's clock, or the highest fencing token that it has seen: the token should not be smaller."""
    wait: bool = True
    """Whether to join the queue if the name is not free."""
    span: int = 1
    """How many tokens to reserve for local hand-offs. A holder with more than one is notified when somebody waits."""
    votes: bool = False
    """Whether this is a request for the vote of one node of a quorum. The node gives its vote to the first request that
    finds the name free. A waiter for a vote is never granted by a push, but notified when the name is free. The token
    of a vote is the proposal, if that is larger than all tokens before."""
    fair_after: int = 0
    """How long this request may be passed by others while it waits, and may pass them (barging). 0: never."""
    shared: SharedPart | None = field(default=None, repr=False, compare=False)
    """The part that this request has in common with others. A copy that changes any of its fields must drop it."""

    @property
    def place(self) -> str:
        """The id of its place in the queue. Requests for a vote have an id per round, `base/round`, but one place."""
        return self.request_id.rpartition("/")[0] if self.votes else self.request_id


@dataclass(slots=True)
class Granted:
    """The request is granted: its client holds the name for `ttl` from the instant of the grant."""

    token: int
    """The last of the tokens that were reserved for the lease."""
    ttl: int
    contended: bool = False
    """Whether somebody else waits for the name."""


@dataclass(slots=True)
class Queued:
    """The request is in the queue. Its grant will be pushed; without a push, the client asks again after `retry_in`."""

    counter: int
    """No smaller than the last token issued for the name, be it forgotten. A push whose token is not larger is an old
    one, and is ignored."""
    retry_in: int
    place: int
    """The number of waiters ahead in the queue."""
    quarantine: int = 0
    """How long the store will still grant nothing, because it may have forgotten grants."""


@dataclass(slots=True)
class Busy:
    """The request is refused. No push will grant it: the client asks again after `retry_in`, or gives up."""

    retry_in: int
    holders: tuple[str, ...] = ()
    quarantine: int = 0
    votes: tuple[Vote, ...] = ()
    """The reply of each node of a quorum."""
    blocked: int = 0
    """How long a lock delay keeps the name from everybody, if nobody holds it and the store knows."""
    stands: bool = False
    """Whether the request is in a queue nevertheless, to be notified of its retry time. A client that gives up must
    withdraw it."""


@dataclass(slots=True)
class CapacityMismatch:
    """The name is in use with another capacity than that of the request."""

    capacity: int


@dataclass(slots=True)
class Withdrawn:
    """This request was withdrawn earlier, and will never be granted."""


Reply = Granted | Queued | Busy | CapacityMismatch | Withdrawn


@dataclass(slots=True)
class ReleaseRequest:
    """A holder releases its lease."""

    name: str
    request_id: str
    token: int
    unsure: bool = False
    """Whether a copy of the acquire request may still be under way, and must be refused when it arrives."""
    keep: int = 0
    """How long the store must still keep the name from others, for `min_hold`."""
    unrevoked_for: int = 0
    """Set by a store that does not know the lease, and remembers revocations: for how long nobody has revoked it."""


@dataclass(slots=True)
class RenewRequest:
    """A holder prolongs its lease to `ttl` from now on."""

    name: str
    request_id: str
    token: int
    ttl: int
    request: AcquireRequest | None = None
    """The acquire request of the lease, from which a store that has forgotten the grant restores it."""
    contended: bool = False
    """Set by the store with its reply: whether somebody else waits for the name."""
    refused_because: str = ""
    """Set by a store that refuses the renewal and knows why, for people to read. Empty: the store does not know the
    lease."""


@dataclass(slots=True)
class AdjustRequest:
    """A holder changes its lease, which goes on. Repeated, the request changes nothing more."""

    name: str
    request_id: str
    token: int
    weight: int = 0
    """The new weight of the lease. It never increases. 0: no change."""
    owner: str = ""
    """The new owner text, for people to read. Empty: no change."""
    raise_to: int = 0
    """A larger token to issue to the lease, or 0. If a token as large was issued before, the request is refused."""
    successor: str = ""
    """The request id under which the lease goes on, for another client; empty: no change. It comes with `raise_to`, and
    only to a store that `hands_over`. The store refuses the old id from then on, and notifies its client that the lease
    was revoked. In quarantine the request is refused, because the store may have forgotten who has the lease."""
    channel: str = ""
    """With `successor`: the channel of the client that goes on with the lease; empty: no client does."""
    ttl: int = 0
    """With `successor`: the lease lasts so long from now on, be it shorter than before; 0: as long as before. A store
    that keeps it for less lowers this number."""


@dataclass(slots=True)
class WithdrawRequest:
    """A waiter gives up. If it was granted meanwhile, the store hands the name over."""

    name: str
    request_id: str
    unsure: bool
    """Whether a copy of the acquire request may still be under way, and must be refused when it arrives."""


@dataclass(slots=True)
class NotGranted:
    """The request was withdrawn: its client holds nothing, and waits for nothing. Says what it waited for."""

    holders: tuple[str, ...] = ()
    ahead: int = 0
    quarantine: int = 0
    votes: tuple[Vote, ...] = ()
    """The last reply of each node of a quorum."""
    blocked: int = 0
    """How long a lock delay still keeps the name from everybody. No store sets this: the attempt does, from `Busy`."""


class NotificationKind(StrEnum):
    """What a notification says."""

    GRANTED = "granted"
    HEAD = "head"
    REVOKED = "revoked"
    CONTENDED = "contended"
    """Somebody waits for the name of this holder."""
    REVOCATION_REQUESTED = "revocation_requested"
    """Somebody asks this holder to let go: a revocation request."""
    GAP = "gap"
    """Notifications may have been missed, so every waiter asks again. The client's own connection sends this, not the
    store."""


@dataclass(slots=True)
class Notification:
    """A push from the store. It may come late, twice or never: that is never unsafe, and blocks nobody for ever."""

    channel: str
    kind: NotificationKind
    request_id: str
    token: int = 0
    after: int = 0
    """For HEAD: how long until the name may be free, and the waiter should ask again."""
    contended: bool = False
    """For GRANTED: whether somebody else waits for the name."""


@dataclass(slots=True)
class HolderView:
    """One holder of a name, as `inspect` shows it. Times in seconds."""

    owner: str
    token: int
    weight: int
    held_for: float
    expires_in: float
    ttl: float
    value: str = ""
    """The value that an elected leader publishes."""
    actor: str = ""
    """The thread or task of the owner, with deadlock detection."""
    released: bool = False
    """Whether the lease has been released, and only its `min_hold` still keeps the name from others."""
    reason: str = ""
    """What a lease is for that was detached, as its owner said."""
    detached: bool = False
    """Whether the lease is detached: no client renews it, and whoever has its handle can adopt it."""

    def read_metadata(self) -> None:
        """Split the store's text for the owner into the owner and its metadata."""
        metadata = read_metadata(self.owner)
        self.owner, self.value, self.actor = metadata.owner, metadata.value, metadata.actor
        self.reason, self.detached = metadata.reason, bool(metadata.handle) and not metadata.adopted


@dataclass(slots=True)
class WaiterView:
    """One waiter of a name, as `inspect` shows it. Times in seconds."""

    owner: str
    weight: int
    waited_for: float
    alive: bool
    actor: str = ""
    """The thread or task of the owner, with deadlock detection."""
    holds: tuple[str, ...] = ()
    """The names that the waiter held when it sent the request, with deadlock detection."""

    def read_metadata(self) -> None:
        """Split the store's text for the owner into the owner and its metadata."""
        metadata = read_metadata(self.owner)
        self.owner, self.actor, self.holds = metadata.owner, metadata.actor, metadata.holds


@dataclass(slots=True)
class NameView:
    """What `inspect` shows of a name. Times in seconds."""

    name: str
    capacity: int
    last_token: int
    holders: list[HolderView] = field(default_factory=list[HolderView])
    waiters: list[WaiterView] = field(default_factory=list[WaiterView])
    blocked_for: float = 0.0
    """How long a lock delay still keeps the name from everybody."""
    quarantined_for: float = 0.0
    """How long the store will still grant nothing, because it may have forgotten grants. An inspection never begins a
    quarantine."""
    quarantined_since: float = 0.0
    """How long ago that began; 0.0 if it has not, or the store does not know."""


@dataclass(slots=True)
class Page:
    """A part of a listing of names, and where the listing goes on. Each name is in one page."""

    names: list[str]
    rest: object = None
    """The cursor of the next page, which only the store understands. None: this page is the last."""


RenewReply = Outcome | None
"""None: renewed or adjusted. An outcome: refused, and what became of the lease."""

RenewReplies = Sequence[RenewReply | StoreError]
"""The replies to a batch of renewals, in its order. An error is that of one lease: the others know nothing of it."""
