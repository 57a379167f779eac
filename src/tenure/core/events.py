"""The events of a client's locks, which the `on_event` callback takes: for metrics, traces and logs.

A client without the callback makes no events. It pays only for the check whether there is one.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from weakref import WeakKeyDictionary

from tenure.core.lease import CoreLease
from tenure.outcome import Outcome

log = logging.getLogger("tenure")


class EventKind(StrEnum):
    """The kinds of events."""

    CONTENDED = "contended"
    """The name was not free, and a contender waits for it."""
    ACQUIRED = "acquired"
    """The name was granted; `seconds` is the time since the acquisition began."""
    HANDED_ON = "handed on"
    """The lease was released by a local hand-off; `seconds` is how long it was held."""
    RENEWED = "renewed"
    """The lease was renewed in the background; `seconds` is the time until its local deadline."""
    LOST = "lost"
    """The lease can no longer be trusted; `detail` says why, `seconds` is how long it was held."""
    RELEASED = "released"
    """The lease was released; `detail` is the outcome, `seconds` is how long it was held."""


@dataclass(slots=True, frozen=True)
class LockEvent:
    """One event of a lock of this client."""

    kind: EventKind
    name: str
    owner: str
    """The owner of this client."""
    token: int = 0
    """The fencing token of the lease; 0 if there is none yet, or the store has none."""
    seconds: float = 0.0
    """A duration; `EventKind` says which."""
    detail: str = ""
    """The reason of a loss, or the outcome of a release."""
    cause: BaseException | None = None
    """The cause of a loss: the store's error that prevented the renewal, if there was one."""


class Events:
    """Makes events and passes them to a callback."""

    def __init__(self, tell: Callable[[LockEvent], object], now: Callable[[], float], owner: str, prefix: str) -> None:
        """Pass events to `tell`, for locks of `owner` whose names in the store all begin with `prefix`."""
        self.tokens = True
        """Whether the store has fencing tokens; if not, every event has the token 0."""
        self._tell = tell
        self._now = now
        self._owner = owner
        self._prefix = prefix
        self._since: WeakKeyDictionary[CoreLease, float] = WeakKeyDictionary()

    def contended(self, name: str) -> None:
        """Report that a contender waits for a name."""
        self._say(EventKind.CONTENDED, name)

    def acquired(self, lease: CoreLease, asked_at: float) -> None:
        """Report a new lease, and later its loss."""
        now = self._since[lease] = self._now()
        self._say(EventKind.ACQUIRED, lease.name, lease.token, now - asked_at)

        def lost(why: str) -> None:
            self._say(EventKind.LOST, lease.name, lease.token, self._held_for(lease), why, cause=lease.last_error)

        lease.when_lost(lost)

    def renewed(self, lease: CoreLease) -> None:
        """Report a renewal in the background."""
        self._say(EventKind.RENEWED, lease.name, lease.token, lease.valid_until - self._now())

    def released(self, lease: CoreLease, outcome: Outcome) -> None:
        """Report a release."""
        self._say(EventKind.RELEASED, lease.name, lease.token, self._held_for(lease), outcome.value)

    def handed_on(self, lease: CoreLease) -> None:
        """Report a release by a local hand-off."""
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
        token = token if self.tokens else 0
        try:
            self._tell(LockEvent(kind, name.removeprefix(self._prefix), self._owner, token, seconds, detail, cause))
        except (Exception, SystemExit):  # SystemExit would end the renewer's thread, or leave a lease without an owner
            log.exception("the on_event callback raised an error for %r; the lock works on", name)
