"""One connection to a Redis server over a blocking socket.

redis-py makes the connection: TLS, credentials, database, names. Then this module takes over its socket and reads it
with hiredis, because what redis-py does around every command costs more than the command. One thread at a time uses a
connection.

Rule of this file: a connection on which anything went wrong is never used again. So a late reply answers no later
request.
"""

import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import RedisError
from redis.retry import Retry

from tenure.contracts.limits import LONGEST_REPLY
from tenure.errors import StoreUnavailable
from tenure.posix import POSIX
from tenure.runtimes import clocks
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.link import RedisAccess, RedisAddress, ignore_greeting
from tenure.transport.dial import SHORTEST, Secure, dial, ignore_stage
from tenure.transport.polling import is_readable

CHUNK = 65536
"""How much is read at once, in bytes."""

ONE_RECORD = 16384
"""TLS sends a request of up to this many bytes whole or not at all; a plain socket takes far more at once."""

REST = 0.1
"""How long the rest of a reply that is owed may take, in seconds, once a part of it has come."""

SLACK = 1.25
"""By which factor the timeout of a socket may exceed what a request has left: so few requests set it anew."""

BROKEN = (OSError, hiredis.ProtocolError)
"""The errors of a connection. Timeouts and errors of TLS are OSErrors."""


class RedisUnsent(StoreUnavailable):
    """No part of the request was sent: another connection may send it."""


