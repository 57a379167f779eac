"""HTTP/1.1 without a socket: which bytes to send, and what the received bytes mean.

No library reads the replies, because little of HTTP is needed here, and reading it is most of what a request costs. The
rules are those of RFC 9112. A server that breaks them loses the connection.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, cast

from tenure.contracts.limits import LONGEST_REPLY
from tenure.transport.link import ServerAddress

OK = 200

LONGEST_HEAD = 65536
"""How many bytes the head of a reply, or a line between its chunks, may have."""

STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [^\r\n]*)?")
HEADERS = re.compile(rb"(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*)*")
USED = re.compile(rb"\r\n(content-length|transfer-encoding|connection|date):[ \t]*([^\r\n]*)", re.IGNORECASE)
"""A header that matters here."""
SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")
SAFE = re.compile(r"[\x20-\x7e]*")


JsonObject = dict[str, Any]
"""A JSON object that a server sent."""


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
    said: JsonObject
    date: str = field(default="", compare=False)
    """The server's clock as HTTP tells it; "" if it does not."""


class HttpConversation:
    """The conversation on one connection: one request after another, and their replies, or one stream of objects.

    A request may be sent behind others whose replies are due (pipelining, RFC 9112 section 9.3.2): a server answers
    them in their order. Go's server carries them out one by one. Before Go 1.11 such a request cancelled the one before
    it; etcd 3.4 requires Go 1.12.
    """

    peer = ""
    __slots__ = (
        "_any",
        "_body",
        "_came",
        "_chunked",
        "_closed",
        "_date",
        "_due",
        "_host",
        "_left",
        "_status",
        "_stays",
        "_streamed",
        "owed",
    )

    def __init__(self, address: ServerAddress) -> None:
        self._host = str(address)
        self._came = bytearray()
        """The bytes that were not read yet."""
        self._body = bytearray()
        self._any = False
        """Whether the server has sent anything."""
        self._closed = False
        """Whether the server has closed its side."""
        self._stays = True
        """Whether the connection can carry another request once the reply is complete."""
        self._streamed: Iterator[JsonObject] | None = None
        """Of a stream: the objects that have come, and were not returned yet."""
        self._due = 0
        """To how many requests the reply has not been read."""
        self.owed: deque[Callable[[EtcdReply | None], None]] = deque()
        self._forget()

    def _forget(self) -> None:
        """Expect another reply."""
        self._status = 0
        self._date = ""
        self._chunked = False
        self._left: int | None = None
        """How many bytes of the body are still to come. None: all until the server closes the connection."""

    def pack(self, request: EtcdRequest) -> bytes:
        """Return the bytes of a request."""
        self._due += 1
        return b"%bContent-Length: %d\r\n\r\n%b" % (self._head(request), len(request.body), request.body)

    def begin(self, request: EtcdRequest) -> bytes:
        """Return the head of a request whose body is sent piece by piece, while replies come."""
        self._due, self._stays = 1, False
        self._streamed = iter(())
        return self._head(request) + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"

    def _head(self, request: EtcdRequest) -> bytes:
        if not (SAFE.fullmatch(self._host) and SAFE.fullmatch(request.token)):
            raise ValueError("a host or a token cannot be written into a header")
        login = f"Authorization: {request.token}\r\n" if request.token else ""
        return f"POST /v3/{request.path} HTTP/1.1\r\nHost: {self._host}\r\n{login}".encode("ascii")

    def feed(self, data: bytes) -> None:
        """Take received bytes; none, if the server closed the connection."""
        self._came += data
        self._any = self._any or bool(data)
        self._closed = self._closed or not data

    def reply(self) -> EtcdReply | None:
        """Return the reply once it is complete, or the next object of a stream; else None. Raises BROKEN."""
        if self._streamed is not None:
            if (said := next(self._streamed, None)) is None:
                self._streamed = self._pieces()
                said = next(self._streamed, None)
            return None if said is None else EtcdReply(OK, said)
        while self._due and self._advance():
            reply = EtcdReply(self._status, _read(bytes(self._body)), self._date)
            self._body.clear()
            self._forget()
            self._due -= 1
            if not self.owed:
                return reply
            self.owed[0](reply)
            self.owed.popleft()  # after the call: if that is interrupted, the end of the line calls again
        return None

    def has_heard(self) -> bool:
        """Tell whether the server has ever sent anything."""
        return self._any

    def goes_on(self) -> bool:
        """Tell whether the connection can carry another request, behind those whose replies are owed."""
        owed = len(self.owed)
        return self._due == owed and self._stays and not self._closed and not (self._came and not owed)

    def _pieces(self) -> Iterator[JsonObject]:
        """Yield the complete objects of a stream, one in each line. Raises BROKEN, also if the stream has ended."""
        ended = self._advance()
        *lines, rest = bytes(self._body).split(b"\n")
        self._body[:] = rest
        if ended and rest.strip():
            lines.append(rest)
        for line in lines:
            if line.strip():
                yield _read(line)
        if ended:
            raise ConnectionResetError("the server ended the stream")

    # -- how a reply is read -------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Read the received bytes, and tell whether a reply is complete. Raises BROKEN if it cannot become complete."""
        whole = (self._status != 0 or self._read_head()) and self._read_body()
        if self._closed and not whole:
            raise ConnectionResetError("the server closed the connection")
        return whole

    def _read_head(self) -> bool:
        """Read the head once it is complete. Skip interim heads (status 1xx)."""
        while (end := self._came.find(b"\r\n\r\n")) >= 0:
            head = read_head(bytes(self._came[:end]))
            del self._came[: end + 4]
            if head.status >= 200:  # noqa: PLR2004 - below are those
                self._status, self._date = head.status, head.date
                self._chunked, self._left = head.chunked, head.length
                self._limit_body(head.length or 0)
                self._stays = self._stays and head.stays
                return True
        self._limit()
        return False

    def _read_body(self) -> bool:
        """Read the part of the body that has come, and tell whether the body is complete."""
        if self._chunked:
            return self._read_chunks()
        taken = len(self._came) if self._left is None else min(self._left, len(self._came))
        self._body += self._came[:taken]
        del self._came[:taken]
        self._limit_body(0)
        if self._left is None:
            return self._closed
        self._left -= taken
        return self._left == 0

    def _read_chunks(self) -> bool:
        """Read the complete chunks, and tell whether the last one and its trailers were among them."""
        came = self._came
        while (end := came.find(b"\r\n")) >= 0:
            size = int(_matched(SIZE, bytes(came[:end]))[1], 16)
            if size == 0:
                return self._read_trailers(end)
            self._limit_body(size)
            after = end + 2 + size
            if len(came) < after + 2:
                return False
            if not came.startswith(b"\r\n", after):
                raise ValueError("a chunk of the answer does not end where it should")
            self._body += came[end + 2 : after]
            del came[: after + 2]
        self._limit()
        return False

    def _read_trailers(self, end: int) -> bool:
        """Skip the trailers after the last chunk, up to an empty line."""
        over = self._came.find(b"\r\n\r\n", end)
        if over >= 0:
            del self._came[: over + 4]
        else:
            self._limit()
        return over >= 0

    def _limit_body(self, more: int) -> None:
        """Refuse a body that has more bytes than any reply of etcd, with so `more` to come. Raises ValueError."""
        if len(self._body) + more > LONGEST_REPLY:
            raise ValueError("the answer is too long")

    def _limit(self) -> None:
        if len(self._came) > LONGEST_HEAD:
            raise ValueError("the answer has a head without an end")


