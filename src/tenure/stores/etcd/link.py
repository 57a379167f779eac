"""The contract between the etcd directory and its link to the servers: what each form of link has to do.

A link carries a request to a server and its reply back, and receives streams. It repeats a request in one case only: on
another connection, if no part of it was sent.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tenure.errors import StoreUnavailable

Said = dict[str, Any]
"""A JSON object that a server sent."""


class EtcdAddress(NamedTuple):
    """Where a server listens."""

    host: str
    port: int = 2379

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class EtcdNotSent(StoreUnavailable):
    """No part of the request was sent: it may go to another server."""


@dataclass(slots=True)
class EtcdRequest:
    """A request to a server."""

    path: str
    """The path below /v3/, as `kv/txn`."""
    body: bytes
    token: str = ""
    """The token that the server gave for a user and a password."""


@dataclass(slots=True)
class EtcdReply:
    """The reply of a server."""

    status: int
    said: Said
    date: str = field(default="", compare=False)
    """The server's clock as HTTP tells it; "" if it does not."""


class Stream(Protocol):
    """A request whose body is sent piece by piece, and its replies, on a connection of its own."""

    def say(self, body: bytes) -> None:
        """Send another piece of the request. Does not wait."""

    def close(self) -> None:
        """End the stream, without a callback. Does not wait."""


@dataclass(slots=True)
class EtcdHearing:
    """The callbacks of a stream. Both are called where the runtime runs its code, and never block."""

    on_said: Callable[[Said], None]
    on_end: Callable[[], None]
    """The stream has ended, and not by `close`."""


class EtcdLink(Protocol):
    """The link to all servers of a deployment, for one client. Every operation ends by `until`, a local instant.

    It raises EtcdNotSent if the server was not reached, OutcomeUnknown if the server may have carried the request out,
    and another StoreError if a repetition will not help.
    """

    async def exchange(self, address: EtcdAddress, request: EtcdRequest, until: float) -> EtcdReply:
        """Send a request to a server, and return its reply."""
        ...

    async def stream(self, address: EtcdAddress, request: EtcdRequest, hearing: EtcdHearing, until: float) -> Stream:
        """Start a stream, and return when its head is sent. `Stream.say` sends the body."""
        ...

    def forsake(self, address: EtcdAddress) -> None:
        """End the streams of a server that does not answer, and close its idle connections."""

    async def close(self) -> None:
        """Disconnect, and end its thread. Idempotent, also before it has connected."""

    def abandon(self) -> None:
        """In a forked child: close its copies of the sockets, without telling the servers."""
