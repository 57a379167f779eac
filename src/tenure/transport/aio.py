"""The lines of asyncio: protocols of the event loop, with no thread and no task.

A server replies in the order of the requests. So a request keeps its place in that order, whatever becomes of its
caller: the reply to one that was cancelled or timed out is read and dropped, and never taken for another one's.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, cast

from tenure.contracts.runtime import Runtime
from tenure.errors import UsageError
from tenure.transport.blocking import BlockingPump
from tenure.transport.dial import dial_in_loop
from tenure.transport.errors import BROKEN, Unsent
from tenure.transport.forked import abandon_transport
from tenure.transport.handshake import understood
from tenure.transport.keep_alive import keep_transport_alive
from tenure.transport.link import Conversation, Pump, Q, R, ServerAddress
from tenure.transport.pool import ConnectionPool, SharedPool

OVERDUE = 1.0
"""How many seconds after the deadline of a request the connection is cut, if the reply still has not come."""

CLOSING = 1.0
"""How long to wait for the event loop to close the sockets, in seconds."""


class LoopLine(asyncio.Protocol, Generic[Q, R]):
    """Requests in, replies out, in order. It ends with its connection, and does not connect again."""

    def __init__(self, conversation: Conversation[Q, R], now: Callable[[], float], *, shared: bool) -> None:
        """Wait to be connected. A `shared` line takes requests behind others whose replies are due."""
        self.conversation = conversation
        self.used = 0.0
        self._now = now
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done once the socket is closed."""
        self._due: deque[asyncio.Future[R]] = deque()
        self._transport: asyncio.Transport | None = None
        self._lost = False
        self._hear: Callable[[R], None] | None = None
        self._on_end: Callable[[], None] | None = None

    async def exchange(self, request: Q, until: float) -> R:
        """Send a request, and return its reply. Raises Unsent or BROKEN; TimeoutError at `until`."""
        transport = self._transport
        if transport is None or not self.goes_on():
            raise Unsent("the server closed the connection before a request was sent")
        answer: asyncio.Future[R] = self._loop.create_future()
        packed = self.conversation.pack(request)
        self._due.append(answer)
        transport.write(packed)
        timer = self._loop.call_later(max(0.0, until - self._now()), _expire, answer)
        try:
            return await answer
        except (asyncio.CancelledError, TimeoutError):
            if self._shared and not self._lost:  # the reply is still due
                self._loop.call_later(max(0.0, until - self._now()) + OVERDUE, self._cut_overdue, answer)
            raise
        finally:
            timer.cancel()

    def send_owed(self, request: Q, told: Callable[[R | None], None], until: float) -> None:  # noqa: ARG002 - as below
        """Send a request, and have `told` get its reply."""
        transport = self._transport
        if transport is None or not self.goes_on():
            raise Unsent("the server closed the connection before a request was sent")
        transport.write(self.conversation.pack(request))
        self.conversation.owed.append(told)

    def collect(self) -> None:
        """Do nothing: the event loop takes all replies."""

    def listen(
        self,
        head: bytes,
        hear: Callable[[R], None],
        on_end: Callable[[], None],
        until: float,  # noqa: ARG002 - to write does not wait
    ) -> "LoopLine[Q, R]":
        """Send bytes, and hand each reply that comes to `hear` from now on."""
        self._hear, self._on_end = hear, on_end
        self.say(head)
        return self

    def say(self, data: bytes) -> None:
        """Send bytes. Does not wait."""
        if self._transport is not None and self._is_open():
            self._transport.write(data)

    def lose(self) -> None:
        """End the line, as if the server had closed the connection."""
        self.cut(ConnectionAbortedError("the server does not answer"))

    def goes_on(self) -> bool:
        """Tell whether the line can carry another request now."""
        return self._is_open() and (self._shared or self.conversation.goes_on())

    def is_stale(self) -> bool:
        """Tell whether it has ended, is about to, or has heard what nobody asked for."""
        return not self.goes_on()

    def _is_open(self) -> bool:
        return not (self._lost or self._transport is None or self._transport.is_closing())

    def close(self) -> None:
        """Close the connection at once. Tasks that wait for replies get an error; who listens is not called."""
        self._hear = self._on_end = None
        self.cut(ConnectionAbortedError("the connection was closed"))

    def cut(self, error: Exception) -> None:
        """Close the connection at once, because of `error`. Who listens is told. Idempotent."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()
        while self._due:
            answer = self._due.popleft()
            if not answer.done():
                answer.set_exception(error)
        while owed := self.conversation.owed:
            owed[0](None)
            owed.popleft()  # after the call: if that is interrupted, the next `cut` calls again
        self._hear, on_end, self._on_end = None, self._on_end, None
        if on_end is not None:
            on_end()

    def abandon(self) -> None:
        """In a forked child: let go of the socket, and leave the event loop alone, which is the parent's."""
        if not self._lost and self._transport is not None:
            self._lost = True
            self.conversation.owed.clear()
            abandon_transport(self._transport)

    def _cut_overdue(self, answer: "asyncio.Future[R]") -> None:
        if any(each is answer for each in self._due):
            self.cut(TimeoutError("the reply to an earlier request did not come in time"))

    # -- what the event loop calls -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the transport."""
        self._transport = cast("asyncio.Transport", transport)
        keep_transport_alive(transport)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self._lost:
            return
        try:
            self.conversation.feed(data)
            while not self._lost and (reply := self.conversation.reply()) is not None:
                if self._hear is not None:
                    self._hear(reply)  # which may close the line
                    continue
                answer = self._due.popleft()
                if not answer.done():
                    answer.set_result(reply)
        except BROKEN as error:
            self.cut(error)

    def eof_received(self) -> bool:
        """Take the end of what the server sends, which may end a reply."""
        self.data_received(b"")
        self.cut(ConnectionResetError("the server closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone."""
        self.cut(exc or ConnectionResetError("the server closed the connection"))
        if not self.gone.done():
            self.gone.set_result(None)


def _expire(answer: "asyncio.Future[Any]") -> None:
    if not answer.done():
        answer.set_exception(TimeoutError("the reply did not come in time"))


class _Unread(asyncio.Protocol):
    """Reads nothing, so that TLS, which takes over next, gets all that the server sends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Read nothing for now."""
        cast("asyncio.Transport", transport).pause_reading()


class LoopPump:
    """Makes the lines of the tasks of one client."""

    def __init__(self, runtime: Runtime, *, pipelined: bool = False) -> None:
        self._runtime = runtime
        self._pipelined = pipelined

    def pool(self) -> ConnectionPool[Any]:
        """Return a pool of one line for all tasks if requests are pipelined, else of lines each for one at a time."""
        return SharedPool(self._runtime) if self._pipelined else ConnectionPool()

    async def connect(
        self, address: ServerAddress, tls: ssl.SSLContext | None, conversation: Conversation[Q, R], until: float
    ) -> LoopLine[Q, R]:
        """Return a connected line. Raises OSError."""
        line = LoopLine(conversation, self._runtime.now, shared=self._pipelined)
        loop, left = asyncio.get_running_loop(), max(0.0, until - self._runtime.now())
        shaking_hands = False
        try:
            async with asyncio.timeout(left):
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
            if (meaning := understood(error) if shaking_hands else error) is error:
                raise
            raise meaning from error
        except BaseException:
            line.close()
            raise
        return line

    async def close(self, lines: Sequence[Any]) -> None:
        """Close all lines. Requests under way end by an error."""
        for line in lines:
            line.close()
        if gone := {line.gone for line in lines}:
            await asyncio.wait(gone, timeout=CLOSING)


def pump_for(runtime: Runtime, store: str, *, pipelined: bool = False) -> Pump:
    """Return the pump of a runtime. `pipelined`: a server takes requests behind others whose replies are due."""
    if runtime.form == "asyncio":
        return LoopPump(runtime, pipelined=pipelined)
    if runtime.form == "threads":
        return BlockingPump(runtime)
    raise UsageError(f"the {store} store does not run on {runtime.form}: use threads or asyncio")
