"""The layout of the keys in etcd, and the encoding of their values.

    <prefix>/n/<name>/c<session>-<number>    a contender, with the lease of its session
    <prefix>/n/<name>/l<request>    the reduced weight of a contender, with the same lease
    <prefix>/n/<name>/k<request>    a placeholder, with a lease of its own
    <prefix>/n/<name>/b<request>    the lock delay of a holder, with a lease that outlives that of the session
    <prefix>/n/<name>/s<request>    a change of the capacity, without a lease
    <prefix>/n/<name>/z             nothing; its mod_revision tells when the last contender joined, except of a lock
    <prefix>/n/<name>/t<key>        the tombstone of such a key, which refuses a join, with a lease of 30 seconds
    <prefix>/form                   the mark of the stored form (contracts/forms.py)
    <prefix>/v/<name>               a cell: when it was written, in 16 digits, and its value as the client gave it
    <prefix>/i/<session>            the mark that the session lives, with its lease; the keys below are messages to it

Names are percent-encoded, so each name is a range of its own, and one range request lists it. A value is JSON and tells
what a listing needs, except what etcd itself knows (the order and the session).

A client uses the keys of its contenders again and again. Until a compaction, etcd keeps every deleted key in its index,
and each listing of a name visits all of them. With a new key for each contender, an acquisition would take longer the
more acquisitions there were before.

A key is used again once its entry is gone and all replies to its join have arrived. Then no copy of the join is under
way that could add the entry of an ended request. A removal compares the position of the entry, so a late copy of it
removes no later entry. A key is never used again after a removal that could not compare the position.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any, cast
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from tenure.contracts import forms
from tenure.stores.etcd.http import JsonObject
from tenure.stores.ordered.entries import Entry, Kind, Listing, Record

Place = tuple[str, str]
"""A name, and the request of a contender."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class ContenderKey:
    """The key of one contender."""

    session: str
    number: int
    tail: str
    """The key, without the prefix of its name."""
    copies: int = 0
    """How many copies of its join may be under way."""
    retired: bool = False
    """Whether it is never used again."""


class ContenderKeys:
    """The keys that the contenders of one client have. A key belongs to a session; no other session ever uses it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Place, ContenderKey] = WeakValueDictionary()
        """All keys. The entry of a contender refers to its key, and both are forgotten together."""
        self._unsure: dict[Place, ContenderKey] = {}
        """Those whose join has no reply."""
        self._free: list[int] = []
        self._numbers = count()

    def find(self, place: Place) -> ContenderKey | None:
        """Return the key of a contender; None if it has none."""
        return self._known.get(place)

    def take(self, place: Place, session: str) -> ContenderKey:
        """Return the key of a contender that is about to join. It is unsure until `settle`."""
        key = self._known.get(place)
        if key is None or key.session != session:
            number = self._number()
            key = ContenderKey(session, number, f"{Kind.CONTENDER}{session}-{number}")
        key.copies += 1
        self._known[place] = self._unsure[place] = key
        return key

    def _number(self) -> int:
        """Return the number that was given back last, or a new one."""
        try:
            return self._free.pop()
        except IndexError:
            return next(self._numbers)

    def settle(self, place: Place, key: ContenderKey) -> None:
        """Take note that a join was carried out or refused, and that no other copy of it was sent."""
        key.copies -= 1
        if not key.copies and self._unsure.get(place) is key:
            self._unsure.pop(place, None)

    def give_back(self, place: Place, key: ContenderKey) -> None:
        """Take a key away from its contender, whose entry is gone, and use it again unless it is unsure or retired."""
        if self.drop(place, key) and not key.copies and not key.retired:
            self._free.append(key.number)

    def drop(self, place: Place, key: ContenderKey) -> bool:
        """Take a key away from its contender for good; return whether the contender had it."""
        if self._known.get(place) is not key:
            return False
        self._unsure.pop(place, None)
        return self._known.pop(place, None) is key

    def forget(self, session: str) -> None:
        """Forget the keys of an ended session: they have vanished with it, and no server adds them any more."""
        for place, key in list(self._known.items()):
            if key.session == session:
                self.drop(place, key)


LAST = "z"
TOMBSTONE = "t"

packed_json = json.JSONEncoder(separators=(",", ":")).encode
"""Encodes JSON without blanks. `json.dumps` with options would create an encoder for each text."""

KINDS = {str(kind) for kind in Kind}


@dataclass(slots=True, eq=False)
class EtcdEntry(Entry):
    """An entry, with what etcd tells besides."""

    revision: int = 0
    """The revision of the store at which the entry was listed."""
    text: str = ""
    wall: int = 0
    """The time at which it was added, by the wall clock of the client that added it, in microseconds."""
    contender_key: ContenderKey | None = None
    """The key of this client's own contender. It is read nowhere: ContenderKeys forgets a key that nobody refers to."""


