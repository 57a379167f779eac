"""What clients and stores say to each other. Times in here are whole microseconds; instants are the store's.

Every request carries the id of the acquisition it belongs to, so that a request that is asked again after a lost
reply is recognised and gets the same answer.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.contracts.owner_metadata import read_metadata
from holdfast.errors import Vote
from holdfast.outcome import Outcome


@dataclass(slots=True)
class AcquireRequest:
    """A request to hold a name. Asked again under the same `request_id`, it means "am I granted by now?"."""

    name: str
    request_id: str
    channel: str
    """Where grants are pushed to; empty if the client cannot be reached and only asks."""
    owner: str
    """Who asks, for people to read."""
    ttl: int
    """Length of the lease, granted in a reply or by a push."""
    interval: int
    """How often the head of the queue asks again."""
    waiter_ttl: int
    """How long a waiter that stopped asking counts as alive."""
    weight: int = 1
    capacity: int = 1
    lock_delay: int = 0
    proposal: int = 0
    """A fencing token that the client would like to be surpassed: its clock, or the highest it has seen."""
    wait: bool = True
    """Whether to stand in the queue if the name is not free."""
    span: int = 1
    """How many tokens to reserve, so that the name can be handed on within the asker's process. With more than one,
    the holder is told when somebody waits."""
    votes: bool = False
    """Whether one of several stores is asked for its vote. The store gives it to whoever asks while the name is free.
    A waiter for a vote is never granted by a push, but told when the name is free. The token of a vote is the
    proposal, if that is larger than all tokens before."""

    @property
    def place(self) -> str:
        """Under what it stands in the queue: one who asks for a vote asks every time by another request, base/round."""
        return self.request_id.rpartition("/")[0] if self.votes else self.request_id


@dataclass(slots=True)
class Granted:
    """The name is the asker's, for `ttl` from the moment of the grant."""

    token: int
    """The last of the tokens that were reserved for it."""
    ttl: int
    contended: bool = False
    """Whether somebody else waits for the name."""


@dataclass(slots=True)
class Queued:
    """The asker stands in the queue. A grant will be pushed; if none came by then, ask again after `retry_in`."""

    counter: int
    """The last token issued for the name: a push that does not exceed it is an old one, to be ignored."""
    retry_in: int
    place: int
    """How many stand before us in the queue."""
    quarantine: int = 0
    """For how long the store grants nothing to anybody, because it may have forgotten grants."""


@dataclass(slots=True)
class Busy:
    """Not granted, and will not be but by asking again: worth it after `retry_in`."""

    retry_in: int
    holders: tuple[str, ...] = ()
    quarantine: int = 0
    votes: tuple[Vote, ...] = ()
    """What each node of a quorum said."""
    stands: bool = False
    """Whether it stands in a queue, to be told when to ask: it must leave that if it gives up."""


@dataclass(slots=True)
class CapacityMismatch:
    """The name is in use with another capacity than the one asked for."""

    capacity: int


@dataclass(slots=True)
class Withdrawn:
    """This request was given up earlier; it will not be granted."""


Reply = Granted | Queued | Busy | CapacityMismatch | Withdrawn


@dataclass(slots=True)
class ReleaseRequest:
    """A holder lets go."""

    name: str
    request_id: str
    token: int
    unsure: bool = False
    """Whether another copy of this request may still be under way, so that it must be refused when it arrives."""
    keep: int = 0
    """For how long the name is still not to be granted: the holder is done, but was too quick."""


@dataclass(slots=True)
class RenewRequest:
    """A holder asks to keep a lease for `ttl` from now on."""

    name: str
    request_id: str
    token: int
    ttl: int
    request: AcquireRequest | None = None
    """What the lease came of: all that a store needs that has forgotten the grant, to take it up again."""
    contended: bool = False
    """Set by the store with its reply: whether somebody waits for the name."""
    refused_because: str = ""
    """Written by a store that refuses it and can say why, for people to read; else it just does not know it."""


@dataclass(slots=True)
class AdjustRequest:
    """A holder changes its holding, which goes on. Asked again, it changes nothing more."""

    name: str
    request_id: str
    token: int
    weight: int = 0
    """How much of the capacity it is content with from now on; it never gets more by this. 0: as it is."""
    owner: str = ""
    """What people are to read from now on; empty: as it is."""
    raise_to: int = 0
    """A larger token to issue to it, or 0. If one as large was issued already, nothing changes, and it is refused."""


@dataclass(slots=True)
class WithdrawRequest:
    """A waiter gives up. If a grant crossed it on the way, the grant is passed on."""

    name: str
    request_id: str
    unsure: bool


@dataclass(slots=True)
class NotGranted:
    """What a waiter that gave up leaves behind: nothing. These are the holders it waited for."""

    holders: tuple[str, ...] = ()
    ahead: int = 0
    quarantine: int = 0
    votes: tuple[Vote, ...] = ()
    """What each node of a quorum said last."""
    blocked: int = 0
    """For how long a lock delay keeps the name from everybody. No store says so; `Session.explain` asks."""


class NotificationKind(StrEnum):
    """What a store pushes into a channel."""

    GRANTED = "granted"
    HEAD = "head"
    REVOKED = "revoked"
    CONTENDED = "contended"
    """Somebody waits for what this holder has."""
    REVOCATION_REQUESTED = "revocation_requested"
    """Somebody asks this holder to let go."""
    GAP = "gap"
    """Pushes may have been missed: whoever waits asks again. Comes from a client's own connection, not the store."""


@dataclass(slots=True)
class Notification:
    """A push. It may come late, twice or never; nothing is unsafe or stuck if it does."""

    channel: str
    kind: NotificationKind
    request_id: str
    token: int = 0
    after: int = 0
    """For HEAD: when the name may become free, so when to ask again at the latest."""
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
    """What it publishes, if it is an elected leader."""
    actor: str = ""
    """Which thread or task of its owner it is, if it is looked at for deadlocks."""

    def read_metadata(self) -> None:
        """Find in what the store was told of the owner what else it says."""
        label = read_metadata(self.owner)
        self.owner, self.value, self.actor = label.owner, label.value, label.actor


@dataclass(slots=True)
class WaiterView:
    """One waiter of a name, as `inspect` shows it. Times in seconds."""

    owner: str
    weight: int
    waited_for: float
    alive: bool
    actor: str = ""
    """Which thread or task of its owner it is, if it is looked at for deadlocks."""
    holds: tuple[str, ...] = ()
    """The names that it held when it asked, if it is looked at for deadlocks."""

    def read_metadata(self) -> None:
        """Find in what the store was told of the owner what else it says."""
        label = read_metadata(self.owner)
        self.owner, self.actor, self.holds = label.owner, label.actor, label.holds


@dataclass(slots=True)
class NameView:
    """What a store knows of a name. Times in seconds."""

    name: str
    capacity: int
    last_token: int
    holders: list[HolderView] = field(default_factory=list[HolderView])
    waiters: list[WaiterView] = field(default_factory=list[WaiterView])
    blocked_for: float = 0.0
    """How long a lock delay still keeps the name from everyone."""
    quarantined_for: float = 0.0
    """How long the store still grants nothing, because it may have forgotten grants; to look begins no quarantine."""


@dataclass(slots=True)
class Page:
    """Some of the names in use, each in one page of a listing, and from where the listing goes on."""

    names: list[str]
    rest: object = None
    """What asks for the next page; only the store knows what it is. None: this page is the last."""


RenewReply = Outcome | None
"""None: renewed. An outcome: refused, and what became of the lease."""
