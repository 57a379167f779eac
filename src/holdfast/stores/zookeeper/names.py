"""How names and entries are written as paths.

A name is a node below the root, percent-encoded. An entry is a child of it, whose own name tells all that a listing
needs, so that one list of children is the listing. The number that the server appends is one less than its order.
"""

from collections.abc import Sequence
from urllib.parse import quote, unquote

from holdfast.stores.ordered import Entry, Kind, Listing, Record
from holdfast.stores.zookeeper.library import Stat

CHANNELS = "~channels"
"""Where the channels are: no name is ever encoded to this."""

WRAP = 2**32
"""Where the numbers of a server begin anew; it writes the upper half of them as negative ones."""

OURS = frozenset({Kind.CONTENDER, Kind.LIGHT})
"""What belongs to a session."""


def encode(name: str) -> str:
    """Write a name as one part of a path."""
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


def decode(part: str) -> str | None:
    """Read a part of a path as a name; None if it is none."""
    return None if part.startswith("~") else unquote(part)


def stem(record: Record) -> str:
    """Write an entry but for its number."""
    request_id = record.request_id.replace("/", ".")
    return f"{record.kind.value}_{request_id}_{record.weight}_{record.capacity}_{record.before}_"


def whole(record: Record) -> str:
    """Write an entry that has a place of its own."""
    return f"{stem(record)}{record.place - 1:010d}"


def is_placed(record: Record) -> bool:
    """Tell whether an entry is to be written with the order of another."""
    return record.kind is Kind.KEPT


def read_entry(node: str, since: int = 0) -> Entry | None:
    """Read an entry; None if it is none of ours. It was listed when the last change was `since`."""
    try:
        kind, request_id, weight, capacity, before, number = node.split("_")
        order = int(number) + 1
        entry = Entry(Kind(kind), request_id.replace(".", "/"), order, int(weight), int(capacity), int(before))
    except ValueError:
        return None
    if order < 0:
        entry.order += WRAP
    entry.key = f"{since:x}/{node}"
    return entry


def node_of(entry: Entry) -> str:
    """Return the node of an entry."""
    return entry.key.partition("/")[2]


def since(entry: Entry) -> int:
    """Return a change that was certainly there when the entry was listed."""
    return int(entry.key.partition("/")[0] or "0", 16)


def listing(children: Sequence[str], parent: Stat, since: int) -> Listing:
    """Read what a name has, and what its node says: how many children it ever had, and when that last changed.

    A server tells of a node how often a child came or went; half of that, and half of those that are there, came.
    """
    entries = [entry for child in children if (entry := read_entry(child, since)) is not None]
    entries.sort(key=lambda each: each.order)
    created = (parent.cversion % WRAP + parent.numChildren) // 2
    return Listing(entries, created, parent.pzxid)


def session_name(number: int) -> str:
    """Write the id of a session."""
    return f"{number % 2**64:x}" if number else ""


def write_data(keep: float, text: str, *, began: bool = False) -> bytes:
    """Write what a listing need not tell."""
    return f"{keep!r}{'!' if began else ''}\n{text}".encode()


def read_data(data: bytes) -> tuple[float, bool, str]:
    """Read for how long an entry counts, whether that has begun, and its text."""
    head, _, text = data.decode(errors="replace").partition("\n")
    try:
        return float(head.removesuffix("!") or "0"), head.endswith("!"), text
    except ValueError:
        return 0.0, False, text