class RedisConnection:
    """A socket that speaks RESP 2 with one server process. The server sends replies only."""

    __slots__ = (
        "__weakref__",
        "_feed",
        "_gets",
        "_has_data",
        "_read",
        "_recv",
        "_send",
        "_socket",
        "_timeout",
        "_unfinished",
        "descriptor",
        "owed",
        "run_id",
        "used",
    )

    def __init__(self, connected: socket.socket) -> None:
        reader = wire.new_reader()
        self._socket = connected
        self.descriptor = connected.fileno()
        """The descriptor to wait for."""
        self._send = _sender(connected)
        self._recv: Callable[[int], bytes] = connected.recv
        self._read = _reader(connected)
        self._feed, self._gets, self._has_data = reader.feed, reader.gets, reader.has_data
        self._unfinished = 0
        """How many bytes of a reply that is not complete have come, as far as `take` and `heard` read it."""
        self._timeout = connected.gettimeout() or 0.0
        self.run_id = b""
        self.owed: deque[Callable[[Any], None]] = deque()
        """What gets the replies that are due and that no caller waits for, in their order; None if one never comes."""
        self.used = 0.0
        """When it was last taken, for its owner to note."""

    def exchange(self, packed: bytes, left: float) -> Any:  # noqa: ANN401 - whatever the server answers
        """Send a request and return its reply, in `left` seconds or a little more. Raises RedisUnsent or BROKEN.

        If several requests are packed, `reply` returns the other replies.
        """
        if not left <= self._timeout <= left * SLACK:  # `send`, without the cost of a call
            self._limit(left)
        try:
            sent = self._send(packed)
        except OSError as error:
            sent = self._send_later(packed, error)
        if sent < len(packed):
            self._socket.sendall(memoryview(packed)[sent:])
        if self.owed:
            until = clocks.steady() + left
            while self.owed:
                self._tell(self.reply(until - clocks.steady()))
            return self.reply(until - clocks.steady())
        data = self._recv(CHUNK)  # b"" if the server closed the connection: `reply` finds that out
        if data[:1] in wire.LISTS and wire.begins_giant(data):
            raise wire.giant()
        self._feed(data)
        reply = self._gets()
        return self.reply(left) if reply is wire.NOTHING else reply

    def send_owed(self, packed: bytes, left: float, told: Callable[[Any], None]) -> None:
        """Send a request whose reply is taken later, before that to another request. Raises RedisUnsent or BROKEN."""
        self.send(packed, left)
        self.owed.append(told)

    def collect(self) -> None:
        """Take the replies that are owed and have come. Raises BROKEN."""
        while self.owed and ((reply := self._gets()) is not wire.NOTHING or is_readable(self._socket)):
            self._tell(self.reply(REST) if reply is wire.NOTHING else reply)

    def _tell(self, reply: Any) -> None:  # noqa: ANN401 - whatever the server answers
        self.owed[0](reply)
        self.owed.popleft()  # after the call: if that is interrupted, `close` calls again

    def send(self, packed: bytes, left: float) -> None:
        """Send a request; `reply` returns its reply. Raises RedisUnsent or BROKEN."""
        if not left <= self._timeout <= left * SLACK:
            self._limit(left)
        try:
            sent = self._send(packed)
        except OSError as error:
            sent = self._send_later(packed, error)
        if sent < len(packed):
            self._socket.sendall(memoryview(packed)[sent:])

    def reply(self, left: float) -> Any:  # noqa: ANN401 - whatever the server answers
        """Return the next reply, however many pieces it comes in, in `left` seconds or a little more. Raises BROKEN."""
        until, received = clocks.steady() + left, 0
        while (reply := self._gets()) is wire.NOTHING:
            if (left := until - clocks.steady()) <= 0:
                raise TimeoutError("the reply came too slowly")
            self._limit(left)
            data = self._receive()
            received += len(data)
            self._check(data, received)
            self._feed(data)
        return reply

    def _check(self, data: bytes, received: int) -> None:
        """Refuse a reply that is longer than any of Redis, of which so many bytes have come. Raises ProtocolError."""
        if received > LONGEST_REPLY or (wire.begins_giant(data) and not self._has_data()):
            raise wire.giant()

    def take(self) -> Any:  # noqa: ANN401 - whatever the server answers
        """Return the next reply, or NOTHING if only a part of it has come. It never waits. Raises BROKEN."""
        if self._read is None:
            self._timeout = 0.0
            self._socket.settimeout(0)
        try:
            data = (self._read or self._recv)(CHUNK)  # a record of TLS is shorter, so TLS keeps nothing back
        except (BlockingIOError, ssl.SSLWantReadError):
            return wire.NOTHING
        self._unfinished += len(data)
        self._check(data, self._unfinished)
        self._feed(_some(data))
        if (reply := self._gets()) is not wire.NOTHING:
            self._unfinished = 0
        return reply

    @property
    def is_plain(self) -> bool:
        """Whether several threads may use it one after another, each when the system says that something has come."""
        return self._read is not None

    def is_stale(self) -> bool:
        """Tell whether the server has closed an idle connection, or has sent something without a request.

        Replies that are owed and have come are taken.
        """
        try:
            self.collect()
        except BROKEN:
            return True
        return not self.owed and is_readable(self._socket)

    def close(self) -> None:
        """Close the connection, also for the copies that forked children may have."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        owed = self.owed.copy()
        self.abandon()
        for told in owed:
            told(None)

    def abandon(self) -> None:
        """In a forked child: close this copy, and leave the parent's connection as it is."""
        self._send, self._read = self._socket.send, None  # these know when the descriptor is closed
        self.owed.clear()
        with contextlib.suppress(OSError):
            self._socket.close()

    def receive_by(self, receive: Callable[[int], bytes] | None) -> None:
        """Receive by another function than the socket's; None: by the socket's again."""
        self._recv = receive or self._socket.recv

    # What the listener needs: it waits for the socket by itself, and never in these methods.

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._socket.fileno()

    def never_wait(self) -> None:
        """Make the socket non-blocking, so that `heard` returns at once."""
        self._socket.settimeout(0)

    def post(self, packed: bytes, within: float) -> None:
        """Send requests whose replies `heard` will return. Raises OSError."""
        self._socket.settimeout(within)
        self._socket.sendall(packed)
        self._socket.settimeout(0)

    def heard(self) -> Iterator[Any]:
        """Yield the replies and messages that have come by now. Raises BROKEN."""
        while True:
            try:
                data = self._receive()
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            self._unfinished += len(data)
            self._check(data, self._unfinished)
            self._feed(data)
            while (reply := self._gets()) is not wire.NOTHING:
                self._unfinished = 0
                yield reply
            if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                return

    def _receive(self) -> bytes:
        return _some(self._recv(CHUNK))

    def _send_later(self, packed: bytes, error: OSError) -> int:
        """Return 0 if the socket was only full. Raises RedisUnsent if nothing was sent, else the error."""
        if isinstance(error, BlockingIOError):
            return 0
        if isinstance(error, TimeoutError) or len(packed) > ONE_RECORD:
            raise error
        raise RedisUnsent("the server closed the connection before a request was sent") from error

    def _limit(self, left: float) -> None:
        self._timeout = max(left, SHORTEST) * (1 + SLACK) / 2
        self._socket.settimeout(self._timeout)


def _sender(connected: socket.socket) -> Callable[[bytes], int]:
    """Return the function that sends as much as the system takes at once.

    Where a socket is a file, that is write(): Python's own send() would first ask the system whether it takes anything.
    """
    if isinstance(connected, ssl.SSLSocket) or not POSIX:
        return connected.send
    return partial(os.write, connected.fileno())


def _reader(connected: socket.socket) -> Callable[[int], bytes] | None:
    """Return the function that reads what has come: Python's own recv() would first ask whether something has.

    None if only recv() can: with TLS, and where a socket is no file.
    """
    return None if isinstance(connected, ssl.SSLSocket) or not POSIX else partial(os.read, connected.fileno())


