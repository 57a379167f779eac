"""An ensemble in memory: what a directory has to be, in the fewest words. Its sessions end when a test says so."""

# ruff: noqa: D102 - the contract of a directory says what each method does

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.runtimes.runtime import Runtime
from holdfast.stores.ordered import Detail, Entry, Kind, Listing, Record, Watcher
from holdfast.stores.ordered.store import CAPABILITIES, OrderedStore
from holdfast.stores.store import StoreSource

TRUST = 25.0
"""For how long a proof is good, in seconds: longer than what tests ask for."""


@dataclass(slots=True)
class Node:
    """An entry, and what belongs to it."""

    entry: Entry
    text: str
    session: str
    made_at: float
    keep: float
    began_at: float = 0.0
    """Of a BLOCK: when somebody first asked for it."""


@dataclass(slots=True)
class Ensemble:
    """What all directories see."""

    mutex: threading.Lock = field(default_factory=threading.Lock)
    names: dict[str, list[Node]] = field(default_factory=dict[str, list[Node]])
    joined: dict[str, int] = field(default_factory=dict[str, int])
    sessions: dict[str, "ModelDirectory"] = field(default_factory=dict[str, "ModelDirectory"])
    watches: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict[str, list[tuple[str, str, str]]])
    """By session: names, keys and requests."""
    counter: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1_000))
    events: int = 0
    """How many watches were fired."""

    def expire(self, session: str) -> None:
        """End a session, as an ensemble does that has not heard of it for too long."""
        with self.mutex:
            directory = self.sessions.pop(session, None)
            self.watches.pop(session, None)
            for name in list(self.names):
                self.remove(name, [node for node in self.names[name] if node.session == session])
        if directory is not None:
            directory.ended(session)

    def remove(self, name: str, nodes: Sequence[Node]) -> None:
        """Remove nodes, and wake who watches them. With the mutex held."""
        self.names[name] = [node for node in self.names.get(name, []) if node not in nodes]
        for node in nodes:
            self.fire(name, node.entry.key)

    def fire(self, name: str, key: str) -> None:
        """Wake who watches this."""
        for session, watches in self.watches.items():
            for watch in [each for each in watches if each[:2] == (name, key)]:
                watches.remove(watch)
                self.events += 1
                self.sessions[session].wake(watch[2])

    def leftovers(self) -> list[Node]:
        """Return all that is there."""
        return [node for nodes in self.names.values() for node in nodes]


