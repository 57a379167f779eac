"""The entries of a name, and the pure function that reads who holds it.

An ordered store keeps for each name a list of entries in the order in which they were added. Who holds the name is a
pure function of that list, so all readers agree:

*   A contender holds the name if it and all entries before it fit into the capacity. The entries before it only ever
    become fewer, so a holder stays a holder, and a newcomer never overtakes.
*   The capacity is what the first contender requested, as changed by each later SIZE entry that names the capacity
    before it. A contender that requests another capacity than the name has is *foreign*: it holds nothing and blocks
    the contenders after it, but it is about to withdraw.
*   A LIGHT entry reduces the weight of a contender. A KEPT entry takes room that belongs to no contender.
*   A BLOCK entry whose contender is gone replaces it, with its place and its weight: the lease of the contender ran
    out. It does not count if a KEPT entry stands there already, as after a BLOCK entry that was written twice.

A listing may be old, but it never lacks what was added before the reader's own entry. So no client believes that it
holds a name that it does not hold; an old listing costs at most a second look.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """The kind of an entry. The values are written into stores, and never change."""

    CONTENDER = "c"
    """A holder or a waiter. Belongs to its client's session, and vanishes with it."""
    KEPT = "k"
    """Room that stays taken for a time: a holder released too soon, or a lock delay runs."""
    BLOCK = "b"
    """Tells that a lock delay begins if the holder vanishes. Outlives the session."""
    SIZE = "s"
    """A change of the capacity. Outlives the session."""
    LIGHT = "l"
    """A reduced weight of a contender. Belongs to its client's session."""


@dataclass(slots=True, frozen=True)
class Record:
    """The content of an entry that is to be added."""

    kind: Kind
    request_id: str
    """The request of the contender that it is or concerns: hex digits, dashes, slashes. A SIZE has an id of its own."""
    weight: int = 1
    """How much of the capacity it takes; of LIGHT: the new weight of its contender."""
    capacity: int = 1
    """The capacity that the contender requests; of SIZE: the new capacity of the name."""
    before: int = 0
    """Of SIZE: the capacity to be changed. Of BLOCK: the order of its contender. Of KEPT: 1 if it is a lock delay."""
    keep: float = 0.0
    """Of KEPT and BLOCK: how long it counts, in seconds, from now on or from the detection that the holder vanished."""
    text: str = ""
    """What people read of the entry, and what the store has to know of it. It may change."""
    place: int = 0
    """Of KEPT: the order of the contender that it replaces."""


@dataclass(slots=True)
class Entry:
    """One entry of a name."""

    kind: Kind
    request_id: str
    order: int
    """Its position. Unique within a name, except that a KEPT entry has the order of the contender that it replaces."""
    weight: int = 1
    capacity: int = 1
    before: int = 0
    token: int = 0
    """The fencing token; 0 if this listing does not tell it."""
    key: str = ""
    """The key under which the directory finds the entry again."""
    session: str = ""
    """Of CONTENDER and LIGHT: the session that the entry belongs to."""


@dataclass(slots=True)
class Detail:
    """What a listing may leave out of an entry."""

    text: str
    token: int
    age: float
    """The seconds since it was added, as exact as the clocks of the client and the store agree."""
    session: str = ""
    """The session that the entry belongs to, if any."""


@dataclass(slots=True)
class Listing:
    """The entries of a name at one moment."""

    entries: list[Entry]
    """The entries in their order."""
    joined: int = 0
    """The order of the last contender that ever joined, as far as it is known; 0 if it is not known."""
    newest: int = 0
    """A number that is at least as large as all earlier tokens of the name, and no larger than all later ones."""


