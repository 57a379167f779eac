"""The details of entries, and the ends of timed entries, by the ensemble's time."""

import contextlib
from collections.abc import Sequence

from tenure.errors import StoreError
from tenure.stores.ordered import Detail, Entry, Kind
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.clock import Clock
from tenure.stores.zookeeper.errors import Code
from tenure.stores.zookeeper.library import Stat
from tenure.stores.zookeeper.nodes import ZooKeeperNodes


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
