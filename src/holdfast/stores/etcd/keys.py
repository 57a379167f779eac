"""Where things are in the store, and how they are written there.

    <prefix>/n/<name>/c<request>    a contender, with the lease of its session
    <prefix>/n/<name>/l<request>    that it is content with less, with the same lease
    <prefix>/n/<name>/k<request>    room that is kept, with a lease of its own
    <prefix>/n/<name>/b<request>    that it wants a lock delay, with a lease that outlives that of the session
    <prefix>/n/<name>/s<request>    a change of the capacity, without a lease
    <prefix>/n/<name>/z             nothing; its mod_revision tells when somebody joined last
    <prefix>/n/<name>/t<request>    that the contender must not come any more, with a lease of 30 seconds
    <prefix>/i/<session>            that the session lives, with its lease; what is below are messages to it

Names are percent-encoded, so a name is a range of its own, and one range request lists it. A value says in JSON what a
listing needs; what the store knows itself (the order, the session) is not written again.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote, unquote

from holdfast.stores.etcd.link import Said
from holdfast.stores.ordered.entries import Entry, Kind, Listing, Record

LAST = "z"
TOMBSTONE = "t"

packed_json = json.JSONEncoder(separators=(",", ":")).encode
"""Writes JSON without blanks. `json.dumps` would make an encoder for each text."""

KINDS = {str(kind) for kind in Kind}


@dataclass(slots=True, eq=False)
class Seen(Entry):
    """An entry, and what else this store knows of it."""

    revision: int = 0
    """The store was at this revision when the entry was listed."""
    text: str = ""
    wall: int = 0
    """When it was added, by the wall clock of who did, in microseconds."""


@dataclass(slots=True)
class Written:
    """What a value says."""

    weight: int = 1
    capacity: int = 1
    before: int = 0
    keep: float = 0.0
    place: int = 0
    wall: int = 0
    """When it was added, by the wall clock of who did, in microseconds."""
    text: str = ""

    def packed(self) -> str:
        """Write it, without what is as usual."""
        usual = Written()
        pairs = ((short, getattr(self, name), getattr(usual, name)) for short, name in FIELDS.items())
        return packed_json({short: value for short, value, same in pairs if value != same})

    @classmethod
    def read(cls, text: str) -> "Written":
        """Read a value; what cannot be read is as usual."""
        try:
            said: dict[str, Any] = json.loads(text)
            return cls(**{FIELDS[short]: value for short, value in said.items() if short in FIELDS})
        except (AttributeError, TypeError, ValueError):
            return cls()


FIELDS = {"w": "weight", "c": "capacity", "b": "before", "k": "keep", "p": "place", "a": "wall", "t": "text"}


def written(record: Record, wall: int) -> Written:
    """Return what is written for a record."""
    return Written(record.weight, record.capacity, record.before, record.keep, record.place, wall, record.text)


class Keys:
    """All keys below a prefix."""

    def __init__(self, prefix: str) -> None:
        """Begin all keys with `prefix` and a slash."""
        self.names = f"{prefix}/n/"
        self.channels = f"{prefix}/i/"

    def of(self, name: str, tail: str) -> str:
        """Return the key of something that belongs to a name."""
        return f"{self.names}{_quoted(name)}/{tail}"

    def channel(self, session: str) -> str:
        """Return what the keys of a session begin with, and the first of them."""
        return self.channels + session

    def name_of(self, key: str) -> tuple[str, str]:
        """Return the name of a key, and what it is of it."""
        quoted, _, tail = key.removeprefix(self.names).partition("/")
        return unquote(quoted), tail

    def behind(self, key: bytes) -> bytes:
        """Return the first that may come behind all keys of the same name."""
        name, slash, _ = key[len(self.names.encode()) :].partition(b"/")
        return self.names.encode() + name + after("/").encode() if slash else key + b"\0"


@lru_cache(maxsize=256)
def _quoted(name: str) -> str:
    return quote(name, safe="")


def encoded(text: str) -> str:
    """Return a key or a value as the gateway wants it."""
    return b64encode(text.encode("utf-8", "surrogatepass")).decode()


def decoded(text: str) -> str:
    """Read a key or a value of the gateway, whoever wrote it."""
    data = b64decode(text)
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # it is none of ours
        return data.decode("utf-8", "replace")


def after(prefix: str) -> str:
    """Return the end of the range of all keys that begin with a prefix, which ends with an ASCII character."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def session_of(lease: str | int) -> str:
    """Return how a lease is called as a session."""
    return f"{int(lease):016x}"


def number(said: Said, name: str) -> int:
    """Read a number; the gateway leaves zeros out."""
    return int(cast("str", said.get(name, 0)))


def listed(keys: Keys, kvs: Iterable[Said], revision: int) -> Listing:
    """Read what a range of a name holds."""
    listing = Listing([], newest=revision)
    for kv in kvs:
        tail = keys.name_of(decoded(kv["key"]))[1]
        if tail == LAST:
            listing.joined = number(kv, "mod_revision")
        elif tail[:1] in KINDS:
            listing.entries.append(entry_of(tail, kv, revision))
    listing.entries.sort(key=lambda entry: (entry.order, entry.token))
    return listing


def entry_of(tail: str, kv: Said, revision: int) -> Seen:
    """Read an entry."""
    kind, token, value = Kind(tail[0]), number(kv, "create_revision"), read_value(kv)
    entry = Seen(kind, tail[1:], token, value.weight, value.capacity, value.before, token, tail)
    entry.revision, entry.text, entry.wall = revision, value.text, value.wall
    if kind is Kind.KEPT:
        entry.order = value.place
    elif kind in {Kind.CONTENDER, Kind.LIGHT}:
        entry.session = session_of(kv["lease"]) if "lease" in kv else ""
    return entry


def read_value(kv: Said) -> Written:
    """Read the value of a key."""
    return Written.read(decoded(kv.get("value", "")))
