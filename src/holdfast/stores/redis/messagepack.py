"""Write what the scripts unpack: MessagePack, as far as they need it.

Numbers that are constant for a lock travel packed, because each argument of a script, and each conversion from text,
costs the server more than all of them together cost in one piece.
"""

import struct
from collections.abc import Sequence

Packable = int | str | Sequence["Packable"]


def pack(*values: Packable) -> bytes:
    """Return the values one after another, to be unpacked as several results."""
    return b"".join(map(_pack, values))


def _pack(value: Packable) -> bytes:
    if isinstance(value, int):
        return struct.pack("B", value) if 0 <= value < 0x80 else struct.pack(">Bq", 0xD3, value)  # noqa: PLR2004
    if isinstance(value, str):
        text = value.encode()
        return struct.pack(">BI", 0xDB, len(text)) + text
    return struct.pack(">BH", 0xDC, len(value)) + pack(*value)
