"""The text protocol of memcached: its commands as bytes, and a reader of its replies. Nothing here knows of sockets.

The commands are the meta commands (`ms`, `mg`). aiomcache and emcache have none of them, pymemcache has only a way to
send a raw command, and none is made for both threads and asyncio. So Tenure has its own.
"""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tenure.doctor.memcached import MemcachedFacts

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_LINE = 4096
"""The longest line of a reply, in bytes. No line of memcached is longer; a server that speaks otherwise may be."""

STATS = b"stats\r\n"
SETTINGS = b"stats settings\r\n"
DUMP = b"lru_crawler metadump hash\r\n"

STORED, VALUE, MISSING = b"HD", b"VA", b"EN"
UNKNOWN, EXISTS, NOT_STORED = b"NF", b"EX", b"NS"
STAT, END, BUSY = b"STAT", b"END", b"BUSY"
ERROR, CLIENT_ERROR, SERVER_ERROR = b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR"

LAST = frozenset({END, BUSY, SERVER_ERROR})
"""The replies that end a listing."""

CODES = frozenset({STORED, VALUE, MISSING, UNKNOWN, EXISTS, NOT_STORED, STAT, END, BUSY, SERVER_ERROR})
"""The replies after which the connection can go on. Whatever else comes may be the first of several lines."""


class MetaReply(NamedTuple):
    """One reply: its code, the rest of its line, and its data."""

    code: bytes
    rest: bytes = b""
    data: bytes = b""

    def flag(self, letter: bytes) -> bytes:
        """Return the value of a flag as `c` in `HD c123`; b"" if the reply has no such flag."""
        for word in self.rest.split(b" "):
            if word[:1] == letter:
                return word[1:]
        return b""

    def goes_on(self) -> bool:
        """Tell whether the connection can carry further requests after this reply."""
        return self.code in CODES or self.code[:4] == b"key="

    def line(self) -> str:
        """Return the reply's line, for errors."""
        return b" ".join(filter(None, (self.code, self.rest))).decode("utf-8", "replace")


def pack_add(key: bytes, data: bytes, seconds: int) -> bytes:
    """Store an item that does not exist, for a number of seconds."""
    return b"ms %b %d ME T%d c\r\n%b\r\n" % (key, len(data), seconds, data)


def pack_swap(key: bytes, data: bytes, seconds: int, cas: bytes) -> bytes:
    """Store an item in the place of that with the CAS value `cas`: compare-and-swap."""
    return b"ms %b %d C%b T%d c\r\n%b\r\n" % (key, len(data), cas, seconds, data)


def pack_look(key: bytes) -> bytes:
    """Return an item with its CAS value and for how many seconds it will be kept."""
    return b"mg %b v c t\r\n" % key


@dataclass(slots=True)
class MemcachedRequest:
    """One or several commands, sent together."""

    packed: bytes
    replies: int = 1
    """How many replies there will be; 0: any number, and then an END."""


class MemcachedServer(NamedTuple):
    """What a server says of itself when a client connects."""

    process: str
    """Identifies the server process. CAS values of another process mean nothing."""
    evicts: bool
    """Whether the server evicts items if its memory is full. If not, it refuses to store."""
    facts: MemcachedFacts | None = None
    """How it is set."""


class MemcachedAnswer(NamedTuple):
    """The replies to the commands of a request, and the server process that gave them."""

    replies: list[MetaReply]
    server: MemcachedServer


class MemcachedConversation:
    """Requests and the replies to them, which come in the order of the requests."""

    __slots__ = ("_at", "_expected", "_over", "_received", "_replies", "owed", "peer", "server")

    def __init__(self) -> None:
        self.peer = ""
        self.owed: deque[Callable[[MemcachedAnswer | None], None]] = deque()
        """Always empty: a caller waits for each reply."""
        self.server = MemcachedServer("", evicts=True)
        """Set once the server was asked, as `peer`, which is its process."""
        self._received = b""
        self._at = 0
        self._expected: deque[int] = deque()
        """How many replies each request expects."""
        self._replies: list[MetaReply] = []
        """Those to the first of these requests that have come."""
        self._over = False

    def pack(self, request: MemcachedRequest) -> bytes:
        """Return the bytes of a request."""
        self._expected.append(request.replies)
        return request.packed

    def feed(self, data: bytes) -> None:
        """Take received bytes."""
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._received = self._received[self._at :] + data if self._at < len(self._received) else data
        self._at = 0

    def reply(self) -> MemcachedAnswer | None:
        """Return all replies to the first request, once they have come."""
        if self._over:
            raise ValueError("it refused an earlier command")
        while (reply := self.take()) is not None:
            if not self._expected:
                raise ValueError("it sent a reply to nothing")
            expected, replies = self._expected[0], self._replies
            replies.append(reply)
            goes_on = reply.goes_on()
            if goes_on and (len(replies) < expected if expected else reply.code not in LAST):
                continue
            self._expected.popleft()
            self._replies = []
            self._over = not goes_on
            return MemcachedAnswer(replies, self.server)
        return None

    def goes_on(self) -> bool:
        """Tell whether nothing is due, and the server takes another request."""
        return not self._expected and not self._over and self._at >= len(self._received)

    def take(self) -> MetaReply | None:
        """Return the next single reply, or None until it is complete. Raises ValueError if this is no memcached."""
        received, begin = self._received, self._at
        end = received.find(b"\n", begin)
        if end < 0:
            if len(received) - begin > LONGEST_LINE:
                raise ValueError("it sent a line without an end")
            return None
        # The lines of a listing end without a carriage return, and all others with one.
        code, _, rest = received[begin:end].rstrip(b"\r").partition(b" ")
        if code != VALUE:
            self._at = end + 1
            return MetaReply(code, rest)
        return self._take_value(rest, end + 1)

    def _take_value(self, rest: bytes, begin: int) -> MetaReply | None:
        size, _, flags = rest.partition(b" ")
        if not size.isdigit():
            raise ValueError("it sent a value without a size")
        end = begin + int(size)
        if len(self._received) < end + 2:
            return None
        self._at = end + 2
        return MetaReply(VALUE, flags, self._received[begin:end])
