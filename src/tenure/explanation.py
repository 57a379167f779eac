"""Why a name is not granted: what `Client.why` returns, and what a `LockTimeout` carries.

The texts are sentences for people, in which whatever others chose is escaped. The other fields are as the store has
them: escape them before you print them.
"""

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """What keeps a name from being granted."""

    DEADLOCK = "deadlock"
    """Waiters of the name wait for each other in a circle."""
    QUARANTINE = "quarantine"
    """The store may have forgotten leases, and grants nothing for a while."""
    PAUSED = "paused"
    """The job of this name is paused: no run begins."""
    EVICTED = "evicted"
    """The store has lost what it knew of the name."""
    HELD = "held"
    """A holder has the name, or the permits that are asked for."""
    CAPACITY = "capacity"
    """Some permits are free, but fewer than are asked for."""
    MIN_HOLD = "min_hold"
    """The name was released, and a `min_hold` still keeps it from others."""
    LOCK_DELAY = "lock_delay"
    """A lease has run out or was revoked, and its `lock_delay` keeps the name from everybody."""
    WRITER = "writer"
    """Readers hold the name, and a writer waits before this reader."""
    BEHIND = "behind"
    """An earlier waiter needs more permits than are free, and is not overtaken."""
    DEAD = "dead"
    """The contender at the head of the queue is dead or stands still."""
    GRANTING = "granting"
    """There is room, and an earlier waiter is about to be granted the name."""
    FREE = "free"
    """Nothing keeps the name from being granted."""


class Life(StrEnum):
    """What is known of the process of a holder or waiter."""

    RENEWING = "renewing"
    """The lease was renewed in time, or no renewal is due yet."""
    SILENT = "silent"
    """No renewal came when it was due: the process is dead, stands still or cannot reach the store. Or its lease is no
    longer renewed, as that of a holder at its `max_hold`."""
    RELEASED = "released"
    """The lease has been released, and only its `min_hold` is left."""
    DETACHED = "detached"
    """The lease is detached: no client renews it, and whoever has its handle can adopt, renew or release it."""
    WAITING = "waiting"
    GONE = "gone"
    """A waiter of which the store hears nothing any more: it will be skipped."""
    UNKNOWN = "unknown"
    """The store does not tell."""


@dataclass(slots=True, frozen=True)
class Reason:
    """One thing that keeps the name from being granted."""

    cause: Cause
    text: str
    """A sentence without its full stop."""


@dataclass(slots=True, frozen=True)
class Party:
    """A holder or a waiter. Times in seconds. None: the store does not tell."""

    owner: str
    life: Life
    text: str
    """The owner and what is known of it, for people."""
    host: str = ""
    """The host of the owner, if the owner is host/process id, as it is if the program gives none."""
    pid: int | None = None
    thread: str = ""
    """The thread or task, which only a lock with deadlock detection tells."""
    token: int | None = None
    weight: int | None = None
    lasted: float | None = None
    """For how long it has held the name, or waited."""
    silent_for: float | None = None
    """How long ago the lease was granted or renewed last."""
    expires_in: float | None = None
    value: str = ""
    """What an elected leader publishes."""


@dataclass(slots=True, frozen=True)
class NextStep:
    """Something to do about it."""

    command: str
    """The command, as it can be typed in a shell."""
    what: str
    """What it does, or when to use it."""


@dataclass(slots=True, frozen=True)
class Explanation:
    """Why a name is not granted: made by one pure function of what the store says."""

    name: str
    """The name, without the client's namespace."""
    reasons: tuple[Reason, ...]
    """All that keeps the name from being granted, what counts most first. There is at least one."""
    holders: tuple[Party, ...] = ()
    waiters: tuple[Party, ...] = ()
    """The waiters in their order."""
    ahead: int = 0
    """How many waiters stand before the one for whom this is the explanation."""
    untold: tuple[str, ...] = ()
    """What this store cannot tell, in sentences."""
    next: tuple[NextStep, ...] = ()
    near: tuple[str, ...] = ()
    """Of a name that nobody uses: names in use that may have been meant."""

    @property
    def cause(self) -> Cause:
        """What counts most."""
        return self.reasons[0].cause

    @property
    def text(self) -> str:
        """The first sentence: what counts most, without a full stop."""
        return self.reasons[0].text
