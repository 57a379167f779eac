"""The watches of nodes at the servers, and the registry of the requests that each of them wakes."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from tenure.contracts.runtime import Runtime
from tenure.stores.ordered import Entry
from tenure.stores.zookeeper import names
from tenure.stores.zookeeper.errors import Code
from tenure.stores.zookeeper.library import KazooEvent, Stat
from tenure.stores.zookeeper.nodes import ZooKeeperNodes


class WatchRegistry:
    """Maps paths to the requests that watch them. A server reports a change of a path once, however many watch it."""

    def __init__(self, mutex: AbstractContextManager[Any]) -> None:
        self._mutex = mutex
        self._requests: dict[str, set[str]] = {}
        self._paths: dict[str, list[str]] = {}

    def set(self, request_id: str, paths: list[str]) -> None:
        """Let a request watch these paths, instead of those it watched before."""
        with self._mutex:
            self._forget(request_id)
            if paths:
                self._paths[request_id] = paths
            for path in paths:
                self._requests.setdefault(path, set()).add(request_id)

    def take(self, path: str) -> list[str]:
        """Return the requests that watch a path, and end their watches."""
        with self._mutex:
            requests = list(self._requests.get(path, ()))
            for request_id in requests:
                self._forget(request_id)
            return requests

    def clear(self) -> None:
        """End all watches."""
        with self._mutex:
            self._requests.clear()
            self._paths.clear()

    def _forget(self, request_id: str) -> None:
        """End the watches of a request. A watch left at the server fires once, and is then ignored."""
        for path in self._paths.pop(request_id, ()):
            requests = self._requests.get(path)
            if requests is not None:
                requests.discard(request_id)
                if not requests:
                    del self._requests[path]


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
