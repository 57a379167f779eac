"""The directory in ZooKeeper: the requests of each operation, and the meaning of the replies.

A name is a node, and an entry is a child of it, which belongs to a client's session or outlives it. The change that
created an entry is its token. A request that goes through the leader proves that the session lives (`proofs.py`). So
each listing follows a sync or the creation of an entry, in the same round trip.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

from holdfast.contracts.messages import Page
from holdfast.contracts.runtime import Runtime
from holdfast.errors import OutcomeUnknown, StoreError, StoreUnavailable
from holdfast.stores.ordered import Detail, Entry, Kind, Listing, Record, Watcher
from holdfast.stores.zookeeper import names
from holdfast.stores.zookeeper.channel import path_of, read_box, write_box
from holdfast.stores.zookeeper.clock import Clock
from holdfast.stores.zookeeper.errors import ANSWERS, Code, explain
from holdfast.stores.zookeeper.library import KazooClient, KazooEvent, Result, Stat, codes
from holdfast.stores.zookeeper.link import Answers, ZooKeeperHearing, ZooKeeperLink
from holdfast.stores.zookeeper.names import OURS, node_of
from holdfast.stores.zookeeper.options import ZooKeeperAccess
from holdfast.stores.zookeeper.proofs import NEVER, Proofs
from holdfast.stores.zookeeper.watches import ZooKeeperWatches

UNUSED = 60.0
"""After how many seconds without use the empty node of a name that this client used is removed."""

MANY = 200
"""How many requests are sent at once, at most."""


class ZooKeeperDirectory:
    """One client's session in ZooKeeper, and its view of all entries."""

    def __init__(self, runtime: Runtime, access: ZooKeeperAccess) -> None:
        """Prepare the directory; nothing is connected yet."""
        self._runtime = runtime
        self._access = access
        self._root = access.root
        self._title = access.title
        self._proofs = Proofs(access.options["timeout"])
        self.trust, self.proved_at = self._proofs.trust, NEVER
        self._link = ZooKeeperLink(
            runtime,
            access,
            ZooKeeperHearing(self._began, self._resumed, self._suspended, self._ended, self._told),
        )
        self._watcher: Watcher | None = None
        self._clock = Clock(runtime.now)
        self._mutex = runtime.mutex()
        self._watches = ZooKeeperWatches(runtime.mutex())
        self._joined: dict[tuple[str, str], Entry | None] = {}
        """The contenders of this session, by name and request; None if a join got no reply."""
        self._used: dict[str, float] = {}
        """The instant at which each name was last used."""

    # -- the session -----------------------------------------------------------------------------------------

    def session(self) -> str:
        """Return the id of the session; "" if there is none."""
        return names.session_name(self._link.session)

    async def open(self, watcher: Watcher, until: float) -> None:
        """Connect and begin a session."""
        self._watcher = watcher
        await self._link.ready(until)

    async def close(self) -> None:
        """Remove the empty nodes of names that this client used, and end the session."""
        self._watcher = None
        if self._link.session and self._used:
            with contextlib.suppress(StoreError):
                await self._tidy(list(self._used), self._runtime.now() + 1.0)
        await self._link.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._watcher = None
        self._link.abandon()

    async def keep_alive(self, until: float) -> None:
        """Send the server a request, because kazoo's own pings may be too far apart; remove unused nodes."""
        answers = await self._link.exchange(until, lambda client: [client.exists_async(self._root)], writes=False)
        self._contact(answers)
        now = self._runtime.now()
        if unused := [name for name, used in list(self._used.items()) if used < now - UNUSED]:
            await self._tidy(unused, until)

    async def _tidy(self, unused: Sequence[str], until: float) -> None:
        """Remove the empty nodes of names. A client that joins a name at this moment creates its node again."""
        for name in unused:
            self._used.pop(name, None)
        paths = [self._path(name) for name in unused]
        await self._each(until, paths, lambda client, path: client.delete_async(path), writes=True)

    def _began(self, _session: int, timeout: float, opened_at: float) -> None:
        with self._mutex:
            self._proofs.begin(timeout, opened_at)
            self.trust, self.proved_at = self._proofs.trust, self._proofs.proved_at

    def _resumed(self, opened_at: float) -> None:
        with self._mutex:
            self._proofs.resume(opened_at)
        if self._watcher is not None:
            self._watcher.gap()

    def _suspended(self) -> None:
        with self._mutex:
            self._proofs.suspend()

    def _ended(self) -> None:
        with self._mutex:
            self._proofs.end()
            self.proved_at = NEVER
            self._joined.clear()
        self._watches.clear()
        if self._watcher is not None:
            self._watcher.lost()

    def _told(self, message: str) -> None:
        if self._watcher is not None:
            self._watcher.told(message)

    def _contact(self, answers: Answers) -> None:
        """Record that the server has heard of the session."""
        with self._mutex:
            if answers.session == self._link.session:
                self._proofs.contact(answers.sent)

    def _proof(self, answers: Answers) -> None:
        """Record that the leader counts the session as alive."""
        with self._mutex:
            if answers.session == self._link.session:
                self._proofs.prove(answers.sent)
                self.proved_at = self._proofs.proved_at

    # -- joining ---------------------------------------------------------------------------------------------

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Add a contender, or find the one that an earlier join added; return its entry and a listing with it."""
        while True:
            await self._link.ready(until)
            found = None
            if (name, record.request_id) in self._joined:
                found = await self._find(name, record.request_id, until)
            if found is None:
                found = await self._add(name, record, until)
            if found is not None and found[0].session == self.session():
                return found
            if self._runtime.now() >= until:
                raise OutcomeUnknown(
                    f"the session at {self._title} ended while the request for {name!r} was under way: try again"
                )

    async def _add(self, name: str, record: Record, until: float) -> tuple[Entry, Listing] | None:
        """Create a contender and list the name in one round trip; None if the caller must try again."""
        parent, mark = self._path(name), (name, record.request_id)
        self._joined[mark] = None  # from now on the store may have it
        self._used[name] = self._runtime.now()

        def send(client: KazooClient) -> list[Result]:
            path, data = f"{parent}/{names.stem(record)}", names.write_data(0.0, record.text)
            create = client.create_async(path, data, ephemeral=True, sequence=True, include_data=True)
            return [create, client.get_children_async(parent, include_data=True)]

        answers = await self._link.exchange(until, send, writes=True)
        made, listed = answers.values
        if isinstance(made, Code) or isinstance(listed, Code):
            self._joined.pop(mark, None)
            await self._make(parent, until)
            return None
        path, stat = made
        entry = self._entry(path.rpartition("/")[2], stat, answers.zxid)
        if entry is None or entry.session != self.session():
            return None
        self._clock.wrote(stat)
        self._proof(answers)
        self._joined[mark] = entry
        listing = self._listing(name, listed, stat.czxid)
        strays = [each for each in listing.entries if _is_of(each, record.request_id) and each.order != entry.order]
        if strays:  # entries of a session that has just ended, or is about to end
            await self._delete(name, strays, until)
            listing = await self.look(name, until)
        return entry, listing

    async def _find(self, name: str, request_id: str, until: float) -> tuple[Entry, Listing] | None:
        """Return the contender of an earlier join and a listing with it; None if this session has none."""
        listing = await self.look(name, until)
        found = [each for each in listing.entries if _is_of(each, request_id)]
        paths = [self._path_of(name, each) for each in found]
        stats = await self._each(until, paths, lambda client, path: client.exists_async(path), writes=False)
        entries = [
            self._entry(node_of(each), stat, names.since(each))
            for each, stat in zip(found, stats, strict=True)
            if stat is not None
        ]
        ours = [each for each in entries if each is not None and each.session == self.session()]
        keep = ours[0] if ours else None
        strays = [each for each in entries if each is not None and (keep is None or each.order != keep.order)]
        if strays:
            await self._delete(name, strays, until)
            listing = await self.look(name, until)
        if keep is None:
            self._joined.pop((name, request_id), None)
            return None
        self._joined[name, request_id] = keep
        return keep, listing

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        """Remove the contender of a request. The server carries out a join under way before it replies to the look."""
        if entry is None:
            listing = await self.look(name, until)
            found = [each for each in listing.entries if _is_of(each, request_id)]
        else:
            found = [entry]
        removed = await self._delete(name, found, until)
        self._joined.pop((name, request_id), None)
        return removed

    async def _delete(self, name: str, entries: Sequence[Entry], until: float) -> bool:
        """Remove entries one by one; return whether one of them existed."""
        self._used[name] = self._runtime.now()  # its node may be empty after this
        paths = [self._path_of(name, entry) for entry in entries]
        answers = await self._each(until, paths, lambda client, path: client.delete_async(path), writes=True)
        return any(not isinstance(answer, Code) for answer in answers)

    async def _make(self, path: str, until: float) -> None:
        """Create a node without data, and the nodes above it."""
        await self._link.exchange(until, lambda client: [client.create_async(path, makepath=True)], writes=True)

    def _entry(self, node: str, stat: Stat, since: int) -> Entry | None:
        entry = names.read_entry(node, since)
        if entry is not None:
            entry.token, entry.session = stat.czxid, names.session_name(stat.ephemeralOwner)
        return entry

    # -- listing ---------------------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Listing:
        """List the entries of a name, after the server has caught up with the leader."""
        parent = self._path(name)
        answers = await self._link.exchange(
            until,
            lambda client: [client.sync_async(parent), client.get_children_async(parent, include_data=True)],
            writes=False,
        )
        self._proof(answers)
        listed = answers.values[1]
        if isinstance(listed, Code):
            return Listing([], 0, answers.zxid)
        return self._listing(name, listed, answers.zxid)

    def _listing(self, name: str, listed: tuple[list[str], Stat], since: int) -> Listing:
        listing = names.listing(*listed, since)
        for entry in listing.entries:
            known = self._joined.get((name, entry.request_id)) if entry.kind is Kind.CONTENDER else None
            if known is not None and known.order == entry.order:
                entry.token = known.token
        return listing

    async def details(self, name: str, entries: Sequence[Entry], until: float) -> list[Detail | None]:
        """Return the details of entries, read from their nodes."""
        if not self._clock.is_fresh():
            with contextlib.suppress(StoreError):  # a login that may only read gets less exact ages
                await self._look_at_the_clock(until)
        paths = [self._path_of(name, entry) for entry in entries]
        found = await self._each(until, paths, lambda client, path: client.get_async(path), writes=False)
        return [None if isinstance(each, Code) else self._detail(*each) for each in found]

    def _detail(self, data: bytes, stat: Stat) -> Detail:
        self._clock.see(stat)
        session = names.session_name(stat.ephemeralOwner)
        return Detail(names.read_data(data)[2], stat.czxid, self._clock.since(stat.ctime), session)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names below the root whose nodes have entries, sorted.

        The first page lists all nodes, because ZooKeeper cannot list a part of them. `rest` contains the nodes that
        were not yet checked for entries.
        """
        found: list[str] = await self._nodes(prefix, until) if rest is None else list(cast("list[str]", rest))
        some = [found.pop() for _ in range(min(MANY, len(found)))]
        paths = [self._path(name) for name in some]
        stats = await self._each(until, paths, lambda client, path: client.exists_async(path), writes=False)
        used = [name for name, stat in zip(some, stats, strict=True) if stat is not None and stat.numChildren]
        return Page(used, found or None)

    async def _nodes(self, prefix: str, until: float) -> list[str]:
        """Return the names that have a node, in descending order."""
        answers = await self._link.exchange(
            until,
            lambda client: [client.sync_async(self._root), client.get_children_async(self._root)],
            writes=False,
        )
        self._proof(answers)
        children = answers.values[1]
        if isinstance(children, Code):
            return []
        found = [name for each in children if (name := names.decode(each)) is not None and name.startswith(prefix)]
        return sorted(found, reverse=True)

    # -- changing --------------------------------------------------------------------------------------------

    async def change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        """Remove and add entries in one transaction; return False if an entry of `remove`, or `beside`, was gone."""
        adds = list(add)
        while remove or adds:
            result = await self._commit(name, remove, adds, until, beside)
            if result is None:
                for entry in remove:
                    if entry.kind is Kind.CONTENDER:
                        self._joined.pop((name, entry.request_id), None)
                return True
            place, code = result
            demanded = len(remove) + (beside is not None)
            if place < demanded:
                if code is not Code.NO_NODE:
                    raise OutcomeUnknown(f"{self._title} refused to remove an entry: try again")
                return False
            if code is Code.NODE_EXISTS:  # an earlier attempt added this entry
                del adds[place - demanded]
            elif code is Code.NO_NODE:
                await self._make(self._path(name), until)
            if self._runtime.now() >= until:
                raise StoreUnavailable(
                    f"a change at {self._title} timed out: try again, or raise `timeout` or `operation_timeout`"
                )
        return True

    async def _commit(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None
    ) -> tuple[int, Code] | None:
        """Send a transaction; return which part of it the server refused, and why, or None."""
        self._used[name] = self._runtime.now()

        def send(client: KazooClient) -> list[Result]:
            transaction = client.transaction()
            if beside is not None:
                transaction.check(self._path_of(name, beside), -1)
            for entry in remove:
                transaction.delete(self._path_of(name, entry))
            for record in add:
                node = names.whole(record) if names.is_placed(record) else names.stem(record)
                transaction.create(
                    f"{self._path(name)}/{node}",
                    names.write_data(record.keep, record.text),
                    ephemeral=record.kind in OURS,
                    sequence=not names.is_placed(record),
                )
            return [transaction.commit_async()]

        answers = await self._link.exchange(until, send, writes=True)
        parts: list[Any] = answers.values[0]
        refused = [(n, code) for n, code in enumerate(codes(parts)) if code in ANSWERS]
        if refused:
            return refused[0][0], Code(refused[0][1])
        errors = [part for part in parts if isinstance(part, Exception)]
        if errors:
            worst = next(
                (each for each, code in zip(parts, codes(parts), strict=True) if code not in {0, -2}), errors[0]
            )
            raise explain(self._access, worst, writes=True)
        self._proof(answers)
        return None

    async def rewrite(self, name: str, entry: Entry, text: str, until: float) -> bool:
        """Write a new text into an entry, and keep the rest of its data."""
        path = self._path_of(name, entry)
        if entry.kind in OURS:
            return not isinstance(await self._set(path, names.write_data(0.0, text), -1, until), Code)
        while True:
            found = await self._get(path, until)
            if found is None:
                return False
            keep, began, _ = names.read_data(found[0])
            if began:  # a write would start the time of the entry again
                return True
            written = await self._set(path, names.write_data(keep, text), found[1].version, until)
            if not isinstance(written, Code):
                return True
            self._in_time(until)

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        """Wake the watchers of entries: write their data once more, unchanged."""
        paths = [self._path_of(name, entry) for entry in entries if entry.kind in OURS]
        found = await self._each(until, paths, lambda client, path: client.get_async(path), writes=False)
        there = {path: each for path, each in zip(paths, found, strict=True) if not isinstance(each, Code)}

        def write(client: KazooClient, path: str) -> Result:
            data, stat = there[path]
            return client.set_async(path, data, stat.version)  # a changed node has woken its watchers already

        await self._each(until, list(there), write, writes=True)

    # -- watching --------------------------------------------------------------------------------------------

    async def watch(self, name: str, request_id: str, entries: Sequence[Entry], until: float) -> bool:
        """Set a watch on each node, and check whether the node has changed since it was listed."""
        paths = [self._path_of(name, entry) for entry in entries]
        self._watches.set(request_id, paths)
        found = await self._each(until, paths, lambda client, path: client.get_async(path, self._fired), writes=False)
        if any(isinstance(each, Code) for each in found):  # no watch is set on a missing node; `exists` would set one
            self._watches.set(request_id, [])
            return False
        stats: list[Stat] = [stat for _, stat in found]
        if any(stat.mzxid > max(names.since(entry), stat.czxid) for entry, stat in zip(entries, stats, strict=True)):
            self._watches.set(request_id, [])
            self._wake([request_id])
        return True

    def _fired(self, event: KazooEvent) -> None:
        """Post a change to the runtime, from kazoo's thread."""
        if event.path is not None:
            self._runtime.post(partial(self._changed, event.path))

    def _changed(self, path: str) -> None:
        self._wake(self._watches.take(path))

    def _wake(self, requests: Iterable[str]) -> None:
        if self._watcher is not None:
            for request_id in requests:
                self._watcher.woken(request_id)

    # -- time ------------------------------------------------------------------------------------------------

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        """Return how long a KEPT or BLOCK entry still counts, by the ensemble's time; remove it if its time is over."""
        path = self._path_of(name, entry)
        while True:
            found = await self._get(path, until)
            if found is None:
                return 0.0
            data, stat = found
            keep, began, text = names.read_data(data)
            if entry.kind is Kind.BLOCK and not began:
                written = await self._set(path, names.write_data(keep, text, began=True), stat.version, until)
                if isinstance(written, Code):  # another client was faster
                    self._in_time(until)
                    continue
                stat = written
            self._clock.see(stat)
            if not self._clock.is_fresh():
                await self._look_at_the_clock(until)
            left = keep - self._clock.since(stat.mtime if entry.kind is Kind.BLOCK else stat.ctime)
            if left <= 0.0:
                await self._delete(name, [entry], until)
            return max(0.0, left)

    async def _look_at_the_clock(self, until: float) -> None:
        """Write the root node, because the reply tells the ensemble's time."""
        written = await self._set(self._root, b"", -1, until)
        if isinstance(written, Code):
            await self._make(self._root, until)

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        """Return for each entry whether it exists in this session, after the server has caught up with the leader."""
        paths = [self._path_of(name, entry) for name, entry in entries]
        session = self._link.session

        def send(client: KazooClient) -> list[Result]:
            return [client.sync_async(self._root), *(client.exists_async(path) for path in paths)]

        answers = await self._link.exchange(until, send, writes=False)
        self._proof(answers)
        stats: list[Stat | None] = answers.values[1:]
        if session != self._link.session:
            return [False] * len(paths)
        return [
            stat is not None and stat.ephemeralOwner == (session if entry.kind in OURS else 0)
            for (_, entry), stat in zip(entries, stats, strict=True)
        ]

    # -- messages --------------------------------------------------------------------------------------------

    async def tell(self, session: str, message: str, until: float) -> None:
        """Append a message to the channel of a session."""
        path = path_of(self._root, session)
        while (found := await self._get(path, until)) is not None:
            data, stat = found
            count, messages = read_box(data)
            written = await self._set(path, write_box(count, [*messages, message]), stat.version, until)
            if written is not Code.BAD_VERSION:
                return
            self._in_time(until)

    # -- requests --------------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._root}/{names.encode(name)}"

    def _path_of(self, name: str, entry: Entry) -> str:
        return f"{self._path(name)}/{node_of(entry)}"

    async def _get(self, path: str, until: float) -> tuple[bytes, Stat] | None:
        """Return the data and the Stat of a node; None if there is no such node."""
        answers = await self._link.exchange(until, lambda client: [client.get_async(path)], writes=False)
        self._contact(answers)
        found = answers.values[0]
        return None if isinstance(found, Code) else found

    async def _set(self, path: str, data: bytes, version: int, until: float) -> Stat | Code:
        answers = await self._link.exchange(until, lambda client: [client.set_async(path, data, version)], writes=True)
        self._proof(answers)
        written: Stat | Code = answers.values[0]
        if not isinstance(written, Code):
            self._clock.wrote(written)
        return written

    async def _each(
        self, until: float, paths: Sequence[str], send: Callable[[KazooClient, str], Result], *, writes: bool
    ) -> list[Any]:
        """Send the same request for several nodes, in parallel; return the replies in order."""
        values: list[Any] = []
        for first in range(0, len(paths), MANY):
            some = paths[first : first + MANY]
            answers = await self._link.exchange(until, partial(_send_each, send, some), writes=writes)
            self._contact(answers)
            values += answers.values
        return values

    def _in_time(self, until: float) -> None:
        """Raise StoreUnavailable if there is no time left for another attempt."""
        if self._runtime.now() >= until:
            raise StoreUnavailable(
                f"other clients of {self._title} changed a node before each attempt to write it: try again"
            )


def _send_each(send: Callable[[KazooClient, str], Result], paths: Sequence[str], client: KazooClient) -> list[Result]:
    return [send(client, path) for path in paths]


def _is_of(entry: Entry, request_id: str) -> bool:
    return entry.kind is Kind.CONTENDER and entry.request_id == request_id
