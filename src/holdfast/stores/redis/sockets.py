"""One connection to a Redis server over a blocking socket.

redis-py makes it: TCP, TLS, credentials, database, names. Then its socket is ours, with a parser of hiredis: what
redis-py does around every command costs more than the command. One thread at a time uses a connection.

Rule of this file: a connection on which anything went wrong is never used again, so that a reply that comes late
answers nobody.
"""

import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import RedisError
from redis.retry import Retry

from holdfast.errors import StoreUnavailable
from holdfast.posix import POSIX
from holdfast.runtimes import clocks
from holdfast.stores.redis import wire
from holdfast.stores.redis.access import RedisAccess
from holdfast.stores.redis.link import RedisAddress
from holdfast.transport.dial import SHORTEST, Secure, dial, ignore_stage
from holdfast.transport.polling import is_readable

CHUNK = 65536
"""How much is read at once, in bytes."""

ONE_RECORD = 16384
"""A request up to this size is sent by TLS whole or not at all; plain sockets take far more at once."""

SLACK = 1.25
"""How much longer than asked a socket may wait, so that not every request sets its timeout anew."""

BROKEN = (OSError, hiredis.ProtocolError)
"""What goes wrong with a connection. Timeouts and errors of TLS are OSErrors."""


class RedisUnsent(StoreUnavailable):
    """Nothing of the request was sent: it may be tried on another connection."""


class RedisConnection:
    """A socket that speaks RESP 2, and the server process at its other end. Nothing comes on it unasked."""

    __slots__ = (
        "__weakref__",
        "_feed",
        "_gets",
        "_read",
        "_recv",
        "_send",
        "_socket",
        "_timeout",
        "descriptor",
        "run_id",
        "used",
    )

    def __init__(self, connected: socket.socket) -> None:
        """Take over a socket on which no reply is due."""
        reader = wire.new_reader()
        self._socket = connected
        self.descriptor = connected.fileno()
        """What to wait on."""
        self._send = _sender(connected)
        self._recv = connected.recv
        self._read = _reader(connected)
        self._feed, self._gets = reader.feed, reader.gets
        self._timeout = connected.gettimeout() or 0.0
        self.run_id = b""
        self.used = 0.0
        """When it was last taken, for its owner to note."""

    def exchange(self, packed: bytes, left: float) -> Any:  # noqa: ANN401 - whatever the server answers
        """Send a request and return its reply, in `left` seconds or a little more. Raises Unsent or BROKEN.

        If several requests are packed, `reply` returns the other replies.
        """
        self.send(packed, left)
        self._feed(self._recv(CHUNK))  # nothing, if the connection was closed: `reply` finds that out
        reply = self._gets()
        return self.reply(left) if reply is wire.NOTHING else reply

    def send(self, packed: bytes, left: float) -> None:
        """Send a request; `reply` returns its reply. Raises Unsent or BROKEN."""
        if not left <= self._timeout <= left * SLACK:
            self._limit(left)
        try:
            sent = self._send(packed)
        except OSError as error:
            sent = self._send_later(packed, error)
        if sent < len(packed):
            self._socket.sendall(memoryview(packed)[sent:])

    def reply(self, left: float) -> Any:  # noqa: ANN401 - whatever the server answers
        """Return the next reply, in `left` seconds or a little more, in however many pieces it comes. Raises BROKEN."""
        until = clocks.steady() + left
        while (reply := self._gets()) is wire.NOTHING:
            if (left := until - clocks.steady()) <= 0:
                raise TimeoutError("the reply came too slowly")
            self._limit(left)
            self._feed(self._receive())
        return reply

    def take(self, left: float) -> Any:  # noqa: ANN401 - whatever the server answers
        """Return the next reply, some of which has come, or NOTHING if that is not all of it. Raises BROKEN.

        TLS, which may have more of it than the socket shows, waits for the rest, for `left` seconds; so does any
        connection where a socket is no file.
        """
        if self._read is None:
            return self.reply(left)
        try:
            data = self._read(CHUNK)
        except BlockingIOError:
            return wire.NOTHING
        self._feed(_some(data))
        return self._gets()

    def is_stale(self) -> bool:
        """Tell whether an idle connection was closed by the server, or has heard something that nobody asked for."""
        return is_readable(self._socket)

    def close(self) -> None:
        """Close it, also for the copies that forked children may have."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.abandon()

    def abandon(self) -> None:
        """In a forked child: close this copy without a word, and leave the parent's as it is."""
        self._send, self._read = self._socket.send, None  # which know that the descriptor is no longer ours
        with contextlib.suppress(OSError):
            self._socket.close()

    # What the listener needs: to be woken when something came, and never to wait in here.

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def never_wait(self) -> None:
        """From now on, have `heard` return at once what there is."""
        self._socket.settimeout(0)

    def post(self, packed: bytes, within: float) -> None:
        """Send, and leave it to `heard` to receive the replies. Raises OSError."""
        self._socket.settimeout(within)
        self._socket.sendall(packed)
        self._socket.settimeout(0)

    def heard(self) -> Iterator[Any]:
        """Return what has come by now. Raises BROKEN."""
        while True:
            try:
                self._feed(self._receive())
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            while (reply := self._gets()) is not wire.NOTHING:
                yield reply
            if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                return

    def _receive(self) -> bytes:
        return _some(self._recv(CHUNK))

    def _send_later(self, packed: bytes, error: OSError) -> int:
        """Return 0 if a request can yet be sent. Raises Unsent if no part of it was, else the error."""
        if isinstance(error, BlockingIOError):
            return 0
        if isinstance(error, TimeoutError) or len(packed) > ONE_RECORD:
            raise error
        raise RedisUnsent("the server closed the connection before a request was sent") from error

    def _limit(self, left: float) -> None:
        self._timeout = max(left, SHORTEST) * (1 + SLACK) / 2
        self._socket.settimeout(self._timeout)


