"""The link to etcd for asyncio: connections are protocols of the event loop, with no thread and no task."""

import asyncio
from collections import deque
from typing import cast

from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.etcd import errors
from tenure.stores.etcd.http import BROKEN, HttpConversation, piece
from tenure.stores.etcd.link import EtcdAddress, EtcdHearing, EtcdReply, EtcdRequest, Stream
from tenure.stores.etcd.options import EtcdDeployment
from tenure.transport.dial import dial_in_loop
from tenure.transport.forked import abandon_transport
from tenure.transport.handshake import understood
from tenure.transport.keep_alive import keep_transport_alive


class EtcdAsyncConnection(asyncio.Protocol):
    """One connection, for one request at a time or for a stream."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: EtcdAddress) -> None:
        """Wait to be connected."""
        self.address = address
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done once its socket is closed."""
        self._loop = loop
        self._conversation = HttpConversation(address)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[EtcdReply] | None = None
        self._hearing: EtcdHearing | None = None
        self._error: Exception | None = None

    def is_ready(self) -> bool:
        """Tell whether the connection can carry a request now."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and self._conversation.goes_on()

    def has_heard(self) -> bool:
        """Tell whether the server has ever sent anything."""
        return self._conversation.has_heard()

    def exchange(self, request: EtcdRequest) -> "asyncio.Future[EtcdReply]":
        """Send a request. The future gets its reply, or one of BROKEN."""
        self._write(self._conversation.pack(request))
        self._answer = self._loop.create_future()
        return self._answer

    def stream(self, request: EtcdRequest, hearing: EtcdHearing) -> None:
        """Start a stream: a request whose body is sent piece by piece, while replies come."""
        self._hearing = hearing
        self._write(self._conversation.begin(request))

    def say(self, body: bytes) -> None:
        """Send another piece of the request."""
        self._write(piece(body))

    def is_stream(self) -> bool:
        """Tell whether this connection carries a stream."""
        return self._hearing is not None

    def close(self) -> None:
        """Close the connection at once. A task that waits for a reply gets an error; a stream gets no callback."""
        self._hearing = None
        self.cut(ConnectionAbortedError("the connection was closed"))

    def cut(self, error: Exception) -> None:
        """Close the connection at once. A task that waits, or the stream, gets the error."""
        if self._transport is not None:
            self._transport.abort()
        self._end(error)

    def abandon(self) -> None:
        """In a forked child: let go of the socket, and leave the event loop alone, which is the parent's."""
        if self._transport is not None:
            abandon_transport(self._transport)

    def _write(self, packed: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(packed)

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the transport."""
        self._transport = cast("asyncio.Transport", transport)
        keep_transport_alive(transport)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        try:
            self._conversation.feed(data)
            self._take()
        except BROKEN as error:
            self.cut(error)

    def eof_received(self) -> bool:
        """Take the end of what the server sends."""
        self.data_received(b"")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone."""
        self._end(exc or ConnectionResetError("the server closed the connection"))
        if not self.gone.done():
            self.gone.set_result(None)

    def _take(self) -> None:
        if self._hearing is None:
            if (
                self._answer is not None
                and not self._answer.done()
                and (said := self._conversation.answer()) is not None
            ):
                self._answer.set_result(said)
            return
        for each in self._conversation.pieces():
            if self.is_stream():  # the last callback may have closed it
                self._hearing.on_said(each)

    def _end(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        hearing, self._hearing = self._hearing, None
        if answer is not None and not answer.done():
            answer.set_exception(error)
        if hearing is not None:
            hearing.on_end()


class _Unread(asyncio.Protocol):
    """Reads nothing, so that TLS, which takes over next, gets all that the server sends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read nothing for now."""
        cast("asyncio.Transport", transport).pause_reading()


class EtcdAsyncLink:
    """The link to the servers, for one event loop."""

    def __init__(self, runtime: AsyncioRuntime, deployment: EtcdDeployment) -> None:
        """Prepare; nothing is connected yet."""
        self._runtime = runtime
        self._deployment = deployment
        self._idle: deque[EtcdAsyncConnection] = deque()
        self._all: set[EtcdAsyncConnection] = set()
        self._closed = False

    async def exchange(self, address: EtcdAddress, request: EtcdRequest, until: float) -> EtcdReply:
        """Send a request on an open connection or on a new one, and return the reply."""
        line = self._take(address) or await self._connect(address, until)
        answered = False
        too_late = TimeoutError("the answer did not come in time")
        timer = self._runtime.loop.call_later(max(0.0, until - self._runtime.now()), line.cut, too_late)
        try:
            result = await line.exchange(request)
            answered = True
        except BROKEN as error:
            plain = self._deployment.tls is None and not line.has_heard()
            raise errors.unanswered(address, error, plain=plain) from error
        finally:
            timer.cancel()
            self._put_back(line) if answered else line.close()
        return result

    async def stream(self, address: EtcdAddress, request: EtcdRequest, hearing: EtcdHearing, until: float) -> Stream:
        """Start a stream, on a connection of its own."""
        line = await self._connect(address, until)
        line.stream(request, hearing)
        return line

    def forsake(self, address: EtcdAddress) -> None:
        """End the streams of a server that does not answer, and close its idle connections."""
        for line in [each for each in self._all if each.address == address and each.is_stream()]:
            line.cut(ConnectionAbortedError("the server does not answer"))
        for line in [each for each in self._idle if each.address == address]:
            self._idle.remove(line)
            line.close()

    async def close(self) -> None:
        """Disconnect, and leave no socket behind. Requests under way end by OutcomeUnknown."""
        self._closed = True
        lines = list(self._all)
        for line in lines:
            line.close()
        if lines:
            await asyncio.wait({line.gone for line in lines}, timeout=1.0)

    def abandon(self) -> None:
        """In a forked child: let go of the sockets, and leave the event loop alone, which is the parent's."""
        self._closed = True
        for line in self._all:
            line.abandon()

    def _take(self, address: EtcdAddress) -> EtcdAsyncConnection | None:
        """Return an open connection on which no reply is due."""
        for line in [each for each in reversed(self._idle) if each.address == address]:
            self._idle.remove(line)
            if line.is_ready():
                return line
            line.close()
        return None

    async def _connect(self, address: EtcdAddress, until: float) -> EtcdAsyncConnection:
        if self._closed:
            raise errors.closed()
        loop, tls = self._runtime.loop, self._deployment.tls
        line = EtcdAsyncConnection(loop, address)
        shaking_hands = False
        left = min(until - self._runtime.now(), self._deployment.connect_timeout)
        try:
            async with asyncio.timeout(max(0.0, left)):
                connected = await dial_in_loop(address.host, address.port, left)
                if tls is None:
                    await loop.create_connection(lambda: line, sock=connected)
                else:  # in two steps, to know which one fails
                    plain, _ = await loop.create_connection(_Unread, sock=connected)
                    shaking_hands = True
                    secured = await loop.start_tls(plain, line, tls, server_hostname=address.host)
                    line.connection_made(secured or plain)  # None if it is closed again already
        except OSError as error:
            line.close()
            raise errors.cannot_connect(address, understood(error) if shaking_hands else error) from error
        except BaseException:
            line.close()
            raise
        self._all.add(line)
        line.gone.add_done_callback(lambda _: self._all.discard(line))
        if self._is_closed():  # meanwhile
            line.close()
        return line

    def _is_closed(self) -> bool:
        return self._closed

    def _put_back(self, line: EtcdAsyncConnection) -> None:
        if line.is_ready() and not self._closed:
            self._idle.append(line)
        else:
            line.close()
