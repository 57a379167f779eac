"""One connection of the asyncio runtime to a memcached server, with many requests under way at once.

A server replies in the order of the requests. So a request keeps its place in that order, whatever becomes of its
caller: the reply to a request that was cancelled or timed out is read and dropped, and never taken for another one's.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import cast

from tenure.stores.memcached.errors import BROKEN
from tenure.stores.memcached.link import MemcachedAddress, MemcachedRequest, MemcachedServer
from tenure.stores.memcached.protocol import MetaReply, ReplyReader, is_complete
from tenure.transport.forked import abandon_transport
from tenure.transport.keep_alive import keep_transport_alive

OVERDUE = 1.0
"""How many seconds after the deadline of a request the connection is cut, if the reply still has not come."""

Replies = list[MetaReply]


@dataclass(slots=True)
class _Expected:
    """A request that was sent, and what has come of its replies."""

    future: "asyncio.Future[Replies]"
    count: int
    replies: Replies = field(default_factory=list[MetaReply])


class MemcachedPipeline(asyncio.Protocol):
    """Requests in, replies out, in order. It ends with its connection, and does not connect again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: MemcachedAddress) -> None:
        """Wait to be connected."""
        self.address = address
        self.server = MemcachedServer("", evicts=True)
        """Set once the server was asked."""
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done once its socket is closed."""
        self._loop = loop
        self._reader = ReplyReader()
        self._expected: deque[_Expected] = deque()
        self._transport: asyncio.Transport | None = None
        self._lost = False

    def is_open(self) -> bool:
        """Tell whether the connection takes requests."""
        transport = self._transport
        return not self._lost and transport is not None and not transport.is_closing()

    async def exchange(self, request: MemcachedRequest, seconds: float) -> Replies:
        """Send a request, and return its replies. Raises BROKEN; TimeoutError after so many seconds."""
        if self._transport is None or not self.is_open():
            raise ConnectionResetError("the server closed the connection")
        expected = _Expected(self._loop.create_future(), request.replies)
        self._expected.append(expected)
        self._transport.write(request.packed)
        timer = self._loop.call_later(max(0.0, seconds), self._expire, expected)
        try:
            return await expected.future
        finally:
            if expected.future.cancelled():  # its reply is still due
                self._loop.call_later(max(0.0, seconds) + OVERDUE, self._cut_overdue, expected)
            timer.cancel()

    def cut(self, error: Exception) -> None:
        """Close the connection at once, because of `error`. Idempotent."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()
        while self._expected:
            future = self._expected.popleft().future
            if not future.done():
                future.set_exception(error)

    def close(self) -> None:
        """Close the connection at once. A task that waits for a reply gets an error."""
        self.cut(ConnectionAbortedError("the connection was closed"))

    def abandon(self) -> None:
        """In a forked child: let go of the socket, and leave the event loop alone, which is the parent's."""
        if not self._lost and self._transport is not None:
            self._lost = True
            abandon_transport(self._transport)

    def _expire(self, expected: _Expected) -> None:
        if not expected.future.done():
            expected.future.set_exception(TimeoutError("the reply did not come in time"))
            self._loop.call_later(OVERDUE, self._cut_overdue, expected)

    def _cut_overdue(self, expected: _Expected) -> None:
        if any(each is expected for each in self._expected):
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
        self._reader.feed(data)
        try:
            while (reply := self._reader.take()) is not None:
                self._took(reply)
        except BROKEN as error:
            self.cut(error)

    def eof_received(self) -> bool:
        """Note that the server has closed the connection."""
        self.cut(ConnectionResetError("the server closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone."""
        self.cut(exc or ConnectionResetError("the server closed the connection"))
        if not self.gone.done():
            self.gone.set_result(None)

    def _took(self, reply: MetaReply) -> None:
        if not self._expected:
            raise ValueError("it sent a reply to nothing")
        expected = self._expected[0]
        expected.replies.append(reply)
        if not is_complete(expected.replies, expected.count):
            return
        self._expected.popleft()
        if not expected.future.done():
            expected.future.set_result(expected.replies)
        if not reply.goes_on():
            raise ValueError("it refused an earlier command")
