"""A reader of MessagePack, as far as cmsgpack writes it for the scripts."""

from struct import Struct
from typing import Any

INTEGERS = {
    0xCC: Struct(">B"),
    0xCD: Struct(">H"),
    0xCE: Struct(">I"),
    0xCF: Struct(">Q"),
    0xD0: Struct(">b"),
    0xD1: Struct(">h"),
    0xD2: Struct(">i"),
    0xD3: Struct(">q"),
}
"""The size and the sign of an integer, by its tag."""

LENGTHS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
"""The size of the length of a text, in bytes, by its tag."""

CONSTANTS: dict[int, bool | int] = {0xC2: False, 0xC3: True} | {tag: tag - 256 for tag in range(0xE0, 0x100)}


def unpacked(data: bytes) -> list[Any]:
    """Return the values in `data`, one after another. Raises ValueError for data that the scripts never write."""
    return _read(data, 0, len(data))[0]


def _read(data: bytes, at: int, most: int) -> tuple[list[Any], int]:
    """Read up to `most` values; return them and the position of the next one.

    One loop reads all values but arrays, for a call for each value takes twice as long.
    """
    values: list[Any] = []
    end = len(data)
    while at < end and len(values) < most:
        tag = data[at]
        at += 1
        if tag < 0x80:
            values.append(tag)
            continue
        if 0xA0 <= tag < 0xC0:
            size = tag - 0xA0
            values.append(data[at : at + size].decode())
        elif tag in INTEGERS:
            integer = INTEGERS[tag]
            size = integer.size
            values.append(integer.unpack_from(data, at)[0])
        elif tag in LENGTHS:
            start = at + LENGTHS[tag]
            size = LENGTHS[tag] + int.from_bytes(data[at:start], "big")
            values.append(data[start : at + size].decode())
        elif tag in CONSTANTS:
            size = 0
            values.append(CONSTANTS[tag])
        else:
            size = 0
            value, at = _read_array(data, at, tag)
            values.append(value)
        at += size
    return values, at


def _read_array(data: bytes, at: int, tag: int) -> tuple[list[Any], int]:
    if 0x90 <= tag < 0xA0:
        return _read(data, at, tag - 0x90)
    if tag == 0xDC:
        return _read(data, at + 2, int.from_bytes(data[at : at + 2], "big"))
    raise ValueError(f"unknown tag {tag:#x}")
