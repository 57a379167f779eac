"""The text protocol of memcached: its commands as bytes, and a reader of its replies. Nothing here knows of sockets.

The commands are the meta commands (`ms`, `mg`). aiomcache and emcache have none of them, pymemcache has only a way to
send a raw command, and none is made for both threads and asyncio. So Tenure has its own.
"""

from collections.abc import Sequence
from typing import NamedTuple

LONGEST_LINE = 4096
"""The longest line of a reply, in bytes. No line of memcached is longer; a server that speaks otherwise may be."""

STATS = b"stats\r\n"
SETTINGS = b"stats settings\r\n"
DUMP = b"lru_crawler metadump hash\r\n"

STORED, VALUE, MISSING = b"HD", b"VA", b"EN"
UNKNOWN, EXISTS, NOT_STORED = b"NF", b"EX", b"NS"
STAT, END, BUSY = b"STAT", b"END", b"BUSY"
ERROR, CLIENT_ERROR, SERVER_ERROR = b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR"

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


def is_complete(replies: Sequence[MetaReply], expected: int) -> bool:
    """Tell whether these are all replies to a request that expects so many; 0: any number, and then an END."""
    last = replies[-1]
    if not last.goes_on():
        return True
    return len(replies) == expected if expected else last.code in {END, BUSY, SERVER_ERROR}


class ReplyReader:
    """Turns received bytes into replies."""

    def __init__(self) -> None:
        """Start with nothing received."""
        self._received = b""
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Take bytes that were received."""
        self._received = self._received[self._at :] + data if self._at < len(self._received) else data
        self._at = 0

    def is_empty(self) -> bool:
        """Tell whether all that was received has been returned."""
        return self._at >= len(self._received)

    def take(self) -> MetaReply | None:
        """Return the next reply, or None until it is complete. Raises ValueError if this is no memcached."""
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
