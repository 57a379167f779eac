"""The floor of a lock in Redis: scripts over a bare socket, packed and parsed by hiredis."""

import itertools
import secrets
import socket
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import hiredis

from bench.contenders import NAME, Handle, clock
from bench.redis.contenders import TTL
from tenure.contracts.deadlines import micros
from tenure.contracts.messages import AcquireRequest
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.link import RedisAddress, Word
from tenure.stores.redis.links.wire import number
from tenure.stores.redis.lua import codec, scripts
from tenure.stores.redis.names import NODE, state_key
from tests.servers import RedisServer

OWN = "bare socket, own scripts"
MINIMAL = "bare socket, least scripts"

GRANTED = 1

GUARD, BOUND = 1, 60_000_000
"""How Tenure guards against restarts, and its max_ttl, by default."""

MEANINGS = {
    OWN: "floor: Tenure's two EVALSHA, and nothing else",
    MINIMAL: "floor: EVALSHA of SET NX PX, then of compare-and-delete; no queue, no fencing token",
}

HEAVIER = "a script that keeps a queue and a fencing token is more work for the server than SET and compare-and-delete"
WAKING = "each hand-off is a script and wakes another process, and all processes and the server share the cores"
"""The reasons why even a floor is not faster."""

TAKE = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])"
LET_GO = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

