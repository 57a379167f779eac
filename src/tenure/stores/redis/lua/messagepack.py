"""An encoder of MessagePack, as far as the scripts unpack it.

The constant numbers of a lock are sent packed: each argument of a script, and each conversion from text, costs the
server more than all of them together cost in one piece.
"""

import struct
from collections.abc import Sequence

Packable = int | str | Sequence["Packable"]


SMALL = tuple(bytes([number]) for number in range(0x80))
"""The encodings of the smallest numbers."""

_long_number = struct.Struct(">Bq").pack
_text_header = struct.Struct(">BI").pack
_array_header = struct.Struct(">BH").pack


def pack(*values: Packable) -> bytes:
    """Encode the values one after another, to be unpacked as several results."""
    return b"".join(map(_pack, values))


def _pack(value: Packable) -> bytes:
    if isinstance(value, int):
        return SMALL[value] if 0 <= value < 0x80 else _long_number(0xD3, value)  # noqa: PLR2004
    if isinstance(value, str):
        text = value.encode()
        return _text_header(0xDB, len(text)) + text
    return _array_header(0xDC, len(value)) + b"".join(map(_pack, value))
