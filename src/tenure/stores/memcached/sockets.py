"""One connection to a memcached server over a blocking socket. One thread at a time uses a connection.

Rule of this file: a connection on which anything went wrong is never used again. So a late reply answers no later
request.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from functools import partial

from tenure.posix import POSIX
from tenure.runtimes import clocks
from tenure.stores.memcached import errors
from tenure.stores.memcached.errors import BROKEN, MemcachedUnsent
from tenure.stores.memcached.greeting import QUESTIONS, server_of_greeting
from tenure.stores.memcached.link import MemcachedAddress, MemcachedRequest, MemcachedServer
from tenure.stores.memcached.protocol import CODES, MetaReply, ReplyReader, is_complete
from tenure.transport.dial import SHORTEST, dial
from tenure.transport.polling import is_readable

CHUNK = 16_384
"""How much is read at once, in bytes."""

SLACK = 1.25
"""By which factor the timeout of a socket may exceed what a request has left: so few requests set it anew."""

Left = Callable[[], float]
"""Returns for how many seconds an operation may still go on."""


class MemcachedConnection:
    """A connection, and what the server said of itself."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        self.used = 0.0
        self.server = MemcachedServer("", evicts=True)
        """Set once the server was asked."""
        self.goes_on = True
        """Whether the connection can carry another request."""
        self._socket = connected
        self._send: Callable[[bytes], int] = connected.send
        self._receive: Callable[[int], bytes] = connected.recv
        if POSIX:
            connected.settimeout(None)
            self._send, self._receive = partial(os.write, connected.fileno()), partial(os.read, connected.fileno())
        self._timeout = 0.0
        self._reader = ReplyReader()

    def greet(self, address: MemcachedAddress, left: Left) -> None:
        """Ask the server what it is. Raises BROKEN, and StoreError if it is no memcached or cannot keep locks."""
        replies: list[MetaReply] = []
        for question in QUESTIONS:
            replies += self.exchange(question, left())
            if not self.goes_on:
                break
        self.server = server_of_greeting(address, replies)

    def command(self, packed: bytes, left: float) -> MetaReply:
        """Send one command, and return its reply, in `left` seconds or a little more.

        Raises BROKEN, or MemcachedUnsent if nothing was sent.
        """
        reply = self._first_reply(packed, left)
        if reply is None:
            replies: list[MetaReply] = []
            self._rest(replies, 1, left)
            reply = replies[0]
        self.goes_on = reply.code in CODES and self._reader.is_empty()
        return reply

    def exchange(self, request: MemcachedRequest, left: float) -> list[MetaReply]:
        """Send several commands, and return their replies, in `left` seconds or a little more.

        Raises BROKEN, or MemcachedUnsent if nothing was sent.
        """
        reply = self._first_reply(request.packed, left)
        replies = [] if reply is None else [reply]
        self._rest(replies, request.replies, left)
        self.goes_on = replies[-1].goes_on() and self._reader.is_empty()
        return replies

    def _first_reply(self, packed: bytes, left: float) -> MetaReply | None:
        """Send commands, and receive once; return the first reply, or None if only a part of it has come."""
        if not left <= self._timeout <= left * SLACK:
            self._limit(left)
        try:
            sent = self._send(packed)
        except OSError as error:
            sent = self._send_later(error)
        if sent < len(packed):
            self._socket.sendall(memoryview(packed)[sent:])
        self._feed()
        return self._reader.take()

    def _rest(self, replies: list[MetaReply], expected: int, left: float) -> None:
        """Take the replies that did not come at once."""
        until = clocks.steady() + left
        while not replies or not is_complete(replies, expected):
            while (reply := self._reader.take()) is None:
                self._limit(until - clocks.steady())
                self._feed()
            replies.append(reply)

    def _feed(self) -> None:
        try:
            data = self._receive(CHUNK)
        except BlockingIOError:  # so says read() if the time is over
            raise TimeoutError("the reply did not come in time") from None
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._reader.feed(data)

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
        self._send, self._receive = self._socket.send, self._socket.recv  # these know when the descriptor is closed
        with contextlib.suppress(OSError):
            self._socket.close()

    def _send_later(self, error: OSError) -> int:
        """Return 0 if the socket was only full, for nothing was sent. Raises MemcachedUnsent, or the error."""
        if isinstance(error, BlockingIOError):
            return 0
        if isinstance(error, TimeoutError):
            raise error
        raise MemcachedUnsent("the server closed the connection before a request was sent") from error

    def _limit(self, left: float) -> None:
        """Let the system end what takes longer: Python's own timeout asks it once more before each step."""
        if left <= 0.0:
            raise TimeoutError("no time was left")
        self._timeout = max(left, SHORTEST) * (1 + SLACK) / 2
        if not POSIX:
            self._socket.settimeout(self._timeout)
            return
        whole = int(self._timeout)
        limit = struct.pack("@ll", whole, int((self._timeout - whole) * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


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
