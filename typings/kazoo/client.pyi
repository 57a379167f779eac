from collections.abc import Callable, Sequence
from typing import Any

from kazoo.handlers.utils import AsyncResult
from kazoo.protocol.states import WatchedEvent
from kazoo.security import ACL

class TransactionRequest:
    """Several changes in one step."""

    def create(self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> None:
        """Add a node."""

    def delete(self, path: str) -> None:
        """Remove a node."""

    def check(self, path: str, version: int) -> None:
        """Require that a node exists at a version; -1 stands for any version."""

    def commit_async(self) -> AsyncResult:
        """Send the changes."""

class KazooClient:
    """A client of an ensemble: its session, and the connection of the session, which moves from server to server."""

    last_zxid: int
    """The last change that the server had made at its last reply."""
    client_id: tuple[int, bytes] | None
    client_state: str
    connected: bool
    """Whether there is a connection now; the listeners may not know yet that it was lost."""

    def __init__(
        self,
        hosts: str,
        *,
        handler: object,
        logger: object,
        default_acl: Sequence[ACL] | None,
        connection_retry: dict[str, Any],
        command_retry: dict[str, Any],
        **options: Any,
    ) -> None: ...
    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener` in the connection's thread when the state changes."""

    def start_async(self) -> object:
        """Begin to connect."""

    def stop(self) -> None:
        """End the session and the thread. Blocks."""

    def close(self) -> None:
        """Release the resources of a stopped client."""

    def sync_async(self, path: str) -> AsyncResult:
        """Let the server catch up with the leader."""

    def create_async(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
        include_data: bool = False,
    ) -> AsyncResult:
        """Create a node; return its path, or its path and Stat."""

    def exists_async(self, path: str, watch: Callable[[WatchedEvent], None] | None = None) -> AsyncResult:
        """Return the Stat of a node, or None."""

    def get_async(self, path: str, watch: Callable[[WatchedEvent], None] | None = None) -> AsyncResult:
        """Return the data and the Stat of a node."""

    def get_children_async(self, path: str, *, include_data: bool = False) -> AsyncResult:
        """Return the names of a node's children, or the names and the Stat of the node."""

    def set_async(self, path: str, value: bytes, version: int = -1) -> AsyncResult:
        """Change the data of a node if the version matches; return its Stat."""

    def delete_async(self, path: str, version: int = -1) -> AsyncResult:
        """Remove a node if the version matches."""

    def transaction(self) -> TransactionRequest:
        """Begin a transaction."""
