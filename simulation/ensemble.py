"""An ensemble in memory: sessions and ordered entries, which ZooKeeper and etcd have in common, with one clock.

The ensemble carries out one operation after another, as a group of servers with consensus does for its clients. The
network, with its late and lost messages, is simulated elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tenure.stores.ordered import Detail, Entry, Kind, Listing, Record

Push = Callable[[str, str], None]
"""Sends an event to a session: "woken" and a request, "told" and a message, or "lost"."""


@dataclass(slots=True)
class Kept:
    """An entry with its text and its times."""

    entry: Entry
    text: str
    made_at: float
    counts_for: float
    began_at: float = -1.0
    """The time of the first request for a BLOCK entry."""


@dataclass(slots=True)
class Session:
    """A client's session."""

    ends_at: float
    length: float
    push: Push
    watches: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """The watches: name, key and request of each."""


class Ensemble:
    """The state of all names and sessions."""

    def __init__(self, clock: Callable[[], float], changed: Callable[[str], None]) -> None:
        """Use `clock`, in seconds; call `changed` with each name whose state changes."""
        self.names: dict[str, list[Kept]] = {}
        self.sessions: dict[str, Session] = {}
        self.joined: dict[str, int] = {}
        self.events = 0
        """The number of wake-ups."""
        self._clock = clock
        self._changed = changed
        self._count = 1_000
        self._withdrawn: set[str] = set()

    def _next(self) -> int:
        self._count += 1
        return self._count

    # -- sessions ------------------------------------------------------------------------------------------

    def begin(self, session: str, length: float, push: Push) -> None:
        """Begin a session that ends after `length` seconds without a renewal."""
        self.sessions[session] = Session(self._clock() + length, length, push)

    def renew(self, session: str) -> bool:
        """Renew a session; return False if it has ended."""
        self.expire()
        known = self.sessions.get(session)
        if known is not None:
            known.ends_at = max(known.ends_at, self._clock() + known.length)
            for name, there in self.names.items():
                if any(kept.entry.session == session for kept in there):
                    self._changed(name)
        return known is not None

    def expire(self) -> None:
        """End the sessions that were not renewed in time."""
        for session in [each for each, known in self.sessions.items() if known.ends_at <= self._clock()]:
            self.end(session)

    def end(self, session: str) -> None:
        """End a session, and remove its entries."""
        known = self.sessions.pop(session, None)
        for name, kept in list(self.names.items()):
            self._remove(name, [each for each in kept if each.entry.session == session])
        if known is not None:
            known.push("lost", session)

    # -- entries -------------------------------------------------------------------------------------------

    def join(self, session: str, name: str, record: Record) -> tuple[Entry, Listing] | None:
        """Add a contender unless it exists; return None if its request was withdrawn or the session has ended."""
        self.expire()
        if session not in self.sessions or record.request_id in self._withdrawn:
            return None
        there = [each for each in self._of(name, record.request_id) if each.entry.session == session]
        entry = there[0].entry if there else self._add(session, name, record)
        self._changed(name)
        return replace(entry), self.listing(name)

    def withdraw_join(self, name: str, request_id: str) -> bool:
        """Remove a contender, and refuse its request from now on."""
        self.expire()
        self._withdrawn.add(request_id)
        there = self._of(name, request_id)
        self._remove(name, there)
        return bool(there)

    def forgive(self, request_id: str) -> None:
        """Accept a withdrawn request again, for none of its messages is under way."""
        self._withdrawn.discard(request_id)

    def change(
        self, session: str, name: str, remove: Sequence[Entry], add: Sequence[Record], beside: Entry | None = None
    ) -> bool:
        """Remove and add entries in one step, if `beside` exists."""
        self.expire()
        if beside is not None and self._find(name, beside) is None:
            return False
        there = [kept for entry in remove if (kept := self._find(name, entry)) is not None]
        if len(there) < len(remove):
            return False
        self.names[name] = [kept for kept in self.names.get(name, []) if kept not in there]
        for record in add:
            self._add(session, name, record)
        self._changed(name)
        for kept in there:
            self._fire(name, kept.entry.key)
        return True

    def rewrite(self, name: str, entry: Entry, text: str) -> bool:
        """Change the text of an entry."""
        self.expire()
        kept = self._find(name, entry)
        if kept is not None:
            kept.text = text
            self._fire(name, entry.key)
        return kept is not None

    def pass_over(self, name: str, entry: Entry, text: str) -> bool:
        """Remove a contender if its text is unchanged."""
        self.expire()
        kept = self._find(name, entry)
        if kept is None or kept.text != text:
            return False
        self._remove(name, [kept])
        return True

    def stir(self, name: str, entries: Sequence[Entry]) -> None:
        """Wake the requests that watch these entries."""
        for entry in entries:
            self._fire(name, entry.key)

    def watch(self, session: str, name: str, request_id: str, entries: Sequence[Entry]) -> bool:
        """Wake a request when one of these entries is removed; return False if one is missing already."""
        self.expire()
        known = self.sessions.get(session)
        if known is None:
            return False
        known.watches = [watch for watch in known.watches if watch[2] != request_id]
        if not all(self._find(name, entry) for entry in entries):
            return False
        known.watches += [(name, entry.key, request_id) for entry in entries]
        return True

    def tell(self, session: str, message: str) -> None:
        """Send a message to a session."""
        known = self.sessions.get(session)
        if known is not None:
            known.push("told", message)

    # -- queries -------------------------------------------------------------------------------------------

    def listing(self, name: str) -> Listing:
        """Return the entries of a name."""
        self.expire()
        entries = [replace(kept.entry, session="") for kept in self.names.get(name, [])]
        return Listing(entries, self.joined.get(name, 0), self._next())

    def details(self, name: str, entries: Sequence[Entry]) -> list[Detail | None]:
        """Return the details of entries; None for an entry that is gone."""
        self.expire()
        found = [self._find(name, entry) for entry in entries]
        return [None if kept is None else self._detail(kept) for kept in found]

    def _detail(self, kept: Kept) -> Detail:
        return Detail(kept.text, kept.entry.position, self._clock() - kept.made_at, kept.entry.session)

    def check(self, session: str, entries: Sequence[tuple[str, Entry]]) -> list[bool]:
        """Tell which entries exist in this session, and renew the session."""
        alive = self.renew(session)
        found = [self._find(name, entry) for name, entry in entries]
        return [alive and kept is not None and kept.entry.session == session for kept in found]

    def remains(self, name: str, entry: Entry) -> float:
        """Return for how long an entry remains valid; remove it if that time is over."""
        self.expire()
        kept = self._find(name, entry)
        if kept is None:
            return 0.0
        if kept.entry.kind is Kind.BLOCK and kept.began_at < 0.0:
            kept.began_at = self._clock()
            self._changed(name)
        left = self.ends_at(kept) - self._clock()
        if left <= 0.0:
            self._remove(name, [kept])
        return max(0.0, left)

    def ends_at(self, kept: Kept) -> float:
        """Return when a PLACEHOLDER or BLOCK entry ends, by the clock. A BLOCK without a request so far begins now."""
        if kept.entry.kind is Kind.BLOCK and kept.began_at < 0.0:
            return self._clock() + kept.counts_for
        return (kept.began_at if kept.began_at >= 0.0 else kept.made_at) + kept.counts_for

    def in_use(self, prefix: str) -> list[str]:
        """Return the names with entries."""
        return sorted(name for name, kept in self.names.items() if kept and name.startswith(prefix))

    # -- internal ------------------------------------------------------------------------------------------

    def _of(self, name: str, request_id: str) -> list[Kept]:
        kept = self.names.get(name, [])
        return [each for each in kept if each.entry.request_id == request_id and each.entry.kind is Kind.CONTENDER]

    def _find(self, name: str, entry: Entry) -> Kept | None:
        return next((kept for kept in self.names.get(name, []) if kept.entry.key == entry.key), None)

    def _add(self, session: str, name: str, record: Record) -> Entry:
        order = record.place if record.kind is Kind.PLACEHOLDER else self._next()
        entry = Entry(record.kind, record.request_id, order, record.weight, record.capacity, record.before, order)
        entry.key = f"{record.kind}{self._next()}"
        entry.session = session if record.kind in {Kind.CONTENDER, Kind.LIGHT} else ""
        self.names.setdefault(name, []).append(Kept(entry, record.text, self._clock(), record.counts_for))
        self.names[name].sort(key=lambda kept: kept.entry.order)
        if record.kind is Kind.CONTENDER:
            self.joined[name] = order
        return entry

    def _remove(self, name: str, gone: Sequence[Kept]) -> None:
        if not gone:
            return
        self.names[name] = [kept for kept in self.names.get(name, []) if kept not in gone]
        self._changed(name)
        for kept in gone:
            self._fire(name, kept.entry.key)

    def _fire(self, name: str, key: str) -> None:
        for known in list(self.sessions.values()):
            for watch in [each for each in known.watches if each[:2] == (name, key)]:
                if watch in known.watches:  # another watch may have woken the request, which is woken once
                    known.watches = [each for each in known.watches if each[2] != watch[2]]
                    self.events += 1
                    known.push("woken", watch[2])
