"""Commands to a Redis server over a plain socket, to set servers up and to inspect them.

The rule: tests of a Redis store must not depend on the client library that the store uses.
"""

import socket
from types import TracebackType
from typing import Self

Reply = str | int | list["Reply"] | None


class ReplyError(Exception):
    """The error reply of the server."""


class RespWire:
    """One connection with the protocol RESP 2."""

    def __init__(self, address: tuple[str, int], *, login: tuple[str, str] | None = None, timeout: float = 5.0) -> None:
        """Connect, and log in as `(user, password)`. Raises `OSError`."""
        self._socket = socket.create_connection(address, timeout)
        self._stream = self._socket.makefile("rb")
        if login is not None:
            self.command("AUTH", *login)

    def command(self, *words: object) -> Reply:
        """Send one command; return its reply. Raises `ReplyError` or `OSError`."""
        self.send(*words)
        return self.receive()

    def send(self, *words: object) -> None:
        """Send one command without waiting for its reply."""
        encoded = [str(word).encode("utf-8", "surrogateescape") for word in words]
        parts = [b"*%d\r\n" % len(encoded), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)]
        self._socket.sendall(b"".join(parts))

    def receive(self) -> Reply:
        """Read one reply. Raises `ReplyError` or `OSError`."""
        line = self._stream.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("The server closed the connection.")
        kind, text = line[:1], line[1:-2].decode("utf-8", "surrogateescape")
        if kind == b"-":
            raise ReplyError(text)
        if kind == b"+":
            return text
        number = int(text)
        if kind == b":":
            return number
        if number < 0:
            return None
        return self._text(number) if kind == b"$" else [self.receive() for _ in range(number)]

    def _text(self, length: int) -> str:
        content = self._stream.read(length + 2)
        if len(content) != length + 2:
            raise ConnectionResetError("The server closed the connection.")
        return content[:-2].decode("utf-8", "surrogateescape")

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def pairs(reply: Reply) -> dict[str, Reply]:
    """Convert a flat list of names and values into a dict."""
    if not isinstance(reply, list):
        raise ReplyError(f"A list was expected, not {reply!r}.")
    return {str(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def info(reply: Reply) -> dict[str, str]:
    """Parse the fields of INFO and similar commands."""
    return dict(line.split(":", 1) for line in str(reply).splitlines() if ":" in line)
