"""The entries of a name, and how they are read.

All that a store of this kind knows of a name is a list of entries in the order in which they were added. Who holds the
name is a pure function of that list, the same for whoever reads it:

*   A contender holds if all that stand before it, and it itself, fit into the capacity. Who stands before it only ever
    becomes less, so a holder stays one; and a newcomer never overtakes.
*   The capacity is what the first contender asked for, as changed by each SIZE entry after it that knew the one before.
    Who asked for another one than there was when it came is *foreign*: it holds nothing, and holds up who came after
    it; it is just about to leave.
*   A LIGHT entry makes a contender lighter, a KEPT one takes room that belongs to nobody.
*   A BLOCK whose contender is gone without it takes the place and the room of that one, whose lease ran out; unless a
    KEPT one stands there already, as after a BLOCK that was written twice.

A list may be old, but never lacks what was added before the reader's own entry: so nobody believes to hold who does
not, and it costs at most a second look.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What an entry is. The values are written into stores, and never change."""

    CONTENDER = "c"
    """Somebody who holds or waits. Belongs to its client's session, and vanishes with it."""
    KEPT = "k"
    """Room that is taken until a time is over: a holder was done too soon, or a lock delay runs."""
    BLOCK = "b"
    """Says that a holder wants a lock delay, should it vanish. Outlives the session."""
    SIZE = "s"
    """A change of the capacity. Outlives the session."""
    LIGHT = "l"
    """A contender is content with less. Belongs to its client's session."""


@dataclass(slots=True, frozen=True)
class Record:
    """What is written to make an entry."""

    kind: Kind
    request_id: str
    """The contender that it is or concerns. Hex digits, dashes and slashes; of SIZE: one of its own."""
    weight: int = 1
    """How much of the capacity it takes; of LIGHT: from now on."""
    capacity: int = 1
    """What it asks for; of SIZE: what is to hold from now on."""
    before: int = 0
    """Of SIZE: the capacity to be changed. Of BLOCK: the order of its contender. Of KEPT: 1 if it is a lock delay."""
    keep: float = 0.0
    """Of KEPT and BLOCK: for how long, in seconds: from now on, or from when the holder is found to have vanished."""
    text: str = ""
    """What people are to read, and what the store wants to know of it. May change."""
    place: int = 0
    """Of KEPT: the order that it is to have, that of the contender which it replaces."""


@dataclass(slots=True)
class Entry:
    """One entry of a name."""

    kind: Kind
    request_id: str
    order: int
    """Where it stands. No two of a name have the same, but a KEPT one, which takes the place of what it replaces."""
    weight: int = 1
    capacity: int = 1
    before: int = 0
    token: int = 0
    """The fencing token; 0 if this listing does not tell it."""
    key: str = ""
    """How the directory finds it again."""
    session: str = ""
    """Of one that was joined: the session that it belongs to."""


@dataclass(slots=True)
class Detail:
    """What a listing need not tell of an entry."""

    text: str
    token: int
    age: float
    """How long ago it was added, in seconds, as far as the clocks of client and store agree."""
    session: str = ""
    """The session that it belongs to, if any."""


@dataclass(slots=True)
class Listing:
    """The entries of a name at one moment."""

    entries: list[Entry]
    """In their order."""
    joined: int = 0
    """The order of the last contender that ever joined, as far as it is known; 0: not known."""
    newest: int = 0
    """A number that no token of the name exceeds so far, and no later one falls short of."""


@dataclass(slots=True)
class Reading:
    """What a listing means."""

    capacity: int = 0
    """0: nobody uses the name."""
    line: list[Entry] = field(default_factory=list[Entry])
    """All that takes room, or would, in its order: contenders, what is kept, and the blocks of those who vanished."""
    holders: list[Entry] = field(default_factory=list[Entry])
    waiters: list[Entry] = field(default_factory=list[Entry])
    foreign: list[Entry] = field(default_factory=list[Entry])
    """Waiters that asked for another capacity than there was when they came."""
    kept: list[Entry] = field(default_factory=list[Entry])
    blocks: list[Entry] = field(default_factory=list[Entry])
    """Those whose contender has vanished."""
    stale: list[Entry] = field(default_factory=list[Entry])
    """What means nothing any more, and may be removed by anybody."""

    def place(self, request_id: str) -> int:
        """Return how many wait before a waiter."""
        return next((n for n, waiter in enumerate(self.waiters) if waiter.request_id == request_id), len(self.waiters))

    def holder(self, request_id: str) -> Entry | None:
        """Return a holder."""
        return next((each for each in self.holders if each.request_id == request_id), None)

    def waiter(self, request_id: str) -> Entry | None:
        """Return a waiter."""
        return next((each for each in self.waiters if each.request_id == request_id), None)


def read(entries: Sequence[Entry]) -> Reading:
    """Tell who holds, who waits, and what is left over."""
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
    """Note what a contender left behind; of several of one, as of a repeated request, the lightest."""
    other = next((each for each in reading.blocks if each.request_id == block.request_id), None)
    if other is None:
        reading.blocks.append(block)
    elif block.weight < other.weight:
        reading.blocks[reading.blocks.index(other)] = block
        reading.stale.append(other)
    else:
        reading.stale.append(block)


def _resize(reading: Reading, size: Entry) -> None:
    if not reading.capacity:  # all who were there before have gone
        reading.stale.append(size)
    elif size.before == reading.capacity:
        reading.capacity = size.capacity


def _fill(reading: Reading, lighter: dict[str, int]) -> None:
    """Tell holders from waiters: as many as fit, and nobody before who stands before it."""
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
    """Return the fewest of those before a waiter of which one has to go, or get lighter, before it can be granted.

    For a lock or a writer that is its predecessor, for a reader the nearest writer before it, for one who wants one of
    n permits the n before it: so what is released wakes one, or all readers, or at most n, however many wait.
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
