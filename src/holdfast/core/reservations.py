"""Reentrancy: one lease that its thread or task has acquired several times.

The store knows one lease. Its owner has a share of it for each acquisition, and it is released with the last of them,
in whatever order they are. Who owns it is told by the thread or task object: it is shared by all locks of a client that
are made for the same name and for this, and by nobody else; when the thread or task ends, so does the nest.
"""

from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.contracts.runtime import Runtime
from holdfast.core.lease import CoreLease


class Reservation:
    """One lease, and how many shares there are of it."""

    __slots__ = ("holds", "lease", "mutex")

    def __init__(self, lease: CoreLease, mutex: AbstractContextManager[Any]) -> None:
        """Begin without any: whoever makes it adds the first."""
        self.lease = lease
        self.mutex = mutex
        self.holds: set[object] = set()
        """A share is taken out without the mutex, too: by the garbage collector, in the middle of anything."""

    def enter(self, hold: object) -> bool:
        """Take another share; False if the last was given back, or the lease is lost."""
        if not self.lease.trusted():
            return False
        with self.mutex:
            if not self.holds:
                return False
            self.holds.add(hold)
            return True

    def leave(self, hold: object) -> bool:
        """Give a share back; return whether none is left. Repeated, it answers the same."""
        with self.mutex:
            self.holds.discard(hold)
            return not self.holds


class Reservations:
    """Those of one client."""

    def __init__(self, runtime: Runtime, mutex: AbstractContextManager[Any]) -> None:
        """Start without any."""
        self._runtime = runtime
        self._mutex = mutex
        self._reservations: WeakKeyDictionary[object, dict[str, Reservation]] = WeakKeyDictionary()

    def find(self, name: str) -> Reservation | None:
        """Return what the caller holds of a name, if it does."""
        owner, _ = self._runtime.caller()
        reservations = self._reservations.get(owner)
        return reservations.get(name) if reservations else None

    def begin(self, lease: CoreLease) -> Reservation:
        """Note what the caller has just acquired."""
        owner, _ = self._runtime.caller()
        reservation = Reservation(lease, self._mutex)
        reservations = self._reservations.setdefault(owner, {})
        for name in [name for name, each in reservations.items() if not each.holds]:
            reservations.pop(name, None)
        reservations[lease.name] = reservation
        return reservation
