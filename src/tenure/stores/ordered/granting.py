"""Who holds a name in an ordered store: a pure function of the list of the name's entries.

All clients list the entries in the order in which they were added, so all decide the same:

*   A contender holds the name if it and all entries before it fit into the capacity. The entries before it only ever
    become fewer, so a holder stays a holder, and a newcomer never overtakes.
*   The capacity is what the first contender requested, as changed by each later SIZE entry that names the capacity
    before it. A contender that requests another capacity than the name has is *foreign*: it holds nothing and blocks
    the contenders after it, but it is about to withdraw.
*   A LIGHT entry reduces the weight of a contender. A PLACEHOLDER takes room that belongs to no contender.
*   A BLOCK entry whose contender is gone replaces it, with its place and its weight: the lease of the contender ran
    out. It does not count if a PLACEHOLDER entry stands there already, as after a BLOCK entry that was written twice.

A listing may be old, but it never lacks what was added before the reader's own entry. So no client believes that it
holds a name that it does not hold; an old listing costs at most a second look.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tenure.stores.ordered.entries import Entry, Kind


@dataclass(slots=True)
class Decision:
    """Who holds a name, who waits for it, and which entries are left over."""

    capacity: int = 0
    """0: no contender uses the name."""
    line: list[Entry] = field(default_factory=list[Entry])
    """The entries that take room or wait for it, in order: CONTENDER, PLACEHOLDER, and BLOCK of vanished contenders."""
    holders: list[Entry] = field(default_factory=list[Entry])
    waiters: list[Entry] = field(default_factory=list[Entry])
    foreign: list[Entry] = field(default_factory=list[Entry])
    """Waiters that requested another capacity than the name had when they joined."""
    placeholders: list[Entry] = field(default_factory=list[Entry])
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


def decide(entries: Sequence[Entry]) -> Decision:
    """Decide who holds the name and who waits, and which entries are stale."""
    present = {entry.request_id for entry in entries if entry.kind is Kind.CONTENDER}
    replaced = {entry.order for entry in entries if entry.kind is Kind.PLACEHOLDER}
    decision = Decision()
    contenders: list[tuple[int, Entry]] = []
    lighter: dict[str, int] = {}
    for entry in entries:
        if entry.kind is Kind.CONTENDER:
            contenders.append((entry.order, entry))
            decision.capacity = decision.capacity or entry.capacity
            if entry.capacity != decision.capacity:
                decision.foreign.append(entry)
        elif entry.kind is Kind.SIZE:
            _resize(decision, entry)
        elif entry.kind is Kind.PLACEHOLDER:
            contenders.append((entry.order, entry))
            decision.placeholders.append(entry)
        elif entry.kind is Kind.BLOCK and entry.request_id not in present and entry.before not in replaced:
            _block(decision, entry)
        elif entry.request_id not in present:
            decision.stale.append(entry)
        elif entry.kind is Kind.LIGHT:
            lighter[entry.request_id] = min(entry.weight, lighter.get(entry.request_id, entry.weight))
    contenders += [(block.before, block) for block in decision.blocks]
    decision.line = [entry for _, entry in sorted(contenders, key=lambda place: place[0])]
    _fill(decision, lighter)
    return decision


def _block(decision: Decision, block: Entry) -> None:
    """Record the BLOCK of a vanished contender. A repeated request may have written several: the lightest counts."""
    other = next((each for each in decision.blocks if each.request_id == block.request_id), None)
    if other is None:
        decision.blocks.append(block)
    elif block.weight < other.weight:
        decision.blocks[decision.blocks.index(other)] = block
        decision.stale.append(other)
    else:
        decision.stale.append(block)


def _resize(decision: Decision, size: Entry) -> None:
    if not decision.capacity:  # all earlier contenders have gone
        decision.stale.append(size)
    elif size.before == decision.capacity:
        decision.capacity = size.capacity


def _fill(decision: Decision, lighter: dict[str, int]) -> None:
    """Separate holders from waiters: the first entries that fit hold, and none overtakes an earlier one."""
    taken, full = 0, False
    for entry in decision.line:
        if entry.kind is not Kind.CONTENDER:
            taken += entry.weight
        else:
            entry.weight = min(entry.weight, lighter.get(entry.request_id, entry.weight))
            full = full or taken + entry.weight > decision.capacity or entry in decision.foreign
            taken += entry.weight
            (decision.waiters if full else decision.holders).append(entry)


def to_watch(decision: Decision, waiter: Entry) -> list[Entry]:
    """Return the smallest set of earlier entries of which one must go or get lighter before the waiter can be granted.

    For a lock or a writer it is the predecessor, for a reader the nearest writer before it, for a waiter of a semaphore
    with n permits the n entries before it. So a release wakes one waiter, or all readers, or at most n waiters, however
    many wait, and the one that `to_hear_of_grants` adds.
    """
    before = decision.line[: decision.line.index(waiter)]
    if foreign := [entry for entry in decision.foreign if entry in before]:
        return foreign[-1:]
    room = decision.capacity - waiter.weight
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


def to_hear_of_grants(decision: Decision, watched: Sequence[Entry]) -> list[Entry]:
    """Return what else the waiter that watches `watched` has to watch, to hear when the waiters among these hold.

    It is empty unless they are the next to hold the name. A waiter that is dead when its turn comes tells nobody that
    it holds, and whoever waits behind it counts its ttl from then on. For a lock this wakes a second waiter at each
    release: the one that was right behind the first when it last looked.
    """
    if not decision.waiters:
        return []
    first = decision.waiters[0].order
    waiting = [entry for entry in watched if _waits(entry, first)]
    if not waiting:
        return []
    more = to_watch(decision, max(waiting, key=lambda entry: entry.order))
    return [] if any(_waits(entry, first) for entry in more) else [entry for entry in more if entry not in watched]


def _waits(entry: Entry, first: int) -> bool:
    return entry.kind is Kind.CONTENDER and entry.order >= first
