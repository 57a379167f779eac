"""One connection to an etcd server over a blocking socket. One thread at a time uses it.

Rule of this file: a connection on which anything went wrong is never used again, so that an answer that comes late
answers nobody.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial

from holdfast.stores.etcd.errors import cannot_connect
from holdfast.stores.etcd.http import CHUNK, HttpConversation
from holdfast.stores.etcd.link import EtcdAddress, EtcdReply, EtcdRequest, Said
from holdfast.transport.dial import SHORTEST, dial
from holdfast.transport.polling import is_readable


class EtcdUnsent(OSError):
    """Nothing of a request was sent: it may be sent on another connection."""


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
        """Send a request and return its answer, before nothing is `left`. Raises Unsent or BROKEN."""
        self.send(request, left)
        while True:
            self._limit(left)
            self._conversation.feed(self._socket.recv(CHUNK))
            if (answer := self._conversation.answer()) is not None:
                return answer

    def send(self, request: EtcdRequest, left: Callable[[], float]) -> None:
        """Send a request. Raises Unsent or BROKEN."""
        self._send(self._conversation.pack(request), left)

    def begin(self, request: EtcdRequest, left: Callable[[], float]) -> None:
        """Begin a request whose body is still to be said. Raises Unsent or BROKEN."""
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
        """Tell whether the server has ever said anything."""
        return self._conversation.has_heard()

    def goes_on(self) -> bool:
        """Tell whether it can be used for another request."""
        return self._conversation.goes_on()

    def is_stale(self) -> bool:
        """Tell whether an idle connection was closed by the server."""
        return is_readable(self._socket)

    def close(self) -> None:
        """Close it, also for the copies that forked children may have."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.abandon()

    def abandon(self) -> None:
        """In a forked child: close this copy without a word."""
        with contextlib.suppress(OSError):
            self._socket.close()

    # What the listener needs: to be woken when something came, and never to wait in here.

    def fileno(self) -> int:
        """Return the descriptor to wait on; -1 once it is closed."""
        return self._socket.fileno()

    def never_wait(self) -> None:
        """From now on, have `heard` and `say` do at once what can be done."""
        self._socket.settimeout(0)

    def say(self, data: bytes) -> int:
        """Send as much as can be sent at once; return how much that was. Raises BROKEN."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0

    def heard(self) -> Iterator[Said]:
        """Return what has come of a stream by now. Raises BROKEN."""
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
    """Connect before nothing is `left`. Raises StoreError, NotSent if it may pass."""
    secure = None if tls is None else partial(tls.wrap_socket, server_hostname=address.host)
    try:
        return EtcdConnection(dial(address.host, address.port, left, secure), address)
    except OSError as error:
        raise cannot_connect(address, error) from error
