"""A line to one server: it connects when a request needs it, and again when the connection was lost.

redis-py connects: TCP or a Unix socket, TLS, HELLO, credentials and their providers, the database. Then a `Pipeline`
takes over the transport.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError

from tenure.errors import OutcomeUnknown, StoreError
from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.aio_pipeline import NotSentError, Pipeline, SilenceLimits
from tenure.stores.redis.links.link import RedisAccess, RedisAddress, ignore_greeting
from tenure.transport.dial import dial_in_loop
from tenure.transport.forked import abandon_transport
from tenure.transport.handshake import HandshakeFailed, understood
from tenure.transport.keep_alive import keep_transport_alive

log = logging.getLogger("tenure")

RECONNECT_PAUSE = 0.02
"""After how many seconds the next attempt to connect may follow one that failed."""


class RedisLine:
    """At most one connection, which all requests share."""

    def __init__(
        self,
        runtime: AsyncioRuntime,
        access: RedisAccess,
        address: RedisAddress,
        silence: SilenceLimits,
        *,
        identify: wire.Identify,
        on_greeting: Callable[[RedisAddress, Sequence[Any]], None] = ignore_greeting,
    ) -> None:
        """Prepare; nothing is connected yet. `identify` holds the requests that ask for the run id.

        `on_greeting` gets their replies.
        """
        self.pipe: Pipeline | None = None
        """The connection, if there is one."""
        self._runtime = runtime
        self._access = access
        self._address = address
        self._silence = silence
        self._identify = identify
        self._on_greeting = on_greeting
        self._connecting: asyncio.Task[StoreError | None] | None = None
        self._dialled: AbstractConnection | None = None
        self._latest: Pipeline | None = None
        self._not_before = 0.0
        self._stopped = False

    async def ready(self, until: float) -> Pipeline:
        """Return a connection that takes requests. Raises StoreUnavailable, or StoreError if it is refused."""
        while (pipe := self.pipe) is None or pipe.clogged:
            if pipe is None:
                await self._connected(until)
            elif not await pipe.unclogged.wait(until):
                raise wire.cannot_connect(self._address, TimeoutError())
        return pipe

    async def _connected(self, until: float) -> None:
        """Wait for the attempt to connect that is under way, or start one."""
        if self._stopped:
            raise StoreError(f"the client of the Redis server at {self._address} is closed; make a new one")
        if (task := self._connecting) is None:
            task = self._connecting = self._runtime.loop.create_task(self._connect(), name="tenure-connect")
            task.add_done_callback(self._stop_waiting)
        await asyncio.wait({task}, timeout=max(0.0, until - self._runtime.now()))
        if not task.done():
            raise wire.cannot_connect(self._address, self._too_late())
        if not task.cancelled() and (error := task.result()) is not None:
            raise type(error)(*error.args) from error.__cause__  # a traceback of its own for each caller

    def _stop_waiting(self, _task: "asyncio.Task[Any]") -> None:
        self._connecting = None

    async def _connect(self) -> StoreError | None:
        """Connect. An error is returned and not raised: several tasks wait for it, or none."""
        if (early := self._not_before - self._runtime.now()) > 0.0:
            await asyncio.sleep(early)
        try:
            async with asyncio.timeout(self._access.connect_timeout):
                pipe = await self._dial()
        except Exception as error:  # noqa: BLE001 - what redis-py raises for a wrong option could be anything
            self._not_before = self._runtime.now() + RECONNECT_PAUSE
            return self._reason(error)
        if not pipe.lost:
            self.pipe = pipe
        return None

    def _too_late(self) -> OSError:
        return HandshakeFailed() if getattr(self._dialled, "shaking_hands", False) else TimeoutError()

    def _reason(self, error: Exception) -> StoreError:
        if isinstance(error, TimeoutError):
            error = self._too_late()
        if isinstance(error, OutcomeUnknown | NotSentError):
            error = ConnectionResetError("the connection was lost at once")
        if isinstance(error.__cause__, RedisError):  # on a Unix socket, redis-py wraps the error of the server
            error = error.__cause__
        if isinstance(error, StoreError):
            return error
        told = wire.cannot_connect(self._address, error)
        told.__cause__ = error
        return told

    async def _dial(self) -> Pipeline:
        """Connect, and send the first requests. Leaves no socket behind if that fails."""
        self._dialled = connection = new_connection(self._access, self._address)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            writer = self._detach(connection)
        except GeneratorExit:  # the coroutine is being closed, and may await nothing more
            raise
        except BaseException:
            await close_socket(connection)
            raise
        keep_transport_alive(writer.transport)
        self._latest = pipe = Pipeline(self._runtime, self._address, self._silence, writer, self._hear, self._forget)
        try:
            await self._greet(pipe)
        except GeneratorExit:
            raise
        except BaseException:
            pipe.cut(ConnectionAbortedError("connecting was given up"))
            await pipe.closed()
            raise
        return pipe

    def _detach(self, connection: Any) -> asyncio.StreamWriter:  # noqa: ANN401 - what redis-py keeps to itself
        """Take the stream from a connection of redis-py. Raises OSError if it is not usable, or not needed."""
        reader: Any = connection._reader  # noqa: SLF001
        writer: asyncio.StreamWriter = connection._writer  # noqa: SLF001
        if self._stopped:  # the wait_for() of some Pythons, which redis-py uses, may swallow a cancellation
            raise ConnectionAbortedError("the client was closed")
        if writer.is_closing() or reader.at_eof() or reader.exception() is not None:
            raise ConnectionResetError("the connection was closed by the server")
        parser: Any = getattr(connection._parser, "_reader", None)  # noqa: SLF001
        if reader._buffer or (parser is not None and parser.has_data()):  # noqa: SLF001
            raise ConnectionResetError("the server said more than it was asked")
        connection._reader = connection._writer = None  # noqa: SLF001
        return writer

    async def _greet(self, pipe: Pipeline) -> None:
        """Send the first requests on a new connection."""
        if self._identify:
            until = self._runtime.now() + self._access.connect_timeout
            replies = [await pipe.request(request, until) for request in self._identify]
            pipe.run_id = wire.identity_of(self._address, *replies)
            self._on_greeting(self._address, replies)
        pipe.is_stranger = False

    def _hear(self, push: list[Any]) -> None:
        """Take a push of the server: a line without subscriptions expects none."""

    def _forget(self, pipe: Pipeline) -> None:
        if self.pipe is pipe:
            self.pipe = None

    def stop(self) -> None:
        """Disconnect, and do not connect again."""
        self._stopped = True
        if self._connecting is not None:
            self._connecting.cancel()
        if (writer := self._dialled_writer()) is not None:
            writer.transport.abort()  # see _detach
        if self._latest is not None:
            self._latest.cut(ConnectionAbortedError("the client was closed"))

    async def stopped(self) -> None:
        """After `stop`: wait until its tasks have ended and its sockets are closed."""
        if self._connecting is not None:
            await asyncio.wait({self._connecting})
        if self._latest is not None:
            await self._latest.closed()

    def abandon(self) -> None:
        """In a forked child: let go of the socket, also while it is being connected."""
        self._stopped = True
        self.pipe = None
        if self._latest is not None:
            self._latest.abandon()
        if (writer := self._dialled_writer()) is not None:
            abandon_transport(writer.transport)

    def _dialled_writer(self) -> asyncio.StreamWriter | None:
        return None if self._dialled is None else _writer_of(self._dialled)


class _Dialled:
    """Has `dial_in_loop` connect, before redis-py takes over."""

    host: str
    port: int
    socket_type: int
    socket_connect_timeout: Any
    _connected: socket.socket

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments: dict[str, Any] = {**super()._connection_arguments(), "sock": self._connected}  # type: ignore[misc]
        del arguments["host"], arguments["port"]
        return arguments | {"server_hostname": self.host} if "ssl" in arguments else arguments

    async def _connect(self) -> None:
        self._connected = await dial_in_loop(self.host, self.port, self.socket_connect_timeout, family=self.socket_type)
        await super()._connect()  # type: ignore[misc]
        _distrust(self)


class _TcpConnection(_Dialled, Connection):
    pass


class _UnixConnection(UnixDomainSocketConnection):
    async def _connect(self) -> None:
        await super()._connect()  # type: ignore[no-untyped-call]
        _distrust(self)


def _distrust(connection: Any) -> None:  # noqa: ANN401 - what redis-py keeps to itself
    """Have a connection read no more than a server says that is Redis, while redis-py reads it."""
    reader: asyncio.StreamReader = connection._reader  # noqa: SLF001
    read, received = reader.read, 0

    async def read_a_little(n: int = -1) -> bytes:
        nonlocal received
        data = await read(n)
        received += len(data)
        try:
            wire.check_stranger(data, received)
        except hiredis.ProtocolError as error:
            raise ConnectionAbortedError(str(error)) from error
        return data

    reader.read = read_a_little  # type: ignore[method-assign]


class _TlsConnection(_Dialled, SSLConnection):
    """Tells a server that does not answer the TLS handshake from one that is not reached."""

    shaking_hands = False

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = super()._connection_arguments()
        context = arguments["ssl"]  # which is this connection's own
        context.wrap_bio = partial(self._shake_hands, context.wrap_bio)
        return arguments

    def _shake_hands(self, wrap: Callable[..., ssl.SSLObject], *args: Any, **options: Any) -> ssl.SSLObject:  # noqa: ANN401
        """Note that the server was reached: the event loop begins with TLS."""
        self.shaking_hands = True
        return wrap(*args, **options)

    async def _connect(self) -> None:
        try:
            await super()._connect()
        except OSError as error:
            if self.shaking_hands and (meaning := understood(error)) is not error:
                raise meaning from error
            raise
        self.shaking_hands = False


def new_connection(access: RedisAccess, address: RedisAddress) -> AbstractConnection:
    """Make a connection of redis-py that repeats nothing and checks nothing by itself."""
    kind: Any = _UnixConnection if address.path else _TlsConnection if access.tls else _TcpConnection
    made: AbstractConnection = kind(
        **{
            **access.connection_options(address),
            "protocol": 3,
            "retry": None,
            "retry_on_error": [],
            "retry_on_timeout": False,
            "health_check_interval": 0,
            "decode_responses": False,
            "socket_timeout": access.connect_timeout,
            "socket_connect_timeout": access.connect_timeout,
        }
    )
    return made


async def close_socket(connection: Any) -> None:  # noqa: ANN401 - what redis-py keeps to itself
    """Close the socket of a connection that failed, if it has one."""
    if (writer := _writer_of(connection)) is not None:
        writer.transport.abort()
        connection._reader = connection._writer = None  # noqa: SLF001
        with contextlib.suppress(Exception):
            await writer.wait_closed()


def _writer_of(connection: Any) -> asyncio.StreamWriter | None:  # noqa: ANN401 - what redis-py keeps to itself
    writer: asyncio.StreamWriter | None = connection._writer  # noqa: SLF001
    return writer
