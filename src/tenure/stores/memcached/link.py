"""The contract between the memcached store and its link to the servers: what each form of link has to do.

A link carries requests to a server and the replies back. It repeats a request in one case only: on another connection,
if no part of the request was sent.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tenure.stores.memcached.protocol import MetaReply

PORT = 11211


class MemcachedAddress(NamedTuple):
    """Where a server listens."""

    host: str
    port: int = PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class MemcachedRequest:
    """One or several commands, sent together."""

    packed: bytes
    replies: int = 1
    """How many replies there will be; 0: any number, and then an END."""
    alone: bool = False
    """Whether the replies may be so long that no other request should wait behind them."""


class MemcachedServer(NamedTuple):
    """What a server says of itself when a client connects."""

    process: str
    """Identifies the server process. CAS values of another process mean nothing."""
    evicts: bool
    """Whether the server evicts items if its memory is full. If not, it refuses to store."""


class MemcachedAnswer(NamedTuple):
    """The replies to the commands of a request, and the server process that gave them."""

    replies: list[MetaReply]
    server: MemcachedServer


class MemcachedLink(Protocol):
    """The link to all servers of a deployment, for one client. Every operation ends by `until`, a local instant.

    It raises StoreUnavailable if the server was not reached, OutcomeUnknown if the server may have carried the request
    out, and another StoreError if a repetition will not help.
    """

    async def exchange(
        self, address: MemcachedAddress, request: MemcachedRequest, until: float, process: str = ""
    ) -> MemcachedAnswer | None:
        """Send a request to a server, and return its replies.

        Return None, with nothing sent, if the server is another process than `process`.
        """
        ...

    async def command(self, address: MemcachedAddress, packed: bytes, until: float, process: str) -> MetaReply | None:
        """Send one command to a server, and return its reply: `exchange` for the usual case, which costs less."""
        ...

    async def server(self, address: MemcachedAddress, until: float) -> MemcachedServer:
        """Return what a server says of itself, from a connection to it."""
        ...

    async def close(self) -> None:
        """Disconnect. Idempotent, also before it has connected."""

    def abandon(self) -> None:
        """In a forked child: close its copies of the sockets, without telling the servers."""
