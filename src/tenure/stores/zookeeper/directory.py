"""The directory in ZooKeeper: the requests of each operation, and the meaning of the replies.

A name is a node, and an entry is a child of it, which belongs to a client's session or outlives it. The change that
created an entry is its position. A request that goes through the leader proves that the session lives (`session.py`).
So each listing follows a sync or the creation of an entry, in the same round trip.
"""

import contextlib

from tenure.contracts.findings import Finding, Report
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError
from tenure.stores.ordered import Watcher
from tenure.stores.zookeeper.cells import ZooKeeperCells
from tenure.stores.zookeeper.changing import ZooKeeperChanges, ZooKeeperJoins
from tenure.stores.zookeeper.channel import path_of, read_box, write_box
from tenure.stores.zookeeper.errors import Code
from tenure.stores.zookeeper.examining import ZooKeeperExaminer
from tenure.stores.zookeeper.nodes import Clock, ZooKeeperNodes
from tenure.stores.zookeeper.options import ZooKeeperAccess
from tenure.stores.zookeeper.reading import JoinedContenders, ZooKeeperDetails, ZooKeeperReader
from tenure.stores.zookeeper.session import ZooKeeperSession
from tenure.stores.zookeeper.watches import NodeWatches, WatchRegistry


class ZooKeeperDirectory:
    """One client's session in ZooKeeper, and its view of all entries."""

    def __init__(self, runtime: Runtime, access: ZooKeeperAccess) -> None:
        """Prepare the directory; nothing is connected yet.

        The operations on entries are bound methods of the parts, so that no operation costs a further Python call.
        """
        self._now = now = runtime.now
        self._watch_registry = WatchRegistry(runtime.mutex())
        self._joined = joined = JoinedContenders()
        self._session = session = ZooKeeperSession(runtime, access, self._ended)
        clock = Clock(now)
        self._nodes = nodes = ZooKeeperNodes(session, access, clock, now)
        self._examiner = ZooKeeperExaminer(runtime, access, session, nodes)
        reader = ZooKeeperReader(session, nodes, joined)
        joins = ZooKeeperJoins(session, nodes, reader, joined, clock=clock, now=now, title=access.title)
        changes = ZooKeeperChanges(session, nodes, joined, access, now)
        details = ZooKeeperDetails(nodes, clock)
        self.cells = ZooKeeperCells(nodes, session, now)
        self.join = joins.join
        self.withdraw_join = joins.withdraw_join
        self.change = changes.change
        self.rewrite = changes.rewrite
        self.pass_over = changes.pass_over
        self.stir = changes.stir
        self.look = reader.look
        self.look_at_all = reader.look_at_all
        self.check = reader.check
        self.names = reader.names
        self.details = details.details
        self.remains = details.remains
        self.watch = NodeWatches(runtime, nodes, self._watch_registry, session.woken).watch

    def at_opening(self) -> list[Finding]:
        """Return what is wrong with the settings, as far as beginning the session has shown it."""
        return self._examiner.at_opening()

    async def examine(self, ttl: float, timeout: float) -> Report:
        """Look at the settings of the ensemble."""
        return await self._examiner.report(ttl, timeout)

    # -- the session -----------------------------------------------------------------------------------------

    @property
    def trust(self) -> float:
        """For how many seconds after the request of a proof the entries of the session certainly stay."""
        return self._session.trust

    @property
    def proved_at(self) -> float:
        """The local instant at which this session's last proof was requested; minus infinity without a proof."""
        return self._session.proved_at

    @property
    def lasts(self) -> float:
        """For how many seconds the servers keep the entries of a client that has died."""
        return self._session.lasts

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

    # -- messages ------------------------------------------------------------------------------------------

    async def tell(self, session: str, message: str, until: float) -> None:
        """Append a message to the data of a session's channel."""
        path = path_of(self._nodes.root, session)
        while (found := await self._nodes.get(path, until)) is not None:
            data, stat = found
            count, messages = read_box(data)
            written = await self._nodes.set(path, write_box(count, [*messages, message]), stat.version, until)
            if written is not Code.BAD_VERSION:
                return
            self._nodes.in_time(until)