@dataclass(slots=True)
class Written:
    """The decoded value of an entry's key."""

    weight: int = 1
    capacity: int = 1
    before: int = 0
    counts_for: float = 0.0
    place: int = 0
    wall: int = 0
    """The time at which it was added, by the wall clock of the client that added it, in microseconds."""
    text: str = ""
    request: str = ""
    """Of a contender: its request. The keys of all other entries tell theirs."""

    def packed(self) -> str:
        """Encode the value, without the fields that have their defaults."""
        return packed_json({short: value for short, name, usual in USUAL if (value := getattr(self, name)) != usual})

    @classmethod
    def read(cls, text: str) -> "Written":
        """Decode a value. An unreadable value yields the defaults."""
        try:
            said: dict[str, Any] = json.loads(text)
            return cls(**{FIELDS[short]: value for short, value in said.items() if short in FIELDS})
        except (AttributeError, TypeError, ValueError):
            return cls()


FIELDS = {
    "w": "weight",
    "c": "capacity",
    "b": "before",
    "k": "counts_for",
    "p": "place",
    "a": "wall",
    "t": "text",
    "r": "request",
}
USUAL = [(short, name, getattr(Written(), name)) for short, name in FIELDS.items()]
"""The fields with their defaults."""


def written(record: Record, wall: int) -> Written:
    """Return the value of a new entry's key."""
    request = record.request_id if record.kind is Kind.CONTENDER else ""
    return Written(
        record.weight, record.capacity, record.before, record.counts_for, record.place, wall, record.text, request
    )


class Keys:
    """Builds and reads the keys below a prefix."""

    def __init__(self, prefix: str) -> None:
        """Begin all keys with `prefix` and a slash."""
        self.names = f"{prefix}/n/"
        self.channels = f"{prefix}/i/"
        self.cells = f"{prefix}/v/"
        self.form = f"{prefix}/form"

    def of(self, name: str, tail: str) -> str:
        """Return the key of a name's entry, or the prefix of all its keys if `tail` is empty."""
        return f"{self.names}{_quoted(name)}/{tail}"

    def cell(self, name: str) -> str:
        """Return the key of a cell."""
        return self.cells + _quoted(name)

    def channel(self, session: str) -> str:
        """Return the first key of a session, which is also the prefix of its messages."""
        return self.channels + session

    def tail_of(self, key: str) -> str:
        """Return the rest of a key after its name."""
        return key.removeprefix(self.names).partition("/")[2]

    def name_of(self, key: str) -> tuple[str, str]:
        """Return the name that a key belongs to, and the rest of the key."""
        quoted, _, tail = key.removeprefix(self.names).partition("/")
        return unquote(quoted), tail

    def behind(self, key: bytes) -> bytes:
        """Return a key that is larger than all keys of the same name."""
        name, slash, _ = key[len(self.names.encode()) :].partition(b"/")
        return self.names.encode() + name + after("/").encode() if slash else key + b"\0"


@lru_cache(maxsize=256)
def _quoted(name: str) -> str:
    return quote(name, safe="")


def encoded(text: str) -> str:
    """Return a key or a value in the gateway's encoding."""
    return b64encode(text.encode("utf-8", "surrogatepass")).decode()


@lru_cache(maxsize=1024)
def encoded_key(key: str) -> str:
    """Return a key in the gateway's encoding. A client uses the same keys again and again."""
    return encoded(key)


def decoded(text: str) -> str:
    """Decode a key or a value of the gateway. Foreign data that is not UTF-8 is replaced."""
    data = b64decode(text)
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # another program wrote it
        return data.decode("utf-8", "replace")


def after(prefix: str) -> str:
    """Return the end of the range of all keys with a prefix. The prefix must end with an ASCII character."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def session_of(lease: str | int) -> str:
    """Return the name of the session that has a lease."""
    return f"{int(lease):016x}"


def number(said: JsonObject, name: str) -> int:
    """Return a number field of a reply. The gateway leaves zeros out."""
    return int(cast("str", said.get(name, 0)))


def listed(keys: Keys, kvs: Iterable[JsonObject], revision: int) -> Listing:
    """Decode the keys of a name into a listing at `revision`."""
    listing = Listing([], newest=revision)
    for kv in kvs:
        tail = keys.tail_of(decoded(kv["key"]))
        if tail == LAST:
            listing.joined = max(listing.joined, number(kv, "mod_revision"))
        elif tail[:1] in KINDS:
            entry = entry_of(tail, kv, revision)
            listing.entries.append(entry)
            if entry.kind is Kind.CONTENDER:
                listing.joined = max(listing.joined, entry.position)
        else:
            refuse_later(tail)
    listing.entries.sort(key=lambda entry: (entry.order, entry.position))
    return listing


def refuse_later(tail: str) -> None:
    """Refuse a key that is no entry if it is one of a later form: then its tail begins with the mark of that."""
    forms.check(tail, "an entry in etcd")


def entry_of(tail: str, kv: JsonObject, revision: int) -> EtcdEntry:
    """Decode the key and the value of an entry."""
    kind, position, value = Kind(tail[0]), number(kv, "create_revision"), read_value(kv)
    request_id = value.request or tail[1:]
    entry = EtcdEntry(kind, request_id, position, value.weight, value.capacity, value.before, position, tail)
    entry.revision, entry.text, entry.wall = revision, value.text, value.wall
    if kind is Kind.PLACEHOLDER:
        entry.order = value.place
    elif kind in {Kind.CONTENDER, Kind.LIGHT}:
        entry.session = session_of(kv["lease"]) if "lease" in kv else ""
    return entry


def read_value(kv: JsonObject) -> Written:
    """Decode the value of a key."""
    return Written.read(decoded(kv.get("value", "")))
