"""One connection to a memcached server over a blocking socket. One thread at a time uses a connection.

Rule of this file: a connection on which anything went wrong is never used again. So a late reply answers no later
request.
"""

import contextlib
import socket
from collections.abc import Callable

from holdfast.stores.memcached import errors
from holdfast.stores.memcached.errors import BROKEN, MemcachedUnsent
from holdfast.stores.memcached.greeting import QUESTIONS, server_of_greeting
from holdfast.stores.memcached.link import MemcachedAddress, MemcachedRequest, MemcachedServer
from holdfast.stores.memcached.protocol import MetaReply, ReplyReader, is_complete
from holdfast.transport.dial import SHORTEST, dial
from holdfast.transport.polling import is_readable

CHUNK = 65_536

Left = Callable[[], float]
"""Returns for how many seconds an operation may still go on."""


class MemcachedConnection:
    """A connection, and what the server said of itself."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        self.used = 0.0
        self.server = MemcachedServer("", evicts=True)
        """Set once the server was asked."""
        self._socket = connected
        self._reader = ReplyReader()
        self._goes_on = True

    def greet(self, address: MemcachedAddress, left: Left) -> None:
        """Ask the server what it is. Raises BROKEN, and StoreError if it is no memcached or cannot keep locks."""
        replies: list[MetaReply] = []
        for question in QUESTIONS:
            replies += self.exchange(question, left)
            if not self._goes_on:
                break
        self.server = server_of_greeting(address, replies)

    def exchange(self, request: MemcachedRequest, left: Left) -> list[MetaReply]:
        """Send a request, and return its replies. Raises BROKEN, or MemcachedUnsent if nothing was sent."""
        self._limit(left)
        self._send(request.packed)
        expected, take = request.replies, self._reader.take
        replies: list[MetaReply] = []
        while not replies or not is_complete(replies, expected):
            while (reply := take()) is None:
                self._receive(left)
            replies.append(reply)
        self._goes_on = replies[-1].goes_on() and self._reader.is_empty()
        return replies

    def goes_on(self) -> bool:
        """Tell whether the connection can carry another request."""
        return self._goes_on

    def is_stale(self) -> bool:
        """Tell whether the server has closed an idle connection."""
        return is_readable(self._socket)

    def close(self) -> None:
        """Close the connection, also for the copies that forked children may have."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.abandon()

    def abandon(self) -> None:
        """In a forked child: close this copy, and leave the parent's connection as it is."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _send(self, packed: bytes) -> None:
        try:
            sent = self._socket.send(packed)
        except TimeoutError:
            raise
        except OSError as error:
            raise MemcachedUnsent("the server closed the connection before a request was sent") from error
        if sent < len(packed):
            self._socket.sendall(memoryview(packed)[sent:])

    def _receive(self, left: Left) -> None:
        self._limit(left)
        data = self._socket.recv(CHUNK)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._reader.feed(data)

    def _limit(self, left: Left) -> None:
        seconds = left()
        if seconds <= 0.0:
            raise TimeoutError("no time was left")
        self._socket.settimeout(max(seconds, SHORTEST))


def connect(address: MemcachedAddress, left: Left) -> MemcachedConnection:
    """Return a connection to a server that keeps locks, made before nothing is `left`. Raises StoreError."""
    try:
        connection = MemcachedConnection(dial(address.host, address.port, left))
    except OSError as error:
        raise errors.cannot_connect(address, error) from error
    try:
        connection.greet(address, left)
    except (MemcachedUnsent, *BROKEN) as error:
        connection.abandon()
        raise errors.no_greeting(address, error.__cause__ or error) from error
    except BaseException:
        connection.abandon()
        raise
    return connection
