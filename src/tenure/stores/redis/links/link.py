"""The contract between the Redis store and its link to one server: what each form of link has to do.

The store decides which request goes to which server, and what an error means. A link carries a request to one server
process and its reply back, knows which process that was, and listens on channels. It repeats a request in two cases
only, in which the server has certainly not carried it out: NOSCRIPT (it sends the text instead), and a connection that
the server had closed before the request was sent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tenure.contracts.runtime import Event
from tenure.escaping import ERROR, shown
from tenure.stores.redis.scripts import Script

Word = str | bytes
"""A part of a command. Text travels as UTF-8. No int: hiredis crashes the process on one if a signal handler raises."""

Words = tuple[Word, ...]


class RedisAddress(NamedTuple):
    """Where a server listens: a host and a port, or the path of a Unix socket."""

    host: str
    port: int = 6379
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class RedisReply:
    """What a server answered to a script."""

    value: Any
    """As hiredis reads it: bytes, int, None, or a list of them."""
    run_id: bytes
    """Identifies the server process."""
    acknowledged: int = 0
    """How many replicas have it, if the request asked for that."""


class ReplyError(Exception):
    """A server replied with an error. Users never see it: the store translates it."""

    def __init__(self, text: str) -> None:
        """Keep the text, which begins with a code as `NOSCRIPT`: the server's own, so it is escaped."""
        super().__init__(shown(text, ERROR))
        self.code = text.partition(" ")[0]


class PackedCall(Protocol):
    """The call of a script for requests of one lock, packed but for what differs between them: `RequestTemplate`."""

    def packed(self, request_id: bytes, numbers: bytes, run_id: bytes) -> bytes:
        """Return the call for one request to the process with a run id, as it is sent."""
        ...

    def words(self, request_id: bytes, numbers: bytes) -> tuple[Script, Words, Words]:
        """Return the script, the keys and the arguments of the call for one request, without the run id."""
        ...

    def last_words(self, run_id: bytes) -> tuple[bytes, ...]:
        """Return the run id as the last argument, or no argument if `packed` leaves it out."""
        ...


class RedisLink(Protocol):
    """The link to one server, for one client. It connects when it is used first, and again when the connection is lost.

    Every operation ends by `until`, a local instant. It raises StoreUnavailable if the server was not reached,
    OutcomeUnknown if the server may have carried the request out, and ReplyError if it replied with an error.
    """

    blocks: bool
    """Whether `run_request` blocks in place, where a coroutine would only take time."""

    async def run(self, script: Script, keys: Words, args: Words, until: float) -> RedisReply:
        """Run a script with `args` and, as its last argument, the run id of the server process."""
        ...

    def run_request(self, template: PackedCall, request_id: bytes, numbers: bytes, until: float) -> Any:  # noqa: ANN401 - whatever the script returns
        """Run the script of a template for one request; return its value if this `blocks`, else what awaits it."""
        ...

    def send_request(
        self, template: PackedCall, request_id: bytes, numbers: bytes, until: float, told: Callable[[Any], None]
    ) -> bool:
        """Send the script of a template for one request, as `SendsReleases.send_release`.

        `told` gets its value, the ReplyError that the server replied, or None if the connection was lost.
        """
        ...

    def collect(self) -> None:
        """Take the replies to `send_request` that have come on connections that are idle."""

    async def run_replicated(self, script: Script, keys: Words, args: Words, until: float, replicas: int) -> RedisReply:
        """Run a script, with a WAIT for `replicas` replicas in the same round trip."""
        ...

    async def run_after_asking(self, script: Script, keys: Words, args: Words, until: float) -> RedisReply:
        """Run a script after an ASKING, at the node of a Cluster to which a slot is moving."""
        ...

    async def command(self, *words: Word, until: float) -> Any:  # noqa: ANN401 - whatever the command answers
        """Send a plain command."""
        ...

    async def listen(self, channel: str, until: float) -> None:
        """Subscribe to a channel, and return once the server has confirmed it. Idempotent.

        A subscription outlives connections: when one is lost, the link connects again by itself, with back-off,
        subscribes, and then calls `on_gap`.
        """
        ...

    async def wait(self, event: Event, until: float | None) -> bool:
        """Wait for an event of the runtime until a local instant; return whether it is set.

        A link may take messages of its channels meanwhile, in the thread that waits.
        """
        ...

    async def ignore(self, channel: str) -> None:
        """End a subscription."""

    async def close(self) -> None:
        """Disconnect, and end its thread or tasks. Idempotent, also before it has connected."""

    def abandon(self) -> None:
        """In a forked child: close its copies of the sockets, without telling the server."""


def _always(_payload: bytes) -> bool:
    return True


def ignore_greeting(_address: RedisAddress, _replies: Sequence[Any]) -> None:
    """Take no interest in what a server says of itself."""


@dataclass(slots=True)
class RedisCallbacks:
    """The callbacks of a link. `on_push` and `on_gap` are called where the runtime runs its code."""

    on_push: Callable[[bytes], None]
    """A message came on any channel."""
    on_gap: Callable[[], None]
    """Messages may have been missed; the subscriptions are in force again."""
    is_for_waiter: Callable[[bytes], bool] = _always
    """Whether a message is for a thread that waits. Such a thread takes no other message."""
    on_greeting: Callable[[RedisAddress, Sequence[Any]], None] = ignore_greeting
    """A connection was made, and these were the replies to `identify`."""


@dataclass(slots=True, frozen=True)
class RedisAccess:
    """Credentials, TLS and other options, as keyword arguments of redis-py's Connection classes."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """All options except host, port, path, timeouts and retries, which this store decides. They may contain secrets."""
    tls: bool = False
    connect_timeout: float = 5.0
    """The longest time to connect, in seconds, where no operation sets an earlier deadline."""

    def connection_options(self, address: RedisAddress) -> dict[str, Any]:
        """Return the keyword arguments of a redis-py Connection (sync or asyncio) to `address`."""
        where = {"path": address.path} if address.path else {"host": address.host, "port": address.port}
        return {**self.options, **where}
