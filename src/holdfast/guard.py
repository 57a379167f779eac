"""A condition for transactions of one's own in etcd: that a lock is still held, judged by the store that grants it.

What is protected may be in the same etcd. Then no fence is needed: a transaction that compares the guard of a lease
does what it should or nothing, in one step with the look at whether the lease is still there.
"""

from base64 import b64encode
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(slots=True, frozen=True)
class Guard:
    """The contender of a holding: a transaction that compares it does nothing once the holding is over."""

    key: bytes
    create_revision: int
    """Also the fencing token of the holding."""

    def compare(self) -> dict[str, str]:
        """Return the comparison as the JSON gateway wants it, for the list `compare` of a transaction."""
        return {
            "key": b64encode(self.key).decode(),
            "target": "CREATE",
            "result": "EQUAL",
            "create_revision": str(self.create_revision),
        }


@runtime_checkable
class Guarding(Protocol):
    """Something that knows guards."""

    def guard(self, name: str, request_id: str, token: int) -> Guard | None:
        """Return the guard of what a request holds by this token; None if nothing could compare it."""
        ...
