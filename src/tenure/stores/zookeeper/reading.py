"""The reads: the names in use, the entries of a name, their details, and the ends of timed entries."""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import cast

from tenure.contracts.messages import Page
from tenure.errors import StoreError
from tenure.stores.ordered import Detail, Entry, Kind, Listing
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.errors import Code
from tenure.stores.zookeeper.library import KazooClient, Result, Stat
from tenure.stores.zookeeper.names import OURS
from tenure.stores.zookeeper.nodes import MANY, Clock, ZooKeeperNodes
from tenure.stores.zookeeper.session import ZooKeeperSession


class JoinedContenders:
    """Maps names and requests to the entries of this session's joins."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry | None] = {}
        """The entry is None if a join got no reply."""

    def send(self, name: str, request_id: str) -> None:
        """Record that a join is sent: from now on the store may have a contender of the request."""
        self._entries[name, request_id] = None

    def add(self, name: str, request_id: str, entry: Entry) -> None:
        """Record the entry of a request's contender."""
        self._entries[name, request_id] = entry

    def forget(self, name: str, request_id: str) -> None:
        """Record that the store has no contender of the request."""
        self._entries.pop((name, request_id), None)

    def clear(self) -> None:
        """Forget all contenders, because their session has ended."""
        self._entries.clear()

    def may_have(self, name: str, request_id: str) -> bool:
        """Return whether the store may have a contender of the request."""
        return (name, request_id) in self._entries

    def entry_of(self, name: str, request_id: str) -> Entry | None:
        """Return the entry of a request's contender; None if no reply told it."""
        return self._entries.get((name, request_id))


class ZooKeeperDetails:
    """Reads the data of entries, and tells how much time has passed since they were written."""

    def __init__(self, nodes: ZooKeeperNodes, clock: Clock) -> None:
        """Read the nodes; `clock` estimates the ensemble's time."""
        self._nodes = nodes
        self._clock = clock

    async def details(self, name: str, entries: Sequence[Entry], until: float) -> list[Detail | None]:
        """Return the details of entries, read from their nodes."""
        if not self._clock.is_fresh():
            with contextlib.suppress(StoreError):  # a login that may only read gets less exact ages
                await self._look_at_the_clock(until)
        paths = [self._nodes.path_of(name, entry) for entry in entries]
        found = await self._nodes.each(until, paths, lambda client, path: client.get_async(path), writes=False)
        return [None if isinstance(each, Code) else self._detail(*each) for each in found]

    def _detail(self, data: bytes, stat: Stat) -> Detail:
        self._clock.see(stat)
        session = names.session_name(stat.ephemeralOwner)
        return Detail(names.read_data(data)[2], stat.czxid, self._clock.since(stat.ctime), session)

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        """Return how long a PLACEHOLDER or BLOCK counts, by the ensemble's time; remove it if its time is over."""
        path = self._nodes.path_of(name, entry)
        while True:
            found = await self._nodes.get(path, until)
            if found is None:
                return 0.0
            data, stat = found
            counts_for, began, text = names.read_data(data)
            if entry.kind is Kind.BLOCK and not began:
                written = await self._nodes.set(
                    path, names.write_data(counts_for, text, began=True), stat.version, until
                )
                if isinstance(written, Code):  # another client was faster
                    self._nodes.in_time(until)
                    continue
                stat = written
            self._clock.see(stat)
            if not self._clock.is_fresh():
                await self._look_at_the_clock(until)
            left = counts_for - self._clock.since(stat.mtime if entry.kind is Kind.BLOCK else stat.ctime)
            if left <= 0.0:
                await self._nodes.delete(name, [entry], until)
            return max(0.0, left)

    async def _look_at_the_clock(self, until: float) -> None:
        """Write the root node, because the reply tells the ensemble's time."""
        written = await self._nodes.set(self._nodes.root, b"", -1, until)
        if isinstance(written, Code):
            await self._nodes.make(self._nodes.root, until)


PAGE = MANY
"""How many nodes a page of names checks for entries, at most."""