def _sender(connected: socket.socket) -> Callable[[bytes], int]:
    """Return what sends as much as the system takes at once.

    Where a socket is a file, that is write(): Python's own send() would first ask the system whether it takes anything.
    """
    if isinstance(connected, ssl.SSLSocket) or not POSIX:
        return connected.send
    return partial(os.write, connected.fileno())


def _reader(connected: socket.socket) -> Callable[[int], bytes] | None:
    """Return what reads as much as has come: Python's own recv() would first ask whether something has.

    None if only recv() can: with TLS, and where a socket is no file.
    """
    return None if isinstance(connected, ssl.SSLSocket) or not POSIX else partial(os.read, connected.fileno())


def _some(data: bytes) -> bytes:
    if not data:
        raise ConnectionResetError("the server closed the connection")
    return data


class _Punctual(AbstractConnection):
    """Has all steps of connecting together end by one instant: redis-py limits each of them alone."""

    left: Callable[[], float]
    """Tells what is left, in seconds. To be set before connecting."""
    on_stage: Callable[[OSError], None]
    """Is told what went wrong if the step that begins now is never done. To be set before connecting."""
    _sock: Any

    @property
    def socket_timeout(self) -> float:
        """How long the next step may take."""
        return max(SHORTEST, self.left())

    @socket_timeout.setter
    def socket_timeout(self, value: float | None) -> None: ...

    @property
    def socket_connect_timeout(self) -> float:
        """How long the next address may take."""
        return self.socket_timeout

    @socket_connect_timeout.setter
    def socket_connect_timeout(self, value: float | None) -> None: ...

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: ANN401, FBT001, FBT002
        """Send a part of the handshake."""
        self._sock.settimeout(self.socket_timeout)
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

    def surrender(self) -> socket.socket:
        """Return the socket, and forget it: redis-py would close it by and by."""
        ours: socket.socket = self._sock
        self._sock = None
        return ours


class _PunctualTcp(_Punctual, redis.Connection):
    def _connect(self) -> socket.socket:  # pyright: ignore[reportIncompatibleMethodOverride]
        return dial(self.host, self.port, self.left, family=self.socket_type, on_stage=self.on_stage)


class _PunctualTls(_Punctual, redis.SSLConnection):
    def _connect(self) -> socket.socket:  # pyright: ignore[reportIncompatibleMethodOverride]
        secure = cast("Secure", self._wrap_socket_with_ssl)  # pyright: ignore[reportUnknownMemberType]
        return dial(self.host, self.port, self.left, secure, family=self.socket_type, on_stage=self.on_stage)


class _PunctualUnix(_Punctual, redis.UnixDomainSocketConnection):
    def _connect(self) -> socket.socket:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.on_stage(TimeoutError())
        return cast("socket.socket", super()._connect())  # type: ignore[no-untyped-call]


def connect(  # noqa: PLR0917 - what a link knows
    access: RedisAccess,
    address: RedisAddress,
    now: Callable[[], float],
    until: float,
    identify: wire.Identify,
    on_stage: Callable[[OSError], None] = ignore_stage,
) -> RedisConnection:
    """Connect by `until`, and learn what `identify` asks for.

    `on_stage` is told what went wrong if the step that begins then is never done.

    Raises StoreError, StoreUnavailable if it may pass.
    """
    try:
        connection = RedisConnection(_open(access, address, lambda: until - now(), on_stage))
    except (RedisError, OSError) as error:
        raise wire.cannot_connect(address, error) from error
    try:
        if identify:
            replies = [connection.exchange(request, until - now()) for request in identify]
            connection.run_id = wire.identity_of(address, *replies)
    except BROKEN as error:
        connection.close()
        raise wire.cannot_connect(address, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _open(
    access: RedisAccess, address: RedisAddress, left: Callable[[], float], on_stage: Callable[[OSError], None]
) -> socket.socket:
    options = {**access.connection_options(address), "protocol": 2, "retry": Retry(NoBackoff(), 0)}
    kind: Any = _PunctualUnix if address.path else _PunctualTls if access.tls else _PunctualTcp
    connecting = kind(**options)
    connecting.left, connecting.on_stage = left, on_stage
    connecting.connect()
    connected: socket.socket = connecting.surrender()
    return connected
