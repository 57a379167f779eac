"""HTTP/1.1 with a server, without a socket: what to send, and what is in that which came. h11 reads it."""

import json
from collections.abc import Iterator
from typing import cast

import h11

from holdfast.stores.etcd.link import Address, Answer, Request, Said

BROKEN = (OSError, h11.ProtocolError, ValueError)
"""What goes wrong with a connection, or with what comes on it. Timeouts and errors of TLS are OSErrors."""

CHUNK = 65536
"""How much is read at once, in bytes."""

OK = 200


class Talk:
    """What is said on one connection: one request at a time, and its answer."""

    __slots__ = ("_body", "_host", "_http", "_status")

    def __init__(self, address: Address) -> None:
        """Begin anew."""
        self._host = str(address)
        self._http = h11.Connection(h11.CLIENT)
        self._status = 0
        self._body = bytearray()

    def pack(self, request: Request) -> bytes:
        """Return what is to be sent, in one piece."""
        head = self._head(request, ("Content-Length", str(len(request.body))))
        events = (head, h11.Data(request.body), h11.EndOfMessage())
        return b"".join(self._http.send(event) or b"" for event in events)

    def begin(self, request: Request) -> bytes:
        """Return what begins a request whose body is said by and by, and which is answered meanwhile."""
        head = self._head(request, ("Connection", "close"), ("Transfer-Encoding", "chunked"))
        return self._http.send(head) or b""

    def _head(self, request: Request, *headers: tuple[str, str]) -> h11.Request:
        login = [("Authorization", request.token)] if request.token else []
        return h11.Request(
            method="POST", target=f"/v3/{request.path}", headers=[("Host", self._host), *headers, *login]
        )

    def feed(self, data: bytes) -> None:
        """Take what came; nothing, if the connection was closed."""
        self._http.receive_data(data)

    def answer(self) -> Answer | None:
        """Return the answer once it is complete. Raises BROKEN."""
        if not self._advance():
            return None
        said = _read(bytes(self._body))
        self._body.clear()
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return Answer(self._status, said)

    def goes_on(self) -> bool:
        """Tell whether another request may be sent."""
        return self._http.our_state is h11.IDLE

    def pieces(self) -> Iterator[Said]:
        """Return what is complete of a stream: an object a line. Raises BROKEN, also if the stream has ended."""
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

    def _advance(self) -> bool:
        """Read what came; tell whether a message is complete."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                self._status = event.status_code
            elif isinstance(event, h11.Data):
                self._body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return True
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("the server closed the connection")
            elif event is h11.NEED_DATA or event is h11.PAUSED:
                return False


def piece(body: bytes) -> bytes:
    """Return what says a piece of a body that has begun."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def _read(text: bytes) -> Said:
    said = json.loads(text)
    if not isinstance(said, dict):
        raise ValueError("the answer is no JSON object")  # noqa: TRY004 - one of BROKEN, as all that cannot be read
    return cast("Said", said)
