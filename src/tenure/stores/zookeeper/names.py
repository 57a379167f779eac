"""The encoding of names and entries as paths.

A name is a percent-encoded node below the root. An entry is a child of that node. The entry's own name contains all
that a listing needs, so that one list of children is the listing. The server appends a number, which is the entry's
order minus one.
"""

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, unquote

from tenure.contracts import forms
from tenure.stores.ordered import Entry, Kind, Listing, Record
from tenure.stores.zookeeper.library import Stat

CHANNELS = "~channels"
CELLS = "~cells"
FORM = "~form"
"""The parent nodes of all channels and of all cells, and the node of the mark of the stored form (contracts/forms.py).
No name is encoded to these."""

WRAP = 2**32
"""The number after which the server starts anew; it writes the upper half of its numbers as negative ones."""

OURS = frozenset({Kind.CONTENDER, Kind.LIGHT})
"""The kinds of entries that belong to a session."""


@lru_cache(maxsize=256)
def encode(name: str) -> str:
    """Encode a name as one part of a path."""
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


def decode(part: str) -> str | None:
    """Decode a part of a path to a name; None if it is no name."""
    return None if part.startswith("~") else unquote(part)


def stem(record: Record) -> str:
    """Return the node name of an entry without the number that the server appends."""
    request_id = record.request_id.replace("/", ".")
    return f"{record.kind.value}_{request_id}_{record.weight}_{record.capacity}_{record.before}_"


def whole(record: Record) -> str:
    """Return the complete node name of an entry whose order is given."""
    return f"{stem(record)}{record.place - 1:010d}"


def is_placed(record: Record) -> bool:
    """Return whether an entry is written with the order of another entry."""
    return record.kind is Kind.PLACEHOLDER


def read_entry(node: str, since: int = 0) -> Entry | None:
    """Decode the node name of an entry listed at the change `since`; None if another program made the node.

    Raises StoreError if it begins with the mark of a later form.
    """
    try:
        kind, request_id, weight, capacity, before, number = node.split("_")
        order = int(number) + 1
        entry = Entry(Kind(kind), request_id.replace(".", "/"), order, int(weight), int(capacity), int(before))
    except ValueError:
        forms.check(node, "an entry in ZooKeeper")
        return None
    if order < 0:
        entry.order += WRAP
    entry.key = f"{since:x}/{node}"
    return entry


def node_of(entry: Entry) -> str:
    """Return the node name of an entry."""
    return entry.key.partition("/")[2]


def since(entry: Entry) -> int:
    """Return a change that had certainly been made when the entry was listed."""
    return int(entry.key.partition("/")[0] or "0", 16)


def listing(children: Sequence[str], parent: Stat, since: int) -> Listing:
    """Decode the children of a name's node, listed at the change `since`, and the counts in the node's Stat.

    `cversion` counts the children that were added or removed. The number of children ever added is therefore half of
    the sum of that count and of the children that exist.
    """
    entries = [entry for child in children if (entry := read_entry(child, since)) is not None]
    entries.sort(key=lambda each: each.order)
    created = (parent.cversion % WRAP + parent.numChildren) // 2
    return Listing(entries, created, parent.pzxid)


def session_name(number: int) -> str:
    """Return the name of a session, which is its id in hex; "" for no session."""
    return f"{number % 2**64:x}" if number else ""


def write_data(counts_for: float, text: str, *, began: bool = False) -> bytes:
    """Encode the data of an entry: what a listing need not contain."""
    return f"{counts_for!r}{'!' if began else ''}\n{text}".encode()


def read_data(data: bytes) -> tuple[float, bool, str]:
    """Decode how long an entry counts, whether that time has begun, and the text of the entry."""
    head, _, text = data.decode(errors="replace").partition("\n")
    try:
        return float(head.removesuffix("!") or "0"), head.endswith("!"), text
    except ValueError:
        return 0.0, False, text
