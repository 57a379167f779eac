"""Cells in ZooKeeper: contracts/cells.py. A cell is a node, whose data is the value.

The version consists of the change that created the node and of the number of writes since. A removed cell is an empty
node for a while, and is deleted when no client can be about to write it: then a node created anew is no longer taken
for it. The time is that of the leader, which ZooKeeper tells only in what it writes: so a read begins with the write of
an empty node, and is thereby no older than that.
"""

from collections.abc import Callable

from tenure.contracts.cells import Cell
from tenure.errors import StoreUnavailable
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.errors import Code
from tenure.stores.zookeeper.library import Stat
from tenure.stores.zookeeper.nodes import ZooKeeperNodes
from tenure.stores.zookeeper.session import ZooKeeperSession

EMPTY_FOR = 60.0
"""For how many seconds the node of a removed cell stays at least."""

LATEST_WRITE = 20.0
"""How many seconds after it was compared a node may still be written: far less than EMPTY_FOR."""

WRITES = 2**32
"""Larger than the number of writes of one node."""


class ZooKeeperCells:
    """One client's access to the cells."""

    def __init__(self, nodes: ZooKeeperNodes, session: ZooKeeperSession, now: Callable[[], float]) -> None:
        self._root = f"{nodes.root}/{names.CELLS}"
        self._nodes = nodes
        self._session = session
        self._now = now
        self._emptied: dict[str, tuple[float, int]] = {}
        """By path: when this client removed the cell, and the number of writes of its node then."""

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell as the last write left it."""
        path = self._path(name)
        while True:
            answers = await self._session.exchange(
                until, lambda client: [client.set_async(self._root, b""), client.get_async(path)], writes=False
            )
            self._session.contact(answers)
            clock, found = answers.values
            if isinstance(clock, Code):
                await self._nodes.make(self._root, until)
                self._nodes.in_time(until)
                continue
            now = 1000 * clock.mtime
            if isinstance(found, Code) or not found[0]:
                return Cell(b"", 0, now)
            return Cell(found[0], _version(found[1]), now)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:  # noqa: ARG002 - kept for ever
        """Write a cell if it has this version. A cell without a node costs one request, any other two."""
        path = self._path(name)
        while not version and value:
            answers = await self._session.exchange(
                until, lambda client: [client.create_async(path, value, include_data=True)], writes=True
            )
            made = answers.values[0]
            if not isinstance(made, Code):
                return Cell(value, _version(made[1]), 1000 * made[1].mtime, written=True)
            if made is Code.NODE_EXISTS:
                break
            await self._nodes.make(self._root, until)
            self._nodes.in_time(until)
        return await self._overwrite(path, name, value, version, until)

    async def _overwrite(self, path: str, name: str, value: bytes, version: int, until: float) -> Cell:
        compared_at = self._now()
        found = await self._nodes.get(path, until)
        if version != (_version(found[1]) if found is not None and found[0] else 0):
            return await self.read_cell(name, until)
        if found is None or (not value and not found[0]):  # there is nothing to remove
            cell = await self.read_cell(name, until)
            return Cell(b"", 0, cell.now, written=True) if not cell.version else cell
        if self._now() > compared_at + LATEST_WRITE:
            raise StoreUnavailable(f"the cell {name!r} was not written: this process stood still; try again")
        written = await self._nodes.set(path, value, found[1].version, until)
        if isinstance(written, Code):  # another client was faster
            return await self.read_cell(name, until)
        if not value:
            self._emptied[path] = self._now(), written.version
        return Cell(value, _version(written) if value else 0, 1000 * written.mtime, written=True)

    async def remove_unused(self, until: float) -> None:
        """Delete the nodes of cells that this client removed a while ago, and that nobody has made again."""
        before = self._now() - EMPTY_FOR
        old = {path: emptied for path, emptied in list(self._emptied.items()) if emptied[0] <= before}
        await self._nodes.each(
            until, list(old), lambda client, path: client.delete_async(path, old[path][1]), writes=True
        )
        for path, emptied in old.items():  # only now: what failed is tried again
            if self._emptied.get(path) is emptied:
                del self._emptied[path]

    def _path(self, name: str) -> str:
        return f"{self._root}/{names.encode(name)}"


def _version(stat: Stat) -> int:
    return int(stat.czxid) * WRITES + stat.version % WRITES + 1
