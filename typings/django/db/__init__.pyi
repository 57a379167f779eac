from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

class BaseDatabaseWrapper:
    """A connection."""

    atomic_blocks: list[object]

    def execute_wrapper(self, wrapper: Callable[..., Any]) -> AbstractContextManager[None]:
        """Call the wrapper instead of each statement."""

class ConnectionHandler:
    """The connections of a thread, by alias."""

    settings: dict[str, dict[str, Any]]

    def __getitem__(self, alias: str) -> BaseDatabaseWrapper: ...
    def all(self, *, initialized_only: bool = False) -> list[BaseDatabaseWrapper]:
        """Return all connections."""

connections: ConnectionHandler