class ModelDirectory:
    """One client's session at it."""

    trust = TRUST

    def __init__(self, runtime: Runtime, ensemble: Ensemble) -> None:
        self.proved_at = float("-inf")
        self.lose: dict[str, int] = {}
        """How many replies to what are yet to be lost."""
        self.cut = False
        self._runtime = runtime
        self._ensemble = ensemble
        self._session = ""
        self._watcher: Watcher | None = None

    def session(self) -> str:
        return self._session

    async def open(self, watcher: Watcher, until: float) -> None:
        self._watcher = watcher
        self._begin()

    def _begin(self) -> None:
        self._session = self._runtime.new_id()
        self._ensemble.sessions[self._session] = self
        self._ensemble.watches[self._session] = []
        self.proved_at = self._runtime.now()

    def ended(self, session: str) -> None:
        if session == self._session:
            self._session, self.proved_at = "", float("-inf")
            if self._watcher is not None:
                self._runtime.post(self._watcher.lost)

    def wake(self, request: str) -> None:
        if self._watcher is not None:
            self._runtime.post(partial(self._watcher.woken, request))

    def _reach(self) -> None:
        if self.cut:
            raise StoreUnavailable("the ensemble cannot be reached; ask again")

    def _answer(self, what: str) -> None:
        if self.lose.get(what, 0) > 0:
            self.lose[what] -= 1
            raise OutcomeUnknown("the reply was lost; ask again")

    def _add(self, name: str, record: Record) -> Entry:
        order = record.place if record.kind is Kind.KEPT else next(self._ensemble.counter)
        entry = Entry(record.kind, record.request, order, record.weight, record.capacity, record.before)
        entry.key, entry.token = f"{record.kind}{next(self._ensemble.counter)}", order
        session = self._session if record.kind in {Kind.CONTENDER, Kind.LIGHT} else ""
        entry.session = session
        node = Node(entry, record.text, session, time.monotonic(), record.keep)
        self._ensemble.names.setdefault(name, []).append(node)
        self._ensemble.names[name].sort(key=lambda each: each.entry.order)
        if record.kind is Kind.CONTENDER:
            self._ensemble.joined[name] = order
        return replace(entry)

    def _listing(self, name: str) -> Listing:
        entries = [replace(node.entry, session="") for node in self._ensemble.names.get(name, [])]
        return Listing(entries, self._ensemble.joined.get(name, 0), next(self._ensemble.counter))

    def _find(self, name: str, entry: Entry) -> Node | None:
        return next((node for node in self._ensemble.names.get(name, []) if node.entry.key == entry.key), None)

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        self._reach()
        with self._ensemble.mutex:
            if not self._session:
                self._begin()
            sent = self._runtime.now()
            there = [node for node in self._ensemble.names.get(name, []) if node.entry.request == record.request]
            mine = [node for node in there if node.session == self._session]
            entry = replace(mine[0].entry) if mine else self._add(name, record)
            listing = self._listing(name)
        self._answer("join")
        self.proved_at = sent
        return entry, listing

    async def withdraw(self, name: str, request: str, entry: Entry | None, until: float) -> bool:
        self._reach()
        with self._ensemble.mutex:
            nodes = self._ensemble.names.get(name, [])
            there = [each for each in nodes if each.entry.request == request and each.entry.kind is Kind.CONTENDER]
            self._ensemble.remove(name, there)
        self._answer("withdraw")
        return bool(there)

    async def look(self, name: str, until: float) -> Listing:
        self._reach()
        with self._ensemble.mutex:
            if self._session:
                self.proved_at = self._runtime.now()
            return self._listing(name)

    async def change(self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float) -> bool:
        self._reach()
        with self._ensemble.mutex:
            nodes = [self._find(name, entry) for entry in remove]
            there = [node for node in nodes if node is not None]
            if len(there) == len(remove):
                self._ensemble.remove(name, there)
                for record in add:
                    self._add(name, record)
        self._answer("change")
        return len(there) == len(remove)

    async def rewrite(self, name: str, entry: Entry, text: str, until: float) -> bool:
        self._reach()
        with self._ensemble.mutex:
            node = self._find(name, entry)
            if node is not None:
                node.text = text
                self._ensemble.fire(name, entry.key)
            return node is not None

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        with self._ensemble.mutex:
            for entry in entries:
                self._ensemble.fire(name, entry.key)

    async def details(self, name: str, entries: Sequence[Entry], until: float) -> list[Detail | None]:
        self._reach()
        with self._ensemble.mutex:
            nodes = [self._find(name, entry) for entry in entries]
            now = time.monotonic()
            return [
                None if node is None else Detail(node.text, node.entry.token, now - node.made_at, node.session)
                for node in nodes
            ]

    async def watch(self, name: str, request: str, entries: Sequence[Entry], until: float) -> bool:
        self._reach()
        with self._ensemble.mutex:
            watches = self._ensemble.watches.get(self._session)
            if watches is None:
                raise StoreUnavailable("the session is over; ask again")
            watches[:] = [watch for watch in watches if watch[2] != request]
            if not all(self._find(name, entry) for entry in entries):
                return False
            watches += [(name, entry.key, request) for entry in entries]
            return True

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        self._reach()
        now = time.monotonic()
        with self._ensemble.mutex:
            node = self._find(name, entry)
            if node is None:
                return 0.0
            if node.entry.kind is Kind.BLOCK:
                node.began_at = node.began_at or now
            left = (node.began_at or node.made_at) + node.keep - now
            if left <= 0.0:
                self._ensemble.remove(name, [node])
            return max(0.0, left)

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        self._reach()
        with self._ensemble.mutex:
            if not self._session:
                return [False] * len(entries)
            self.proved_at = self._runtime.now()
            nodes = [self._find(name, entry) for name, entry in entries]
            return [node is not None and node.session == self._session for node in nodes]

    async def keep_alive(self, until: float) -> None:
        self._reach()

    async def names(self, prefix: str, until: float) -> list[str]:
        with self._ensemble.mutex:
            return sorted(name for name, nodes in self._ensemble.names.items() if nodes and name.startswith(prefix))

    async def tell(self, session: str, message: str, until: float) -> None:
        directory = self._ensemble.sessions.get(session)
        if directory is not None and (watcher := directory._watcher) is not None:
            directory._runtime.post(partial(watcher.told, message))

    async def close(self) -> None:
        if self._session:
            session, self._watcher = self._session, None
            self._ensemble.expire(session)

    def abandon(self) -> None: ...


def model_source(ensemble: Ensemble | None = None, made: Callable[[ModelDirectory], None] | None = None) -> StoreSource:
    """Return a store that stands on such an ensemble; `made` is told of each directory."""
    shared = ensemble or Ensemble()

    def make(runtime: Runtime) -> OrderedStore:
        directory = ModelDirectory(runtime, shared)
        if made is not None:
            made(directory)
        return OrderedStore(runtime, directory)

    return StoreSource("an ensemble in memory", CAPABILITIES, make)
