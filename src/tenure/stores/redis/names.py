"""The mapping from names to keys. All keys of a name share a hash tag, so that they live in one slot of a Cluster.

A hash tag ends at the first closing brace, so braces in names are escaped, as in a URL.
"""

import binascii
import re

PREFIX = "tenure:"
NODE = "tenure:node"
MARKERS = "tenure:node:{*}"
"""The pattern of the markers of a Cluster."""
SLOTS = 16384

_SPECIAL = re.compile(r"[%{}]")
_GLOB = re.compile(r"([*?\[\]\\^-])")


def state_key(name: str) -> str:
    """Return the key of the state of a name. The other keys of the name add a suffix."""
    if "{" in name or "}" in name or "%" in name:
        name = _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", name)
    return f"{PREFIX}{{{name}}}"


def name_of(key: str) -> str | None:
    """Return the name whose state has this key, or None."""
    if not (key.startswith(PREFIX + "{") and key.endswith("}")):
        return None
    name = key[len(PREFIX) + 1 : -1]
    return re.sub(r"%([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), name)


def marked_by(key: str) -> str | None:
    """Return a name in the slot whose marker has this key in a Cluster, or None."""
    return key[len(MARKERS) - 2 : -1] if key.startswith(MARKERS[:-2]) and key.endswith("}") else None


def pattern(prefix: str) -> str:
    """Return the pattern of the state keys of all names that begin with `prefix`."""
    return _GLOB.sub(r"\\\1", state_key(prefix)[:-1]) + "*}"


def slot_of(name: str) -> int:
    """Return the slot of a Cluster that a name belongs to: CRC16 (XMODEM) of its tag, as Redis Cluster specifies."""
    tag = state_key(name)[len(PREFIX) + 1 : -1]
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


class Markers:
    """The keys of the markers: one per server, or in a Cluster one per slot, with a tag that lies in that slot."""

    def __init__(self) -> None:
        """Begin without tags. The first use of a slot continues the search where the last one ended."""
        self._tags: dict[int, int] = {}
        self._next = 0

    def of(self, slot: int) -> str:
        """Return the key of the marker of a slot."""
        while slot not in self._tags:
            self._tags.setdefault(binascii.crc_hqx(str(self._next).encode(), 0) % SLOTS, self._next)
            self._next += 1
        return f"{NODE}:{{{self._tags[slot]}}}"
