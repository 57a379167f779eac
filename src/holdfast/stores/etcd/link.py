"""The contract between the etcd directory and a way to its servers: what each colour of link has to do.

A link carries one request to one server and its answer back, and hears streams of answers. It never repeats a request
by itself, but on another connection if nothing of it was sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from holdfast.errors import StoreUnavailable

Said = dict[str, Any]
"""A JSON object, as a server said it."""


class EtcdAddress(NamedTuple):
    """Where a server listens."""

    host: str
    port: int = 2379

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class EtcdNotSent(StoreUnavailable):
    """Nothing of the request was sent: another server may be asked instead."""


@dataclass(slots=True)
class EtcdRequest:
    """What a server is asked."""

    path: str
    """As `kv/txn`."""
    body: bytes
    token: str = ""
    """What the server gave us for a user and a password."""


@dataclass(slots=True)
class EtcdReply:
    """What a server answered."""

    status: int
    said: Said


class Stream(Protocol):
    """A request that is said by and by, and its answers, on a connection of its own."""

    def say(self, body: bytes) -> None:
        """Say more. Does not wait for anything."""

    def close(self) -> None:
        """Hear no more. Does not wait for anything."""


@dataclass(slots=True)
class EtcdHearing:
    """What is done with a stream. Both are called where the runtime runs its code, and never block."""

    on_said: Callable[[Said], None]
    on_end: Callable[[], None]
    """The stream has ended, and not by `close`."""


class EtcdLink(Protocol):
    """A way to all servers of a deployment, for one client. Every operation ends by `until`, a local instant.

    It raises NotSent if the server was not reached, OutcomeUnknown if it may have carried the request out, and another
    StoreError if asking again will not help.
    """

    async def exchange(self, address: EtcdAddress, request: EtcdRequest, until: float) -> EtcdReply:
        """Ask a server."""
        ...

    async def stream(self, address: EtcdAddress, request: EtcdRequest, hearing: EtcdHearing, until: float) -> Stream:
        """Begin a stream, whose body is still to be said; returns when the request is sent."""
        ...

    def forsake(self, address: EtcdAddress) -> None:
        """End the streams of a server that does not answer, and let go of its connections."""

    async def close(self) -> None:
        """Disconnect and stop whatever runs. Idempotent; also if it never connected."""

    def abandon(self) -> None:
        """In a forked child: drop the sockets without a word to the servers."""
