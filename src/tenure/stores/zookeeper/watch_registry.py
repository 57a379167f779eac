"""The watch registry: which requests of a client are woken when a node is removed or changes."""

from contextlib import AbstractContextManager
from typing import Any


class WatchRegistry:
    """Maps paths to the requests that watch them. A server reports a change of a path once, however many watch it."""

    def __init__(self, mutex: AbstractContextManager[Any]) -> None:
        """Begin without watches."""
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
