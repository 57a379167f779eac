"""The guard of a lease: a condition for an etcd transaction that the lease still holds its lock.

A resource in the same etcd needs no fence: a transaction that compares the guard of a lease checks in one atomic step
that the lease is still there, and otherwise does nothing.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(slots=True, frozen=True)
class Guard:
    """The entry of a lease in etcd. A transaction that compares it does nothing once the lease has ended."""

    key: bytes
    create_revision: int
    """The revision at which the entry was created. The tokens of the lease begin at 1024 times this."""

    def compare(self) -> dict[str, str]:
        """Return the comparison for the list `compare` of a transaction, in the form of etcd's JSON gateway."""
        from base64 import b64encode

        return {
            "key": b64encode(self.key).decode(),
            "target": "CREATE",
            "result": "EQUAL",
            "create_revision": str(self.create_revision),
        }


@runtime_checkable
class Guarding(Protocol):
    """A store whose leases have guards."""

    def guard(self, name: str, request_id: str, token: int) -> Guard | None:
        """Return the guard of the lease of a request and its token; None if no transaction could compare it."""
        ...
