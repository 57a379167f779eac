"""The used part of kazoo, with types, which kazoo lacks. No other module imports kazoo."""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol

CONNECTED = "CONNECTED"
SUSPENDED = "SUSPENDED"
LOST = "LOST"
"""The states that a listener receives."""

CLOSED = frozenset({"CLOSED", "AUTH_FAILED"})
"""The states of a client that does not continue by itself."""


class Stat(Protocol):
    """The used fields of a node's Stat."""

    czxid: int
    """The change that created the node."""
    mzxid: int
    """The last change of its data."""
    pzxid: int
    """The last change of its children."""
    ctime: int
    """The time of its creation, in milliseconds."""
    mtime: int
    """The time at which its data were last written."""
    version: int
    """How often its data were written."""
    cversion: int
    """How often a child was added or removed."""
    numChildren: int  # noqa: N815 - kazoo's name
    ephemeralOwner: int  # noqa: N815 - kazoo's name
    """The session that the node belongs to; 0 for none."""


class KazooEvent(Protocol):
    """The argument of a watch."""

    path: str | None
    """None: the watch was lost with its connection."""


class Result(Protocol):
    """The result of a request."""

    value: Any
    exception: Exception | None

    def ready(self) -> bool:
        """Return whether the result has arrived."""
        ...

    def rawlink(self, callback: Callable[["Result"], None]) -> None:
        """Call `callback` when the result arrives, or now if it has arrived."""


class Transaction(Protocol):
    """Several changes in one step."""

    def create(self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> None:
        """Add a node."""

    def delete(self, path: str) -> None:
        """Remove a node."""

    def check(self, path: str, version: int) -> None:
        """Require that a node exists at a version; -1 stands for any version."""

    def commit_async(self) -> Result:
        """Send the changes."""
        ...


class KazooClient(Protocol):
    """A client of an ensemble: its session, and the connection of the session, which moves from server to server."""

    last_zxid: int
    """The last change that the server had made at its last reply."""
    client_id: tuple[int, bytes] | None
    client_state: str
    connected: bool
    """Whether there is a connection now; the listeners may not know yet that it was lost."""

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener` in the connection's thread when the state changes."""

    def start_async(self) -> object:
        """Begin to connect."""
        ...

    def stop(self) -> None:
        """End the session and the thread. Blocks."""

    def close(self) -> None:
        """Release the resources of a stopped client."""

    def sync_async(self, path: str) -> Result:
        """Let the server catch up with the leader."""
        ...

    def create_async(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
        include_data: bool = False,
    ) -> Result:
        """Create a node; return its path, or its path and Stat."""
        ...

    def exists_async(self, path: str, watch: Callable[[KazooEvent], None] | None = None) -> Result:
        """Return the Stat of a node, or None."""
        ...

    def get_async(self, path: str, watch: Callable[[KazooEvent], None] | None = None) -> Result:
        """Return the data and the Stat of a node."""
        ...

    def get_children_async(self, path: str, *, include_data: bool = False) -> Result:
        """Return the names of a node's children, or the names and the Stat of the node."""
        ...

    def set_async(self, path: str, value: bytes, version: int = -1) -> Result:
        """Change the data of a node if the version matches; return its Stat."""
        ...

    def delete_async(self, path: str) -> Result:
        """Remove a node."""
        ...

    def transaction(self) -> Transaction:
        """Begin a transaction."""
        ...


class Sleeper(Protocol):
    """The used part of kazoo's handler."""

    def sleep_func(self, seconds: float) -> None:
        """Wait until the servers are to be tried again."""


TICK = 0.02
"""The pause that kazoo asks for, in seconds. The handler decides the real one; kazoo would call it every 0.1 s."""


def make_client(hosts: str, handler: Sleeper, logger: object, options: dict[str, Any], *, private: bool) -> KazooClient:
    """Create a client that is not connected yet. With `private`, only the same login may use the nodes it creates.

    The client connects again for ever and repeats no request, because only its caller knows whether a repetition is
    safe. After each round of all servers it calls `sleep_func` once.
    """
    make: Callable[..., KazooClient] = import_module("kazoo.client").KazooClient
    return make(
        hosts=hosts,
        handler=handler,
        logger=logger,
        default_acl=import_module("kazoo.security").CREATOR_ALL_ACL if private else None,
        connection_retry={
            "max_tries": -1,
            "delay": TICK,
            "max_delay": TICK,
            "max_jitter": 0.0,
            "sleep_func": handler.sleep_func,
        },
        command_retry={"max_tries": 0, "sleep_func": handler.sleep_func},
        **options,
    )


def make_result(handler: object, condition: Callable[[], object], timeout: type[Exception]) -> Result:
    """Create the result of a request."""
    return _result_maker()(handler, condition, timeout)


@cache
def _result_maker() -> Callable[..., Result]:
    """Return kazoo's class of results, imported once: each request needs one."""
    make: Callable[..., Result] = import_module("kazoo.handlers.utils").AsyncResult
    return make


class QuietLogger:
    """Receives kazoo's log.

    It drops what may hold passwords, and lowers the rest, because the store raises its own errors.
    """

    raised: BaseException | None = None
    """The error that ended kazoo's thread, or is about to end it."""

    def __init__(self) -> None:
        self._log = logging.getLogger("holdfast")

    def log(self, level: int, *_message: object) -> None:
        """Drop the message: kazoo logs requests and sessions with this method."""

    def debug(self, *_message: object) -> None:
        """Drop the message."""

    def info(self, message: str, *values: object) -> None:
        """Log the message at level DEBUG."""
        self._log.debug("kazoo: " + message, *values)

    warning = warn = info

    def error(self, message: str, *values: object) -> None:
        """Log the message as an error."""
        self._log.error("kazoo: " + message, *values)

    def exception(self, message: str, *values: object) -> None:
        """Keep the error, which waiting requests will raise, and log it at level DEBUG."""
        self.raised = sys.exception()
        self._log.debug("kazoo: " + message, *values, exc_info=True)


def codes(results: Sequence[object]) -> list[int]:
    """Return the error codes of the parts of a transaction; 0 for a part without an error."""
    return [getattr(each, "code", 0) if isinstance(each, Exception) else 0 for each in results]
