"""Actors: the threads and tasks that take part in deadlock detection."""

from dataclasses import dataclass, field

from tenure.core.lease import CoreLease

MOST_HELD = 64
"""How many names a request lists at most as held by its actor, so that it stays short."""


@dataclass(slots=True, eq=False)
class Actor:
    """One thread or task, and the leases that it holds with deadlock detection."""

    identity: str
    """A unique id, a space, and the name of the thread or task."""
    leases: list[CoreLease] = field(default_factory=list[CoreLease])

    def holds(self) -> tuple[str, ...]:
        """Return the names that the actor holds now; of very many, those that it acquired last."""
        self.leases = [lease for lease in self.leases if lease.trusted()]
        return tuple(lease.grant.name for lease in self.leases[-MOST_HELD:])
