"""Who is to be woken when a node goes or changes."""

from contextlib import AbstractContextManager
from typing import Any


class ZooKeeperWatches:
    """Which request watches what. A server tells each change of a path once, whoever watches it."""

    def __init__(self, mutex: AbstractContextManager[Any]) -> None:
        """Watch nothing."""
        self._mutex = mutex
        self._requests: dict[str, set[str]] = {}
        self._paths: dict[str, list[str]] = {}

    def set(self, request_id: str, paths: list[str]) -> None:
        """Have a request watch these, and nothing else any more."""
        with self._mutex:
            self._forget(request_id)
            if paths:
                self._paths[request_id] = paths
            for path in paths:
                self._requests.setdefault(path, set()).add(request_id)

    def take(self, path: str) -> list[str]:
        """Return who watches a path; they watch nothing any more."""
        with self._mutex:
            requests = list(self._requests.get(path, ()))
            for request_id in requests:
                self._forget(request_id)
            return requests

    def clear(self) -> None:
        """Forget all."""
        with self._mutex:
            self._requests.clear()
            self._paths.clear()

    def _forget(self, request_id: str) -> None:
        """End what a request watches. What is left at the server says something once, that nobody hears."""
        for path in self._paths.pop(request_id, ()):
            watching = self._requests.get(path)
            if watching is not None:
                watching.discard(request_id)
                if not watching:
                    del self._requests[path]
