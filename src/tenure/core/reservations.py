"""Reservations: one lease that its thread or task has acquired several times, through reentrant locks.

The store knows one lease. Its thread or task has one hold of it for each acquisition. The lease is released with the
last hold, in whatever order the holds are given back. While a lost lease has a hold, its thread or task acquires the
name no more. The reservation belongs to the thread or task object: all reentrant locks of one client for the same name
share it there, and no other thread or task does. When the thread or task ends, the reservation ends.
"""

from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

from tenure.contracts.runtime import Runtime
from tenure.core.lease import CoreLease
from tenure.errors import LeaseLost


class Reservation:
    """One lease and its holds."""

    __slots__ = ("holds", "lease", "mutex")

    def __init__(self, lease: CoreLease, mutex: AbstractContextManager[Any]) -> None:
        """Begin without holds: the caller adds the first."""
        self.lease = lease
        self.mutex = mutex
        self.holds: set[object] = set()
        """The present holds. The garbage collector also removes holds, at any point and without the mutex."""

    def enter(self, hold: object) -> bool:
        """Add a hold; return False if the last hold was given back, or the acquisition was and so left its hold.

        Raises LeaseLost while the lease is lost and a hold of it is left: a lease that was granted anew would hide the
        loss from those who work under the outer hold.
        """
        trusted = self.lease.trusted()  # before the mutex, which is that of the lease
        with self.mutex:
            if not self.holds or self.lease.dropped:
                return False
            if trusted:
                self.holds.add(hold)
                return True
            if not self.lease.lost_because:
                return False
        raise LeaseLost(
            f"{self.lease.loss()} This thread or task has not let it go: leave the outer `with`, or release its outer "
            "leases, before you acquire the name anew."
        )

    def leave(self, hold: object) -> bool:
        """Give a hold back; return whether none is left. Repeated, it returns the same."""
        with self.mutex:
            self.holds.discard(hold)
            return not self.holds


class Reservations:
    """The reservations of one client."""

    def __init__(self, runtime: Runtime, mutex: AbstractContextManager[Any]) -> None:
        """Start without reservations."""
        self._runtime = runtime
        self._mutex = mutex
        self._reservations: WeakKeyDictionary[object, dict[str, Reservation]] = WeakKeyDictionary()

    def find(self, name: str) -> Reservation | None:
        """Return the reservation that the calling thread or task has of a name, if there is one."""
        owner, _ = self._runtime.caller()
        reservations = self._reservations.get(owner)
        return reservations.get(name) if reservations else None

    def begin(self, lease: CoreLease) -> Reservation:
        """Make the reservation of a lease that the calling thread or task has just acquired."""
        owner, _ = self._runtime.caller()
        reservation = Reservation(lease, self._mutex)
        reservations = self._reservations.setdefault(owner, {})
        for name in [name for name, each in reservations.items() if not each.holds]:
            reservations.pop(name, None)
        reservations[lease.grant.name] = reservation
        return reservation
