"""What a request says of its owner.

To a store it is one text that it shows to whoever asks: the owner's name. Those who have more to say (an elected leader
what it publishes, a contender that is looked at for deadlocks what it holds) append it, behind a character that no
name of an owner has; so no store has to know of it.
"""

import json
from dataclasses import dataclass

SEPARATOR = "\x1f"
"""The unit separator of ASCII."""


@dataclass(slots=True, frozen=True)
class OwnerMetadata:
    """An owner, and what it says of itself."""

    owner: str
    value: str = ""
    """What an elected leader publishes."""
    actor: str = ""
    """Which thread or task it is, of all that there are; empty unless it is looked at for deadlocks."""
    holds: tuple[str, ...] = ()
    """The names that this thread or task held when it asked."""

    def text(self) -> str:
        """Return what to tell a store."""
        more = {"v": self.value, "a": self.actor, "h": self.holds}
        said = {key: value for key, value in more.items() if value}
        if not said:
            return self.owner
        return self.owner + SEPARATOR + json.dumps(said, separators=(",", ":"), ensure_ascii=False)


def read_metadata(text: str) -> OwnerMetadata:
    """Return what a store was told. What was not written by `OwnerMetadata.text` is an owner, whole."""
    owner, separator, said = text.partition(SEPARATOR)
    if not separator:
        return OwnerMetadata(text)
    try:
        more = json.loads(said)
        value, actor, holds = more.get("v", ""), more.get("a", ""), more.get("h", [])
        return OwnerMetadata(owner, str(value), str(actor), tuple(map(str, holds)))
    except (ValueError, AttributeError, TypeError):
        return OwnerMetadata(text)