@dataclass(slots=True)
class Reading:
    """The meaning of a listing: who holds the name, who waits, and what is left over."""

    capacity: int = 0
    """0: no contender uses the name."""
    line: list[Entry] = field(default_factory=list[Entry])
    """All entries that take room or wait for it, in their order: contenders, KEPT, and BLOCK of vanished contenders."""
    holders: list[Entry] = field(default_factory=list[Entry])
    waiters: list[Entry] = field(default_factory=list[Entry])
    foreign: list[Entry] = field(default_factory=list[Entry])
    """Waiters that requested another capacity than the name had when they joined."""
    kept: list[Entry] = field(default_factory=list[Entry])
    blocks: list[Entry] = field(default_factory=list[Entry])
    """BLOCK entries whose contender has vanished."""
    stale: list[Entry] = field(default_factory=list[Entry])
    """Entries without a meaning, which any client may remove."""

    def place(self, request_id: str) -> int:
        """Return how many waiters stand before a waiter."""
        return next((n for n, waiter in enumerate(self.waiters) if waiter.request_id == request_id), len(self.waiters))

    def holder(self, request_id: str) -> Entry | None:
        """Return the entry of a holder, or None."""
        return next((each for each in self.holders if each.request_id == request_id), None)

    def waiter(self, request_id: str) -> Entry | None:
        """Return the entry of a waiter, or None."""
        return next((each for each in self.waiters if each.request_id == request_id), None)


def read(entries: Sequence[Entry]) -> Reading:
    """Return who holds the name, who waits, and which entries are stale."""
    present = {entry.request_id for entry in entries if entry.kind is Kind.CONTENDER}
    replaced = {entry.order for entry in entries if entry.kind is Kind.KEPT}
    reading = Reading()
    contenders: list[tuple[int, Entry]] = []
    lighter: dict[str, int] = {}
    for entry in entries:
        if entry.kind is Kind.CONTENDER:
            contenders.append((entry.order, entry))
            reading.capacity = reading.capacity or entry.capacity
            if entry.capacity != reading.capacity:
                reading.foreign.append(entry)
        elif entry.kind is Kind.SIZE:
            _resize(reading, entry)
        elif entry.kind is Kind.KEPT:
            contenders.append((entry.order, entry))
            reading.kept.append(entry)
        elif entry.kind is Kind.BLOCK and entry.request_id not in present and entry.before not in replaced:
            _block(reading, entry)
        elif entry.request_id not in present:
            reading.stale.append(entry)
        elif entry.kind is Kind.LIGHT:
            lighter[entry.request_id] = min(entry.weight, lighter.get(entry.request_id, entry.weight))
    contenders += [(block.before, block) for block in reading.blocks]
    reading.line = [entry for _, entry in sorted(contenders, key=lambda place: place[0])]
    _fill(reading, lighter)
    return reading


def _block(reading: Reading, block: Entry) -> None:
    """Record the BLOCK of a vanished contender. A repeated request may have written several: the lightest counts."""
    other = next((each for each in reading.blocks if each.request_id == block.request_id), None)
    if other is None:
        reading.blocks.append(block)
    elif block.weight < other.weight:
        reading.blocks[reading.blocks.index(other)] = block
        reading.stale.append(other)
    else:
        reading.stale.append(block)


def _resize(reading: Reading, size: Entry) -> None:
    if not reading.capacity:  # all earlier contenders have gone
        reading.stale.append(size)
    elif size.before == reading.capacity:
        reading.capacity = size.capacity


def _fill(reading: Reading, lighter: dict[str, int]) -> None:
    """Separate holders from waiters: the first entries that fit hold, and none overtakes an earlier one."""
    taken, full = 0, False
    for entry in reading.line:
        if entry.kind is not Kind.CONTENDER:
            taken += entry.weight
        else:
            entry.weight = min(entry.weight, lighter.get(entry.request_id, entry.weight))
            full = full or taken + entry.weight > reading.capacity or entry in reading.foreign
            taken += entry.weight
            (reading.waiters if full else reading.holders).append(entry)


def to_watch(reading: Reading, waiter: Entry) -> list[Entry]:
    """Return the smallest set of earlier entries of which one must go or get lighter before the waiter can be granted.

    For a lock or a writer it is the predecessor, for a reader the nearest writer before it, for a waiter of a semaphore
    with n permits the n entries before it. So a release wakes one waiter, or all readers, or at most n waiters, however
    many wait.
    """
    before = reading.line[: reading.line.index(waiter)]
    if foreign := [entry for entry in reading.foreign if entry in before]:
        return foreign[-1:]
    room = reading.capacity - waiter.weight
    if alone := [entry for entry in before if entry.weight > room]:
        return alone[-1:]
    watched: list[Entry] = []
    covered = 0
    for entry in sorted(before, key=lambda each: (-each.weight, -each.order)):
        watched.append(entry)
        covered += entry.weight
        if covered > room:
            break
    return watched
