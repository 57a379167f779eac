"""The watches at the servers: a change of a watched node wakes the requests that watch it."""

from collections.abc import Callable, Sequence
from functools import partial

from tenure.contracts.runtime import Runtime
from tenure.stores.ordered import Entry
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.errors import Code
from tenure.stores.zookeeper.library import KazooEvent, Stat
from tenure.stores.zookeeper.nodes import ZooKeeperNodes
from tenure.stores.zookeeper.watch_registry import WatchRegistry


class NodeWatches:
    """Sets watches on the nodes of entries."""

    def __init__(
        self,
        runtime: Runtime,
        nodes: ZooKeeperNodes,
        registry: WatchRegistry,
        woken: Callable[[str], None],
    ) -> None:
        """Record the watches in `registry`; `woken` is called with the id of each request to wake."""
        self._post = runtime.post
        self._nodes = nodes
        self._registry = registry
        self._woken = woken

    async def watch(self, name: str, request_id: str, entries: Sequence[Entry], until: float) -> bool:
        """Set a watch on each node, and check whether the node has changed since it was listed."""
        paths = [self._nodes.path_of(name, entry) for entry in entries]
        self._registry.set(request_id, paths)
        found = await self._nodes.each(
            until, paths, lambda client, path: client.get_async(path, self._fired), writes=False
        )
        if any(isinstance(each, Code) for each in found):  # no watch is set on a missing node; `exists` would set one
            self._registry.set(request_id, [])
            return False
        stats: list[Stat] = [stat for _, stat in found]
        if any(stat.mzxid > max(names.since(entry), stat.czxid) for entry, stat in zip(entries, stats, strict=True)):
            self._registry.set(request_id, [])
            self._woken(request_id)
        return True

    def _fired(self, event: KazooEvent) -> None:
        """Post a change to the runtime, from kazoo's thread."""
        if event.path is not None:
            self._post(partial(self._changed, event.path))

    def _changed(self, path: str) -> None:
        for request_id in self._registry.take(path):
            self._woken(request_id)