def _some(data: bytes) -> bytes:
    if not data:
        raise ConnectionResetError("the server closed the connection")
    return data


class _Stranger:
    """A socket to a server that has not shown yet that it is Redis: no read waits, or takes memory, without an end."""

    def __init__(self, connected: socket.socket, left: Callable[[], float]) -> None:
        self.connected = connected
        self._left = left
        self._received = 0

    def recv(self, size: int) -> bytes:
        """Receive data. Raises OSError or ProtocolError."""
        self._limit()
        data = self.connected.recv(size)
        self._check(data)
        return data

    def recv_into(self, buffer: Any, size: int = 0) -> int:  # noqa: ANN401 - whatever holds bytes
        """Receive data into a buffer. Raises OSError or ProtocolError."""
        self._limit()
        count = self.connected.recv_into(buffer, size)
        self._check(bytes(memoryview(buffer)[:count]))
        return count

    def _limit(self) -> None:
        if (left := self._left()) <= 0:
            raise TimeoutError("the reply came too slowly")
        self.connected.settimeout(max(SHORTEST, left))

    def _check(self, data: bytes) -> None:
        self._received += len(data)
        wire.check_stranger(data, self._received)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a socket has
        return getattr(self.connected, name)


class _Punctual(AbstractConnection):
    """Gives all steps of connecting one deadline: redis-py limits each step alone."""

    left: Callable[[], float]
    """Returns how many seconds are left. Set it before connecting."""
    on_stage: Callable[[OSError], None]
    """Gets the error that applies if the step that begins now never ends. Set it before connecting."""
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

    def detach_socket(self) -> _Stranger:
        """Return the socket and forget it, because redis-py would close it later."""
        ours: _Stranger = self._sock
        self._sock = None
        return ours


class _PunctualTcp(_Punctual, redis.Connection):
    def _connect(self) -> _Stranger:  # pyright: ignore[reportIncompatibleMethodOverride]
        connected = dial(self.host, self.port, self.left, family=self.socket_type, on_stage=self.on_stage)
        return _Stranger(connected, self.left)


class _PunctualTls(_Punctual, redis.SSLConnection):
    def _connect(self) -> _Stranger:  # pyright: ignore[reportIncompatibleMethodOverride]
        secure = cast("Secure", self._wrap_socket_with_ssl)  # pyright: ignore[reportUnknownMemberType]
        connected = dial(self.host, self.port, self.left, secure, family=self.socket_type, on_stage=self.on_stage)
        return _Stranger(connected, self.left)


class _PunctualUnix(_Punctual, redis.UnixDomainSocketConnection):
    def _connect(self) -> _Stranger:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.on_stage(TimeoutError())
        return _Stranger(cast("socket.socket", super()._connect()), self.left)  # type: ignore[no-untyped-call]


def connect(  # noqa: PLR0917 - what a link knows
    access: RedisAccess,
    address: RedisAddress,
    now: Callable[[], float],
    until: float,
    identify: wire.Identify,
    on_stage: Callable[[OSError], None] = ignore_stage,
    on_greeting: Callable[[RedisAddress, Sequence[Any]], None] = ignore_greeting,
) -> RedisConnection:
    """Return a connection that is made by `until`, with the run id of its server if `identify` asks for that.

    `on_stage` gets, at the begin of each step, the error that applies if the step never ends. `on_greeting` gets the
    replies to `identify`.

    Raises StoreError, StoreUnavailable if it may pass.
    """
    try:
        stranger = _open(access, address, lambda: until - now(), on_stage)
    except (RedisError, *BROKEN) as error:
        raise wire.cannot_connect(address, error) from error
    connection = RedisConnection(stranger.connected)
    try:
        if identify:
            connection.receive_by(stranger.recv)
            replies = [connection.exchange(request, until - now()) for request in identify]
            connection.run_id = wire.identity_of(address, *replies)
            connection.receive_by(None)
            on_greeting(address, replies)
    except BROKEN as error:
        connection.close()
        raise wire.cannot_connect(address, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _open(
    access: RedisAccess, address: RedisAddress, left: Callable[[], float], on_stage: Callable[[OSError], None]
) -> _Stranger:
    options = {**access.connection_options(address), "protocol": 2, "retry": Retry(NoBackoff(), 0)}
    kind: Any = _PunctualUnix if address.path else _PunctualTls if access.tls else _PunctualTcp
    connecting = kind(**options)
    connecting.left, connecting.on_stage = left, on_stage
    try:
        connecting.connect()
    except BaseException:  # redis-py closes the socket after some errors only
        connecting.disconnect()
        raise
    connected: _Stranger = connecting.detach_socket()
    return connected
