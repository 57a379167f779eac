"""One connection of the asyncio runtime, with many requests under way at once.

A request goes out at once if no other is under way, else at the end of the event loop's turn, with all others of that
turn. One timer watches over the deadlines of all. A server answers in the order in which it was asked; so a request
keeps its place in that order, whatever becomes of its caller: the reply to one that was cancelled or ran out of time
is read and dropped, and never answers another.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hiredis

from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.stores.redis import wire
from holdfast.stores.redis.link import RedisAddress
from holdfast.transport.forked import abandon_transport

log = logging.getLogger("holdfast")

NEVER = float("inf")
CLOSING = 1.0
"""How long to wait for the event loop to close a socket, in seconds."""


class NotSentError(Exception):
    """The connection was lost before the request went out: it can safely go out on another."""


@dataclass(slots=True)
class SilenceLimits:
    """How long to bear with a server that is silent, in seconds."""

    overdue: float = 1.0
    """How far past its deadline the oldest request may be before the connection is given up."""
    quiet: float = 5.0
    """How long nothing need be heard on a connection with subscriptions before the server is asked for a sign."""
    sign: float = 5.0
    """How long that sign may take."""


@dataclass(slots=True)
class _ReplicaTally:
    """A WAIT that goes out after all requests of this turn of the loop, for those of them that want replicas."""

    counted: "asyncio.Future[Any]"
    replicas: int
    soonest: float
    latest: float


class Pipeline(asyncio.Protocol):
    """Requests in, replies out, in order. Ends with its connection: it does not connect again."""

    def __init__(  # noqa: PLR0917 - made in one place only
        self,
        runtime: AsyncioRuntime,
        address: RedisAddress,
        silence: SilenceLimits,
        writer: asyncio.StreamWriter,
        hear: Callable[[list[Any]], None],
        report_lost: Callable[["Pipeline"], None],
    ) -> None:
        """Take over the connection of a stream, with nothing under way. `hear` gets what the server says unasked."""
        self.run_id = b""
        """Which server process this is, once it was asked."""
        self.channels: set[str] = set()
        """Where this connection is subscribed, for those who subscribe."""
        self.lost = False
        """Whether the connection is given up; no request is taken any more."""
        self.stirred = runtime.event()
        """Raised when the connection is given up, or the server has ended one of its subscriptions."""
        self.clogged = False
        """Whether the server takes so little that requests should wait."""
        self.unclogged = runtime.event()
        self.heard = runtime.now()
        """When the server was last heard, a local instant."""
        self._address = address
        self._silence = silence
        self._hear = hear
        self._report_lost = report_lost
        self._now = runtime.now
        self._loop = runtime.loop
        self._call_soon = runtime.loop.call_soon
        self._new_future = runtime.loop.create_future
        self._pending: deque[tuple[asyncio.Future[Any], float, list[bytes] | None]] = deque()
        self._unsent: list[bytes] = []
        self._tally: _ReplicaTally | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = NEVER
        self._reader = wire.new_reader()
        self._writer = writer  # which would close the connection if it were forgotten
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self._ended = runtime.event()

    # -- requests ------------------------------------------------------------------------------------------

    def request(self, packed: bytes, until: float, push: list[bytes] | None = None) -> "asyncio.Future[Any]":
        """Send a request; the result will be its reply, also if that is an error.

        `push` is how the push begins that answers a request which has no other reply. Raises NotSentError once the
        connection is lost, and StoreUnavailable if `until` has passed; the future raises OutcomeUnknown or
        NotSentError.
        """
        if self.lost:
            raise NotSentError
        if until < self._alarm_at:
            self._expect_by(until)
        reply = self._new_future()
        if not self._pending and not self._transport.is_closing():
            self._pending.append((reply, until, push))
            self._transport.write(packed)
            return reply
        if not self._unsent:
            self._call_soon(self._flush)
        self._unsent.append(packed)
        self._pending.append((reply, until, push))
        return reply

    def tally(self, replicas: int, until: float) -> "asyncio.Future[Any]":
        """Return how many replicas have what was requested in this turn of the loop, at best `replicas`.

        The future is shared by all who ask in this turn, so it must not be awaited but in asyncio.wait().
        """
        if (tally := self._tally) is None:
            counted = self._new_future()
            counted.add_done_callback(_look_at_error)
            self._tally = _ReplicaTally(counted, replicas, until, until)
            if not self._unsent:
                self._call_soon(self._flush)
            return counted
        tally.replicas = max(tally.replicas, replicas)
        tally.soonest = min(tally.soonest, until)
        tally.latest = max(tally.latest, until)
        return tally.counted

    def _flush(self) -> None:
        if self.lost or self._transport.is_closing():
            return  # what is left unsent is told so when the loss is
        if (tally := self._tally) is not None:
            self._tally = None
            self._unsent.append(wire.wait(tally.replicas, tally.soonest - self._now()))
            self._pending.append((tally.counted, tally.latest, None))
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._transport.write(data)

    # -- deadlines -----------------------------------------------------------------------------------------

    def _expect_by(self, until: float) -> None:
        if until <= self._now():
            raise wire.cannot_connect(self._address, TimeoutError())
        self._set_alarm(until)

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_later(max(0.0, when - self._now()), self._sweep)
        self._alarm_at = when

    def _sweep(self) -> None:
        """End what has run out of time, and set the alarm for what does next."""
        self._alarm, self._alarm_at = None, NEVER
        if not self._pending:
            return
        now = self._now()
        look_at = self._pending[0][1] + self._silence.overdue
        if look_at <= now:
            self.cut(TimeoutError())
            return
        for reply, until, _ in self._pending:
            if not reply.done():
                if until <= now:
                    reply.set_exception(wire.unanswered(self._address, TimeoutError()))
                else:
                    look_at = min(look_at, until)
        if look_at < NEVER:
            self._set_alarm(look_at)

    # -- the connection ------------------------------------------------------------------------------------

    def cut(self, error: Exception) -> None:
        """Give the connection up at once, because of `error`. Idempotent."""
        if self.lost:
            return
        self.lost = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._transport.abort()
        self._end_requests(error)
        self.stirred.set()
        self.unclogged.set()
        self._report_lost(self)

    def _end_requests(self, error: Exception) -> None:
        replies = [reply for reply, _, _ in self._pending]
        sent = len(replies) - len(self._unsent)
        if self._tally is not None:
            replies.append(self._tally.counted)
        self._pending.clear()
        self._unsent.clear()
        for place, reply in enumerate(replies):
            if not reply.done():
                reply.set_exception(wire.unanswered(self._address, error) if place < sent else NotSentError())

    async def closed(self) -> None:
        """Wait, after a cut, for the event loop to close the socket."""
        await self._ended.wait(self._now() + CLOSING)

    def abandon(self) -> None:
        """In a forked child: let go of the socket, unless that is done anyway."""
        if not self.lost:
            self.lost = True
            abandon_transport(self._transport)

    # -- what the event loop calls -------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take replies and pushes."""
        if self.lost:
            return
        self.heard = self._now()
        self._reader.feed(data)
        try:
            self._take_replies()
        except (hiredis.ProtocolError, LookupError) as error:
            log.warning("the Redis server at %s answers what was not asked (%r)", self._address, error)
            self.cut(error)

    def _take_replies(self) -> None:
        take, pending = self._reader.gets, self._pending
        while (reply := take()) is not wire.NOTHING:
            if type(reply) is hiredis.PushNotification and not (pending and reply[:2] == pending[0][2]):
                self._hear(reply)
                if self.lost:
                    return
                continue
            future = pending.popleft()[0]
            if not future.done():
                future.set_result(reply)

    def eof_received(self) -> None:
        """Note that the server has closed the connection."""
        self.cut(ConnectionResetError("the connection was closed by the server"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that there is no connection any more."""
        self.cut(exc or ConnectionAbortedError("the connection was closed"))
        self._ended.set()

    def pause_writing(self) -> None:
        """Note that the server does not keep up."""
        self.unclogged.clear()
        self.clogged = True

    def resume_writing(self) -> None:
        """Note that it does again."""
        self.clogged = False
        self.unclogged.set()


def _look_at_error(future: "asyncio.Future[Any]") -> None:
    """Keep asyncio from complaining of an error that nobody is left to hear of."""
    if not future.cancelled():
        future.exception()
