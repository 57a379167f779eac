"""What is used of kazoo, which has no types of its own. The only place that imports it."""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol

CONNECTED = "CONNECTED"
SUSPENDED = "SUSPENDED"
LOST = "LOST"
"""The states that a listener hears of."""

CLOSED = frozenset({"CLOSED", "AUTH_FAILED"})
"""The states of a client that does not go on by itself."""


class Stat(Protocol):
    """What a server knows of a node, as far as it is used here."""

    czxid: int
    """The change that made it."""
    mzxid: int
    """The last change of its data."""
    pzxid: int
    """The last change of its children."""
    ctime: int
    """When it was made, in milliseconds."""
    mtime: int
    """When its data were last written."""
    version: int
    """How often its data were written."""
    cversion: int
    """How often its children came or went."""
    numChildren: int  # noqa: N815 - kazoo's name
    ephemeralOwner: int  # noqa: N815 - kazoo's name
    """The session to which it belongs; 0: none."""


class KazooEvent(Protocol):
    """What a watch is called with."""

    path: str | None
    """None: the watch is gone with its connection."""


class Result(Protocol):
    """What comes of a request."""

    value: Any
    exception: Exception | None

    def ready(self) -> bool:
        """Tell whether it has come."""
        ...

    def rawlink(self, callback: Callable[["Result"], None]) -> None:
        """Call this when it comes, or now if it has come."""


class Transaction(Protocol):
    """Several changes in one step."""

    def create(self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> None:
        """Add a node."""

    def delete(self, path: str) -> None:
        """Remove one."""

    def check(self, path: str, version: int) -> None:
        """Demand that one is there, at a version; -1: at any."""

    def commit_async(self) -> Result:
        """Send them."""
        ...


class KazooClient(Protocol):
    """A client of an ensemble: its session, and the connection that goes with it from server to server."""

    last_zxid: int
    """The last change that the server had carried out when it last answered."""
    client_id: tuple[int, bytes] | None
    client_state: str
    connected: bool
    """Whether there is a connection now; its listeners may not have heard yet that it is lost."""

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Have this called, in the connection's thread, when the state changes."""

    def start_async(self) -> object:
        """Begin to connect."""
        ...

    def stop(self) -> None:
        """End the session and the thread. Blocks."""

    def close(self) -> None:
        """Release what a stopped client has."""

    def sync_async(self, path: str) -> Result:
        """Have the server catch up with the leader."""
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
        """Make a node; its path, or path and Stat."""
        ...

    def exists_async(self, path: str, watch: Callable[[KazooEvent], None] | None = None) -> Result:
        """Return the Stat, or None."""
        ...

    def get_async(self, path: str, watch: Callable[[KazooEvent], None] | None = None) -> Result:
        """Return data and Stat."""
        ...

    def get_children_async(self, path: str, *, include_data: bool = False) -> Result:
        """Return names, or names and the Stat of the parent."""
        ...

    def set_async(self, path: str, value: bytes, version: int = -1) -> Result:
        """Change the data, if the version is this one; its Stat."""
        ...

    def delete_async(self, path: str) -> Result:
        """Remove a node."""
        ...

    def transaction(self) -> Transaction:
        """Begin several changes."""
        ...


class Sleeper(Protocol):
    """Kazoo's handler, as far as it is used here."""

    def sleep_func(self, seconds: float) -> None:
        """Wait until the servers are to be tried again."""


TICK = 0.02
"""For how long kazoo believes to pause; how long it does is up to the handler. It would call it anew every 0.1 s."""


def make_client(hosts: str, handler: Sleeper, logger: object, options: dict[str, Any], *, private: bool) -> KazooClient:
    """Make a client that is not connected yet. What it makes is for whoever is logged in as it is, if `private`.

    It connects again for ever, and repeats no request: that may only be done by who knows what it means. Each time when
    it has tried all servers, it calls `sleep_func`, once.
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
    """Make what a request's answer is put into."""
    return _result_maker()(handler, condition, timeout)


@cache
def _result_maker() -> Callable[..., Result]:
    """Return kazoo's class: there is a result for each request."""
    make: Callable[..., Result] = import_module("kazoo.handlers.utils").AsyncResult
    return make


class QuietLogger:
    """Takes what kazoo logs: nothing below INFO, for requests hold passwords; and no alarm, for we raise our own."""

    raised: BaseException | None = None
    """What ended kazoo's thread, or is about to."""

    def __init__(self) -> None:
        self._log = logging.getLogger("holdfast")

    def log(self, level: int, *_message: object) -> None:
        """Drop it: kazoo logs requests and sessions by this."""

    def debug(self, *_message: object) -> None:
        """Drop it."""

    def info(self, message: str, *values: object) -> None:
        """Note it for who looks for details."""
        self._log.debug("kazoo: " + message, *values)

    warning = warn = info

    def error(self, message: str, *values: object) -> None:
        """Pass it on."""
        self._log.error("kazoo: " + message, *values)

    def exception(self, message: str, *values: object) -> None:
        """Keep what was raised, which is told to who waits, and note it for who looks for details."""
        self.raised = sys.exception()
        self._log.debug("kazoo: " + message, *values, exc_info=True)


def codes(results: Sequence[object]) -> list[int]:
    """Return the error codes of the parts of a transaction; 0 of those without one of their own."""
    return [getattr(each, "code", 0) if isinstance(each, Exception) else 0 for each in results]
