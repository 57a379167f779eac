"""What happens to a client's locks, told to whoever listens: for metrics, traces and logs.

Nothing of this is done, but for a look whether somebody listens, while nobody does.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from weakref import WeakKeyDictionary

from holdfast.core.lease import CoreLease
from holdfast.outcome import Outcome

log = logging.getLogger("holdfast")


class EventKind(StrEnum):
    """What happened."""

    CONTENDED = "contended"
    """The name was not free, and is waited for."""
    ACQUIRED = "acquired"
    """It was granted; `seconds` since it was asked for."""
    HANDED_ON = "handed on"
    """The lease was released, and passed on within this client; `seconds` that it was held."""
    RENEWED = "renewed"
    """The lease was renewed in the background; `seconds` for which it is certain now."""
    LOST = "lost"
    """The lease can no longer be trusted, `detail` says why; `seconds` that it was held."""
    RELEASED = "released"
    """The lease was released, `detail` is the outcome; `seconds` that it was held."""


@dataclass(slots=True, frozen=True)
class LockEvent:
    """Something that happened to a lock of this client."""

    kind: EventKind
    name: str
    owner: str
    """Whose lock it is: the owner of this client."""
    token: int = 0
    """The fencing token of the lease; 0 if there is none yet."""
    seconds: float = 0.0
    """A duration: see the kinds."""
    detail: str = ""
    cause: BaseException | None = None
    """Of a loss: the error of the store because of which the lease could not be renewed, if there was one."""


class Events:
    """Tells somebody."""

    def __init__(self, tell: Callable[[LockEvent], object], now: Callable[[], float], owner: str, prefix: str) -> None:
        """Tell of locks of `owner` whose names all begin with `prefix`."""
        self._tell = tell
        self._now = now
        self._owner = owner
        self._prefix = prefix
        self._since: WeakKeyDictionary[CoreLease, float] = WeakKeyDictionary()

    def contended(self, name: str) -> None:
        """Tell that a name is waited for."""
        self._say(EventKind.CONTENDED, name)

    def acquired(self, lease: CoreLease, asked_at: float) -> None:
        """Tell of a new lease, and of its loss if that comes."""
        now = self._since[lease] = self._now()
        self._say(EventKind.ACQUIRED, lease.name, lease.token, now - asked_at)

        def lost(why: str) -> None:
            self._say(EventKind.LOST, lease.name, lease.token, self._held_for(lease), why, cause=lease.last_error)

        lease.when_lost(lost)

    def renewed(self, lease: CoreLease) -> None:
        """Tell of a renewal in the background."""
        self._say(EventKind.RENEWED, lease.name, lease.token, lease.valid_until - self._now())

    def released(self, lease: CoreLease, outcome: Outcome) -> None:
        """Tell of a release."""
        self._say(EventKind.RELEASED, lease.name, lease.token, self._held_for(lease), outcome.value)

    def handed_on(self, lease: CoreLease) -> None:
        """Tell of a release that the store does not hear of."""
        self._say(EventKind.HANDED_ON, lease.name, lease.token, self._held_for(lease))

    def _held_for(self, lease: CoreLease) -> float:
        now = self._now()
        return now - self._since.get(lease, now)

    def _say(
        self,
        kind: EventKind,
        name: str,
        token: int = 0,
        seconds: float = 0.0,
        detail: str = "",
        *,
        cause: BaseException | None = None,
    ) -> None:
        try:
            self._tell(LockEvent(kind, name.removeprefix(self._prefix), self._owner, token, seconds, detail, cause))
        except (Exception, SystemExit):  # SystemExit would end the renewer's thread, or leave a lease to nobody
            log.exception("the on_event callback raised; the lock goes on")
