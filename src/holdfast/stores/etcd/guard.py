"""A condition for transactions of one's own: that a lock is still held, judged by the store that grants it."""

from base64 import b64encode
from dataclasses import dataclass


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
