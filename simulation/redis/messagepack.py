"""Read what the scripts packed: MessagePack, as far as cmsgpack writes it for them."""

from typing import Any

INTEGERS = {
    0xCC: (1, False),
    0xCD: (2, False),
    0xCE: (4, False),
    0xCF: (8, False),
    0xD0: (1, True),
    0xD1: (2, True),
    0xD2: (4, True),
    0xD3: (8, True),
}
"""By tag: how many bytes, and whether it may be negative."""

LENGTHS = {0xD9: 1, 0xDA: 2, 0xDB: 4}


def unpacked(data: bytes) -> list[Any]:
    """Return the values in `data`, one after another. Raises ValueError for what the scripts never write."""
    values: list[Any] = []
    at = 0
    while at < len(data):
        value, at = _read(data, at)
        values.append(value)
    return values


def _read(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag < 0x80 or tag >= 0xE0:
        return tag if tag < 0x80 else tag - 256, at
    if tag in INTEGERS:
        size, signed = INTEGERS[tag]
        return int.from_bytes(data[at : at + size], "big", signed=signed), at + size
    if 0x90 <= tag < 0xA0:
        return _read_array(data, at, tag - 0x90)
    if tag == 0xDC:
        return _read_array(data, at + 2, int.from_bytes(data[at : at + 2], "big"))
    if tag in {0xC2, 0xC3}:
        return tag == 0xC3, at
    return _read_text(data, at, tag)


def _read_array(data: bytes, at: int, size: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    for _ in range(size):
        value, at = _read(data, at)
        values.append(value)
    return values, at


def _read_text(data: bytes, at: int, tag: int) -> tuple[str, int]:
    if 0xA0 <= tag < 0xC0:
        length = tag - 0xA0
    elif tag in LENGTHS:
        size = LENGTHS[tag]
        length = int.from_bytes(data[at : at + size], "big")
        at += size
    else:
        raise ValueError(f"unknown tag {tag:#x}")
    return data[at : at + length].decode(), at + length
