"""The reads: the entries of a name, the names in use, and whether entries exist."""

from collections.abc import Sequence
from functools import partial
from typing import cast

from tenure.contracts.messages import Page
from tenure.stores.ordered import Entry, Kind, Listing
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.errors import Code
from tenure.stores.zookeeper.joined import JoinedContenders
from tenure.stores.zookeeper.library import KazooClient, Result, Stat
from tenure.stores.zookeeper.names import OURS
from tenure.stores.zookeeper.nodes import MANY, ZooKeeperNodes
from tenure.stores.zookeeper.session import ZooKeeperSession

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
