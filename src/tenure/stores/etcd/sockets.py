"""One connection to an etcd server over a blocking socket. One thread at a time uses it.

Rule of this file: a connection on which anything went wrong is never used again. So a late reply answers no later
request.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial

from tenure.stores.etcd.errors import cannot_connect
from tenure.stores.etcd.http import CHUNK, HttpConversation
from tenure.stores.etcd.link import EtcdAddress, EtcdReply, EtcdRequest, Said
from tenure.transport.dial import SHORTEST, dial
from tenure.transport.polling import is_readable


class EtcdUnsent(OSError):
    """No part of a request was sent: another connection may send it."""


class EtcdConnection:
    """A socket that speaks HTTP."""

    __slots__ = ("__weakref__", "_conversation", "_socket", "address", "used")

    def __init__(self, connected: socket.socket, address: EtcdAddress) -> None:
        """Take over a socket."""
        self._socket = connected
        self._conversation = HttpConversation(address)
        self.address = address
        self.used = 0.0
        """When it was last taken, for its owner to note."""

    def exchange(self, request: EtcdRequest, left: Callable[[], float]) -> EtcdReply:
        """Send a request and return its reply, before nothing is `left`. Raises EtcdUnsent or BROKEN."""
        self.send(request, left)
        while True:
            self._limit(left)
            self._conversation.feed(self._socket.recv(CHUNK))
            if (answer := self._conversation.answer()) is not None:
                return answer

    def send(self, request: EtcdRequest, left: Callable[[], float]) -> None:
        """Send a request. Raises EtcdUnsent or BROKEN."""
        self._send(self._conversation.pack(request), left)

    def begin(self, request: EtcdRequest, left: Callable[[], float]) -> None:
        """Send the head of a request, whose body `say` sends. Raises EtcdUnsent or BROKEN."""
        self._send(self._conversation.begin(request), left)

    def _send(self, packed: bytes, left: Callable[[], float]) -> None:
        self._limit(left)
        try:
            sent = self._socket.send(packed)
        except TimeoutError:
            raise
        except OSError as error:
            raise EtcdUnsent("the server closed the connection before a request was sent") from error
        if sent < len(packed):
            self._socket.sendall(memoryview(packed)[sent:])

    def has_heard(self) -> bool:
        """Tell whether the server has ever sent anything."""
        return self._conversation.has_heard()

    def goes_on(self) -> bool:
        """Tell whether the connection can carry another request."""
        return self._conversation.goes_on()

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

    # What the listener needs: it waits for the socket by itself, and never in these methods.

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 once it is closed."""
        return self._socket.fileno()

    def never_wait(self) -> None:
        """Make the socket non-blocking, so that `heard` and `say` return at once."""
        self._socket.settimeout(0)

    def say(self, data: bytes) -> int:
        """Send as many bytes as the socket takes at once, and return how many. Raises BROKEN."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0

    def heard(self) -> Iterator[Said]:
        """Yield the messages of a stream that have come by now. Raises BROKEN."""
        while True:
            try:
                self._conversation.feed(self._socket.recv(CHUNK))
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            yield from self._conversation.pieces()

    def _limit(self, left: Callable[[], float]) -> None:
        seconds = left()
        if seconds <= 0.0:
            raise TimeoutError("no time was left")
        self._socket.settimeout(max(seconds, SHORTEST))


def connect(address: EtcdAddress, tls: ssl.SSLContext | None, left: Callable[[], float]) -> EtcdConnection:
    """Return a connection that is made before nothing is `left`. Raises StoreError, EtcdNotSent if it may pass."""
    secure = None if tls is None else partial(tls.wrap_socket, server_hostname=address.host)
    try:
        return EtcdConnection(dial(address.host, address.port, left, secure), address)
    except OSError as error:
        raise cannot_connect(address, error) from error