class Head(NamedTuple):
    """The fields of a reply's head that its reader needs."""

    status: int
    date: str
    chunked: bool
    length: int | None
    """How many bytes the body has. None: it is chunked, or ends with the connection."""
    stays: bool
    """Whether the connection stays open."""


@lru_cache(maxsize=64)
def read_head(text: bytes) -> Head:
    """Decode a head. Raises ValueError. The replies of a busy second have few different ones."""
    first, separator, headers = text.partition(b"\r\n")
    status = _matched(STATUS, first)
    if int(status[2]) < 200:  # noqa: PLR2004 - an interim head, whose headers do not matter
        return Head(int(status[2]), "", chunked=False, length=None, stays=True)
    _matched(HEADERS, separator + headers)
    known: dict[bytes, bytes] = {}
    for header in USED.findall(separator + headers):
        name, value = header[0].lower(), header[1].rstrip(b" \t").lower()
        if name in {b"content-length", b"transfer-encoding"} and known.get(name, value) != value:
            raise ValueError("the answer tells two lengths")
        known[name] = value
    chunked, length = known.get(b"transfer-encoding"), known.get(b"content-length")
    if chunked not in {None, b"chunked"}:
        raise ValueError("the answer is encoded in a way that was not asked for")
    if length is not None and chunked is None and not length.isdigit():
        raise ValueError("the answer tells no length")
    stays = status[1] == b"1" and (chunked or length) is not None and b"close" not in known.get(b"connection", b"")
    date = known.get(b"date", b"").decode("ascii", "replace")
    exact = int(length) if length is not None and chunked is None else None
    return Head(int(status[2]), date, chunked=chunked is not None, length=exact, stays=stays)


def _matched(pattern: re.Pattern[bytes], line: bytes) -> re.Match[bytes]:
    found = pattern.fullmatch(line)
    if found is None:
        raise ValueError("the answer is no HTTP")
    return found


def piece(body: bytes) -> bytes:
    """Return the bytes of the next chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def _read(text: bytes) -> JsonObject:
    try:
        said = json.loads(text.decode())
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    if not isinstance(said, dict):
        raise ValueError("the answer is no JSON object")  # noqa: TRY004 - one of BROKEN, as all that cannot be read
    return cast("JsonObject", said)
