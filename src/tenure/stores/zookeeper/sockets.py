"""What kazoo's thread reads from and writes to: the connection to a server, and the pipe that wakes the thread."""

import contextlib
import socket
import ssl
import threading
from collections import deque
from typing import Any

from tenure.stores.zookeeper.attempts import CLOSED, Attempts, failure_of
from tenure.transport.polling import WRITABLE, new_poll

CHUNK = 65536
"""How many bytes are received at once."""

MUCH = 4096
"""More bytes than a wake-up pipe usually contains."""

GREETING = 12
"""The number of bytes at the start of a server's first reply that end with the session's timeout."""


class SlowError(Exception):
    """An operation of kazoo timed out."""


def shut_down(connection: socket.socket) -> None:
    """Shut a socket down, so that the thread that uses it fails."""
    with contextlib.suppress(OSError):  # not TLS's own shutdown: it makes a read in that thread fail in other ways
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class ZooKeeperConnection:
    """A connection to a server, which reads the session's timeout from the server's first reply.

    kazoo receives each reply in two parts, and waits for the socket before each of them. So all that has arrived is
    received at once, and kazoo gets its parts from here without a system call.
    """

    def __init__(self, connection: Any, attempts: Attempts, opened_at: float) -> None:  # noqa: ANN401 - a socket
        self._connection = connection
        self._attempts = attempts
        self._now = attempts.now
        self.opened_at = opened_at
        self.heard_at = opened_at
        """The instant at which data last arrived."""
        self._secured = isinstance(connection, ssl.SSLSocket)
        self._received: bytes = b""
        self._taken = 0
        """How much of the received data kazoo has taken."""
        self._send_timeout: float | None = None
        self.fileno = connection.fileno
        self.close = connection.close
        self.setblocking = connection.setblocking
        self._greeting = b""

    def recv(self, size: int) -> bytes:
        """Return received data, and receive more if there is none."""
        if self._taken == len(self._received):
            self._received, self._taken = self._receive(max(size, CHUNK)), 0
        data = self._received[self._taken : self._taken + size]
        self._taken += len(data)
        return data

    def pending(self) -> int:
        """Return how many bytes can be taken without a wait: received ones, or of a record of TLS that was read."""
        left = len(self._received) - self._taken
        return left or (int(self._connection.pending()) if self._secured else 0)

    def _receive(self, size: int) -> bytes:
        """Receive data, and keep the start of the server's first reply."""
        data: bytes = self._connection.recv(size) if self.is_greeted() else self._receive_greeting(size)
        self.heard_at = self._now()
        return data

    def may_send(self, timeout: float | None) -> bool:
        """Return whether `send` waits by itself, for so many seconds, until the system takes data; not with TLS."""
        self._send_timeout = timeout
        return not self._secured

    def send(self, data: bytes) -> int:
        """Send data, and return how much was sent. Raises SlowError if the system took none for too long."""
        try:
            return int(self._connection.send(data))
        except BlockingIOError:
            ready = new_poll()
            ready.register(self._connection, WRITABLE)
            if not ready.poll(None if self._send_timeout is None else self._send_timeout * 1000):
                raise SlowError("socket time-out during write") from None
            return int(self._connection.send(data))

    def _receive_greeting(self, size: int) -> bytes:
        try:
            data: bytes = self._connection.recv(size)
        except (BlockingIOError, ssl.SSLWantReadError):
            raise
        except OSError as error:  # with TLS, a server refuses a client only at the first read
            self._attempts.note(failure_of(error))
            raise
        if not data:
            self._attempts.note(CLOSED)
        self._greeting += data
        if self.is_greeted():
            self._attempts.reached()
        return data

    def is_greeted(self) -> bool:
        """Return whether the server has accepted the session."""
        return len(self._greeting) >= GREETING

    def session_timeout(self) -> float:
        """Return how long the server keeps the session of a silent client, in seconds."""
        return int.from_bytes(self._greeting[8:GREETING], "big") / 1000

    def break_off(self) -> None:
        """Break the connection, so that the thread that uses it fails."""
        shut_down(self._connection)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a socket has
        return getattr(self._connection, name)


class Reminder:
    """The wake-up pipe of kazoo's thread, both ends of it. kazoo writes a byte per request, and reads it to send that.

    The requests are only counted here. A pair of sockets, as kazoo would use, buffers a few hundred bytes; then a
    sender blocks until the thread has sent some. If the thread itself sends a request, as it does for messages, it
    would block for ever. This pipe wakes the thread, however often, and never blocks.
    """

    def __init__(self) -> None:
        """Create the pipe without requests."""
        self.sockets = socket.socketpair()
        self._inside, self._outside = self.sockets
        for each in self.sockets:
            each.settimeout(0)
        self._requests = deque[None]()
        """One element per request: several threads could not count a number correctly."""
        self.fileno = self._inside.fileno
        self.thread = 0
        """The id of the thread that waits for this pipe."""

    def send(self, data: bytes) -> int:
        """Count a request, and wake the thread; the thread itself looks for requests before it waits."""
        self._requests.append(None)
        if threading.get_ident() != self.thread or self._outside.fileno() < 0:
            self.wake()
        return len(data)

    def recv(self, _size: int) -> bytes:
        """Remove a request from the count."""
        if self._requests:  # only the thread itself removes some
            self._requests.pop()
        return b"."

    def wake(self) -> None:
        """Wake the thread, which looks for noted work. Raises OSError once the pipe is closed."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full, which wakes the thread, too
            self._outside.send(b".")

    def clear(self) -> None:
        """Empty the pipe, so that later work wakes the thread again."""
        with contextlib.suppress(BlockingIOError):
            self._inside.recv(MUCH)

    def has_requests(self) -> bool:
        """Return whether there are requests to send."""
        return bool(self._requests)

    def close(self) -> None:
        """Close both ends."""
        for each in self.sockets:
            each.close()
