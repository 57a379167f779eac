"""The contract between the Redis store and a way to one server: what each colour of link has to do.

The store decides what to ask, of whom, and what an error means; a link carries one request to one server process and
its reply back, knows which process that was, and listens on channels. It never repeats a request by itself but for
two cases that the server has certainly not carried out: NOSCRIPT (it sends the text instead), and a connection that
turned out to be closed before the request could be sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from holdfast.escaping import ERROR, shown
from holdfast.stores.redis.scripts import Script

Word = str | bytes
"""A part of a command. Text travels as UTF-8. No int: hiredis crashes the process on one if a signal handler raises."""


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
    """Which server process it was."""
    acknowledged: int = 0
    """How many replicas have it, if that was asked for."""


class ReplyError(Exception):
    """A server answered an error. Never raised to users: the store says what it means."""

    def __init__(self, text: str) -> None:
        """Keep the text, which begins with a code as `NOSCRIPT`: the server's own, so it is escaped."""
        super().__init__(shown(text, ERROR))
        self.code = text.partition(" ")[0]


class RedisLink(Protocol):
    """A way to one server, for one client. Connects when first used, and again when the connection is lost.

    Every operation ends by `until`, a local instant. It raises StoreUnavailable if the server was not reached,
    OutcomeUnknown if it may have carried the request out, and ReplyError if it answered an error.
    """

    async def run(self, script: Script, keys: tuple[Word, ...], args: tuple[Word, ...], until: float) -> RedisReply:
        """Run a script with `args` and, as its last argument, the run id of the process that this goes to."""
        ...

    async def run_replicated(
        self, script: Script, keys: tuple[Word, ...], args: tuple[Word, ...], until: float, replicas: int
    ) -> RedisReply:
        """Run a script, with a WAIT for `replicas` replicas in the same round trip."""
        ...

    async def run_after_asking(
        self, script: Script, keys: tuple[Word, ...], args: tuple[Word, ...], until: float
    ) -> RedisReply:
        """Run a script at the node that a slot of a Cluster is just moving to: an ASKING goes before it."""
        ...

    async def command(self, *words: Word, until: float) -> Any:  # noqa: ANN401 - whatever the command answers
        """Send a plain command."""
        ...

    async def listen(self, channel: str, until: float) -> None:
        """Subscribe to a channel, and return once the server has confirmed it. Idempotent.

        A subscription outlives connections: when one is lost, the link connects again by itself, with back-off,
        subscribes, and only then calls `on_gap`.
        """
        ...

    async def ignore(self, channel: str) -> None:
        """Give a subscription up."""

    async def close(self) -> None:
        """Disconnect and stop whatever runs. Idempotent; also if it never connected."""

    def abandon(self) -> None:
        """In a forked child: drop the sockets without a word to the server. No thread of the parent is here."""


@dataclass(slots=True)
class RedisHearing:
    """What a link does with what it hears. Both are called where the runtime runs its code."""

    on_push: Callable[[bytes], None]
    """A message came on any channel."""
    on_gap: Callable[[], None]
    """Messages may have been missed; we are subscribed again."""


MakeLink = Callable[[RedisAddress, RedisHearing], RedisLink]
