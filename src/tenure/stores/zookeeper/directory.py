"""The directory in ZooKeeper: the requests of each operation, and the meaning of the replies.

A name is a node, and an entry is a child of it, which belongs to a client's session or outlives it. The change that
created an entry is its position. A request that goes through the leader proves that the session lives (`proofs.py`). So
each listing follows a sync or the creation of an entry, in the same round trip.
"""

import contextlib
from collections.abc import Sequence

from tenure.contracts.messages import Page
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError
from tenure.stores.ordered import Detail, Entry, Listing, Record, Watcher
from tenure.stores.zookeeper.cells import ZooKeeperCells
from tenure.stores.zookeeper.changing import ZooKeeperChanges
from tenure.stores.zookeeper.clock import Clock
from tenure.stores.zookeeper.details import ZooKeeperDetails
from tenure.stores.zookeeper.joined import JoinedContenders
from tenure.stores.zookeeper.joining import ZooKeeperJoins
from tenure.stores.zookeeper.node_watches import NodeWatches
from tenure.stores.zookeeper.nodes import ZooKeeperNodes
from tenure.stores.zookeeper.options import ZooKeeperAccess
from tenure.stores.zookeeper.reading import ZooKeeperReader
from tenure.stores.zookeeper.sending import send_message
from tenure.stores.zookeeper.session import ZooKeeperSession
from tenure.stores.zookeeper.watch_registry import WatchRegistry


class ZooKeeperDirectory:
    """One client's session in ZooKeeper, and its view of all entries."""

    def __init__(self, runtime: Runtime, access: ZooKeeperAccess) -> None:
        """Prepare the directory; nothing is connected yet."""
        self._now = now = runtime.now
        self._watch_registry = WatchRegistry(runtime.mutex())
        self._joined = joined = JoinedContenders()
        self._session = session = ZooKeeperSession(runtime, access, self._ended)
        clock = Clock(now)
        self._nodes = nodes = ZooKeeperNodes(session, access, clock, now)
        self._reader = reader = ZooKeeperReader(session, nodes, joined)
        self._joins = ZooKeeperJoins(session, nodes, reader, joined, clock=clock, now=now, title=access.title)
        self._changes = ZooKeeperChanges(session, nodes, joined, access, now)
        self._details = ZooKeeperDetails(nodes, clock)
        self.cells = ZooKeeperCells(nodes, session, now)
        self._node_watches = NodeWatches(runtime, nodes, self._watch_registry, session.woken)

    # -- the session -----------------------------------------------------------------------------------------

    @property
    def trust(self) -> float:
        """For how many seconds after the request of a proof the entries of the session certainly stay."""
        return self._session.trust

    @property
    def proved_at(self) -> float:
        """The local instant at which this session's last proof was requested; minus infinity without a proof."""
        return self._session.proved_at

    def session(self) -> str:
        """Return the id of the session; "" if there is none."""
        return self._session.name()

    async def open(self, watcher: Watcher, until: float) -> None:
        """Connect and begin a session."""
        await self._session.open(watcher, until)
        await self._nodes.agree_on_form(until)

    async def close(self) -> None:
        """Remove the empty nodes of names that this client used, and end the session."""
        self._session.silence()
        if self._session.id:
            with contextlib.suppress(StoreError):
                await self._nodes.remove_all(self._now() + 1.0)
        await self._session.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._session.abandon()

    async def keep_alive(self, until: float) -> None:
        """Send the server a request, because kazoo's own pings may be too far apart; remove unused nodes."""
        await self._nodes.agree_on_form(until)
        await self._nodes.remove_unused(until)
        await self.cells.remove_unused(until)

    def _ended(self) -> None:
        """Forget what belonged to a session that has ended."""
        self._joined.clear()
        self._watch_registry.clear()

    # -- changes ---------------------------------------------------------------------------------------------

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Add a contender, or find the one that an earlier join added; return its entry and a listing with it."""
        return await self._joins.join(name, record, until)

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        """Remove the contender of a request."""
        return await self._joins.withdraw_join(name, request_id, entry, until)

    async def change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        """Remove and add entries in one transaction; return False if an entry of `remove`, or `beside`, was gone."""
        return await self._changes.change(name, remove, add, until, beside)

    async def rewrite(self, name: str, entry: Entry, text: str, until: float) -> bool:
        """Write a new text into an entry, and keep the rest of its data."""
        return await self._changes.rewrite(name, entry, text, until)

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        """Wake the watchers of entries."""
        await self._changes.stir(name, entries, until)

    # -- reads -----------------------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Listing:
        """List the entries of a name, after the server has caught up with the leader."""
        return await self._reader.look(name, until)

    async def look_at_all(self, names: Sequence[str], until: float) -> list[Listing]:
        """List the entries of several names, each after the server has caught up with the leader."""
        return await self._reader.look_at_all(names, until)

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        """Return for each entry whether it exists in this session, after the server has caught up with the leader."""
        return await self._reader.check(entries, until)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names below the root whose nodes have entries, sorted."""
        return await self._reader.names(prefix, until, rest)

    async def details(self, name: str, entries: Sequence[Entry], until: float) -> list[Detail | None]:
        """Return the details of entries, read from their nodes."""
        return await self._details.details(name, entries, until)

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        """Return how long a PLACEHOLDER or BLOCK counts, by the ensemble's time; remove it if its time is over."""
        return await self._details.remains(name, entry, until)

    # -- events ----------------------------------------------------------------------------------------------

    async def watch(self, name: str, request_id: str, entries: Sequence[Entry], until: float) -> bool:
        """Set a watch on each node, and check whether the node has changed since it was listed."""
        return await self._node_watches.watch(name, request_id, entries, until)

    async def tell(self, session: str, message: str, until: float) -> None:
        """Append a message to the channel of a session."""
        await send_message(self._nodes, session, message, until)