class ZooKeeperReader:
    """Lists entries and names, after the server has caught up with the leader."""

    def __init__(self, session: ZooKeeperSession, nodes: ZooKeeperNodes, joined: JoinedContenders) -> None:
        """Read the nodes; `joined` tells the positions of this session's contenders."""
        self._session = session
        self._nodes = nodes
        self._joined = joined

    async def look(self, name: str, until: float) -> Listing:
        """List the entries of a name, after the server has caught up with the leader."""
        parent = self._nodes.path(name)
        answers = await self._session.exchange(
            until,
            lambda client: [client.sync_async(parent), client.get_children_async(parent, include_data=True)],
            writes=False,
        )
        self._session.prove(answers)
        listed = answers.values[1]
        if isinstance(listed, Code):
            return Listing([], 0, answers.zxid)
        return self.listing(name, listed, answers.zxid)

    async def look_at_all(self, names: Sequence[str], until: float) -> list[Listing]:
        """List the entries of several names, each after the server has caught up with the leader."""
        listings: list[Listing] = []
        for first in range(0, len(names), MANY):
            some = names[first : first + MANY]
            answers = await self._session.exchange(until, partial(self._list_each, some), writes=False)
            self._session.prove(answers)
            for name, listed in zip(some, answers.values[1:], strict=True):
                gone = isinstance(listed, Code)
                listings.append(Listing([], 0, answers.zxid) if gone else self.listing(name, listed, answers.zxid))
        return listings

    def _list_each(self, names: Sequence[str], client: KazooClient) -> list[Result]:
        paths = [self._nodes.path(name) for name in names]
        return [
            client.sync_async(self._nodes.root),
            *(client.get_children_async(path, include_data=True) for path in paths),
        ]

    def listing(self, name: str, listed: tuple[list[str], Stat], since: int) -> Listing:
        """Decode a list of nodes, and add the positions of this session's contenders."""
        listing = names.listing(*listed, since)
        for entry in listing.entries:
            known = self._joined.entry_of(name, entry.request_id) if entry.kind is Kind.CONTENDER else None
            if known is not None and known.order == entry.order:
                entry.position = known.position
        return listing

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names below the root whose nodes have entries, sorted.

        The first page lists all nodes, because ZooKeeper cannot list a part of them. `rest` contains the nodes that
        were not yet checked for entries.
        """
        found: list[str] = (
            await self._names_with_nodes(prefix, until) if rest is None else list(cast("list[str]", rest))
        )
        some = [found.pop() for _ in range(min(PAGE, len(found)))]
        paths = [self._nodes.path(name) for name in some]
        stats = await self._nodes.each(until, paths, lambda client, path: client.exists_async(path), writes=False)
        used = [name for name, stat in zip(some, stats, strict=True) if stat is not None and stat.numChildren]
        return Page(used, found or None)

    async def _names_with_nodes(self, prefix: str, until: float) -> list[str]:
        """Return the names that have a node, in descending order."""
        answers = await self._session.exchange(
            until,
            lambda client: [client.sync_async(self._nodes.root), client.get_children_async(self._nodes.root)],
            writes=False,
        )
        self._session.prove(answers)
        children = answers.values[1]
        if isinstance(children, Code):
            return []
        found = [name for each in children if (name := names.decode(each)) is not None and name.startswith(prefix)]
        return sorted(found, reverse=True)

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        """Return for each entry whether it exists in this session, after the server has caught up with the leader."""
        paths = [self._nodes.path_of(name, entry) for name, entry in entries]
        session = self._session.id

        def send(client: KazooClient) -> list[Result]:
            return [client.sync_async(self._nodes.root), *(client.exists_async(path) for path in paths)]

        answers = await self._session.exchange(until, send, writes=False)
        self._session.prove(answers)
        stats: list[Stat | None] = answers.values[1:]
        if session != self._session.id:
            return [False] * len(paths)
        return [
            stat is not None and stat.ephemeralOwner == (session if entry.kind in OURS else 0)
            for (_, entry), stat in zip(entries, stats, strict=True)
        ]
