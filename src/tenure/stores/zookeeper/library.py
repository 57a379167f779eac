"""The used part of kazoo. No other module imports it. Its types are in `typings/kazoo`, because kazoo has none."""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

__all__ = [
    "CLOSED",
    "CONNECTED",
    "LOST",
    "SUSPENDED",
    "KazooClient",
    "KazooEvent",
    "QuietLogger",
    "Result",
    "Sleeper",
    "Stat",
    "codes",
    "make_client",
    "make_result",
]

CONNECTED = "CONNECTED"
SUSPENDED = "SUSPENDED"
LOST = "LOST"
"""The states that a listener receives."""

CLOSED = frozenset({"CLOSED", "AUTH_FAILED"})
"""The states of a client that does not continue by itself."""


if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.handlers.utils import AsyncResult as Result
    from kazoo.protocol.states import WatchedEvent as KazooEvent
    from kazoo.protocol.states import ZnodeStat as Stat
else:  # kazoo is imported when a client is made: a program without ZooKeeper does not have it
    KazooClient = Result = KazooEvent = Stat = object


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
    from kazoo.client import KazooClient
    from kazoo.security import CREATOR_ALL_ACL

    return KazooClient(
        hosts=hosts,
        handler=handler,
        logger=logger,
        default_acl=CREATOR_ALL_ACL if private else None,
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
    return _result_class()(handler, condition, timeout)


@cache
def _result_class() -> "type[Result]":
    """Return kazoo's class of results, imported once: each request needs one."""
    from kazoo.handlers.utils import AsyncResult

    return AsyncResult


class QuietLogger:
    """Receives kazoo's log.

    It drops what may hold passwords, and lowers the rest, because the store raises its own errors.
    """

    raised: BaseException | None = None
    """The error that ended kazoo's thread, or is about to end it."""

    def __init__(self) -> None:
        self._log = logging.getLogger("tenure")

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