pack: Callable[[tuple[Word, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # pyright: ignore[reportUnknownMemberType]


class BareSocket:
    """A connection that sends given bytes and returns the replies."""

    def __init__(self, connected: socket.socket) -> None:
        """Use a connected socket."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = hiredis.Reader()
        self.send, self._recv = connected.sendall, connected.recv
        self._feed, self._gets = reader.feed, reader.gets

    def exchange(self, *words: Word) -> Any:  # noqa: ANN401 - whatever the server answers
        """Send one command and return its reply."""
        self.send(pack(words))
        return self.reply()

    def reply(self) -> Any:  # noqa: ANN401
        """Return the next reply."""
        while (reply := self._gets()) is False:
            self._feed(self._recv(65536))
        return reply

    def send_to_all(self, commands: list[tuple[Word, ...]]) -> list[Any]:
        """Send all commands together, and return their replies."""
        self.send(b"".join(map(pack, commands)))
        return [self.reply() for _ in commands]


@contextmanager
def bare_socket(server: RedisServer) -> Generator[BareSocket]:
    """Connect to a server."""
    with closing(socket.create_connection(server.address)) as connected:
        yield BareSocket(connected)


class OwnScripts:
    """The exact commands that Tenure sends for one name."""

    def __init__(self, bare: BareSocket, name: str = NAME) -> None:
        """Load the scripts, and learn the identity of the server process."""
        for script in (scripts.ACQUIRE, scripts.RELEASE):
            bare.exchange("SCRIPT", "LOAD", script.text)
        replies = bare.exchange("INFO", "server"), bare.exchange("INFO", "replication")
        self._run_id = wire.identity_of(RedisAddress(""), *replies)
        prefix = secrets.token_hex(16)
        self.channel = f"{prefix}-0"
        self._requests = (f"{prefix}-{n:x}" for n in itertools.count(1))
        self._acquire_request = AcquireRequest(name, "", self.channel, "host/1234", micros(TTL), 1_000_000, 4_000_000)
        self._release_fields = codec.release_fields(GUARD, BOUND, sharded=False)
        self._request_fields = codec.request_fields(self._acquire_request, GUARD, BOUND, sharded=False)
        self._seen = b""
        self._state = state_key(prefix)
        self._seen, granted = bare.exchange(
            *self.acquire()
        )  # the first reply tells the generation, which later ones need not
        bare.exchange(*self.release(granted[1]))
        self._state = state_key(name)

    @property
    def request(self) -> str:
        """The id of the last acquire request."""
        return self._acquire_request.request_id

    def acquire(self) -> tuple[Word, ...]:
        """Return the command of the next acquire request."""
        self._acquire_request.request_id = next(self._requests)
        return self._evalsha(scripts.ACQUIRE, self._request_fields, codec.acquire_numbers(1, 0))

    def release(self, token: int) -> tuple[Word, ...]:
        """Return the command that releases the last grant."""
        return self._evalsha(scripts.RELEASE, self._release_fields, codec.release_numbers(0, token, 0))

    def _evalsha(self, script: scripts.Script, fields: bytes, numbers: bytes) -> tuple[Word, ...]:
        state, request = self._state, self._acquire_request.request_id
        keys = (NODE, state, state + ":q", f"{state}:t:{request}")
        args = (fields, self._seen, numbers + request.encode(), *([] if self._seen else [self._run_id]))
        return (b"EVALSHA", script.digest, number(len(keys)), *keys, *args)


def granted_token(reply: Any) -> int | None:  # noqa: ANN401 - as a script returns it
    """Return the token in a reply of `acquire`, or None if that is no grant."""
    if isinstance(reply, int):
        return reply
    if isinstance(reply, bytes):
        return None
    return int(reply[1]) if reply[0] == GRANTED else None


class BareHandle:
    """A floor made of Tenure's scripts over two bare sockets, whose waiter reads the channel itself.

    It is no lock, for it handles no timeout, no lost notification, no renewal and no second thread.
    """

    def __init__(self, bare: BareSocket, channel: BareSocket) -> None:
        """Subscribe to the channel."""
        self._bare = bare
        self._channel = channel
        self._mine = OwnScripts(bare)
        self._token = 0
        channel.exchange("SUBSCRIBE", f"tenure:channel:{self._mine.channel}")

    def acquire(self) -> float:
        """Wait until the lock is held."""
        token = granted_token(self._bare.exchange(*self._mine.acquire()))
        self._token = self._pushed() if token is None else token
        return clock()

    def release(self) -> float:
        """Release the lock."""
        now = clock()
        self._bare.exchange(*self._mine.release(self._token))
        return now

    def _pushed(self) -> int:
        while True:
            kind, token, request = self._channel.reply()[2].split()
            if kind in {b"G", b"g"} and request == self._mine.request.encode():
                return int(token)


@contextmanager
def bare_handle(url: str) -> Generator[Handle]:
    """Open the floor that consists of Tenure's scripts alone."""
    where = urlsplit(url)
    address = (where.hostname or "", where.port or 0)
    with closing(socket.create_connection(address)) as one, closing(socket.create_connection(address)) as other:
        yield BareHandle(BareSocket(one), BareSocket(other))


def beyond(floor: str, reached: float, limit: float, because: str = HEAVIER) -> str:
    """Return the reason why Tenure misses a multiple of a peer's speed, given what a floor reaches."""
    if reached < limit:
        return f"the floor itself ({floor}) is only {reached:.2f} times as fast, for {because}"
    return f"the floor ({floor}) is {reached:.2f} times as fast; the rest is the client's own work, in Python"


def own_pair(bare: BareSocket) -> Callable[[], object]:
    """Return a pair of Tenure's own scripts."""
    mine = OwnScripts(bare)

    def pair() -> None:
        token = granted_token(bare.exchange(*mine.acquire()))
        assert token is not None  # noqa: S101 - else this is no floor
        released = bare.exchange(*mine.release(token))
        assert released == 1  # noqa: S101

    return pair


def minimal_pair(bare: BareSocket) -> Callable[[], object]:
    """Return the two commands of a plain lock in Redis: SET NX PX, and compare-and-delete."""
    take, let_go = (bare.exchange("SCRIPT", "LOAD", text) for text in (TAKE, LET_GO))
    ttl = number(int(TTL * 1000))

    def pair() -> None:
        taken = bare.exchange(b"EVALSHA", take, b"1", "bare", "0123456789abcdef0123456789abcdef", ttl)
        released = bare.exchange(b"EVALSHA", let_go, b"1", "bare", "0123456789abcdef0123456789abcdef")
        assert (taken, released) == (b"OK", 1)  # noqa: S101

    return pair
