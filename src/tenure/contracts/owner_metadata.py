"""What a request says of its owner.

A store keeps one text for an owner, and shows it in `inspect`: the owner's name. Some requests have more to say: an
elected leader publishes a value, a contender with deadlock detection names the locks that it holds, and a detached
lease has the id of its handle. They append this metadata behind a character that no name of an owner contains, so no
store has to know of it.
"""

import json
from dataclasses import dataclass

SEPARATOR = "\x1f"
"""The unit separator of ASCII."""


@dataclass(slots=True, frozen=True)
class OwnerMetadata:
    """An owner, and its metadata."""

    owner: str
    value: str = ""
    """The value that an elected leader publishes."""
    actor: str = ""
    """The thread or task of the owner, unique among all; empty without deadlock detection."""
    holds: tuple[str, ...] = ()
    """The names that this thread or task held when it sent the request."""
    reason: str = ""
    """What the lease is for, as its owner said when it detached the lease."""
    handle: str = ""
    """The id of the handle of a lease that was detached; empty: it never was."""
    adopted: str = ""
    """The request id of the lease after it was adopted by its handle; empty: it is detached, and nobody has it."""

    def text(self) -> str:
        """Return the text for a store."""
        more = {"v": self.value, "a": self.actor, "h": self.holds}
        more |= {"r": self.reason, "n": self.handle, "k": self.adopted}
        metadata = {key: value for key, value in more.items() if value}
        if not metadata:
            return self.owner
        return self.owner + SEPARATOR + json.dumps(metadata, separators=(",", ":"), ensure_ascii=False)


def read_metadata(text: str) -> OwnerMetadata:
    """Return the owner and metadata of a store's text. A text that `OwnerMetadata.text` did not write is all owner."""
    owner, separator, metadata = text.partition(SEPARATOR)
    if not separator:
        return OwnerMetadata(text)
    try:
        more = json.loads(metadata)
        value, actor, holds = more.get("v", ""), more.get("a", ""), more.get("h", [])
        of_handle = (str(more.get(key, "")) for key in "rnk")
        return OwnerMetadata(owner, str(value), str(actor), tuple(map(str, holds)), *of_handle)
    except (ValueError, AttributeError, TypeError):
        return OwnerMetadata(text)
