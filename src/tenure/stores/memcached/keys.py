"""Each name has its key, at one of the servers.

A key of memcached has at most 250 bytes, without spaces and control characters. A name that fits stands in its key as
it is. Any other name is represented by its digest; the record of the item then contains the name, to be compared.
"""

import hashlib
from collections.abc import Sequence

from tenure.transport.link import ServerAddress

MOST_PREFIX = 64
"""The longest prefix of the keys, in bytes."""

MOST_NAME = 180
"""The longest name that stands in its key as it is, in bytes: prefix, colon and name stay below 250."""

DIGEST = "#"
"""What a digest begins with in a key. A name that begins so is represented by its digest, too."""


def is_plain(text: str) -> bool:
    """Tell whether a text may be a part of a key as it is: visible ASCII characters without spaces."""
    return text.isascii() and text.isprintable() and " " not in text


def stands_in_key(name: str) -> bool:
    """Tell whether a name stands in its key as it is."""
    return len(name) <= MOST_NAME and is_plain(name) and not name.startswith(DIGEST)


def key_of(prefix: str, name: str) -> bytes:
    """Return the key of a name."""
    if stands_in_key(name):
        return f"{prefix}:{name}".encode()
    return f"{prefix}:{DIGEST}{hashlib.sha256(name.encode()).hexdigest()}".encode()


def name_in(key: str, prefix: str) -> str:
    """Return the name that stands in a key of this prefix, or "" if only the record contains it."""
    rest = key.removeprefix(f"{prefix}:")
    return "" if rest.startswith(DIGEST) else rest


def server_of(key: bytes, addresses: Sequence[ServerAddress]) -> ServerAddress:
    """Return the server that has a key: the one with the highest hash of key and server (rendezvous hashing).

    The order of the servers does not matter. If one is added or removed, only the keys that it has, or has had, move.
    """
    if len(addresses) == 1:
        return addresses[0]
    return max(addresses, key=lambda each: hashlib.sha256(f"{each} ".encode() + key).digest())
