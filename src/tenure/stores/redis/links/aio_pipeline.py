"""One connection of the asyncio runtime, with many requests under way at once.

A request goes out at once if no other is under way, else at the end of the event loop's turn, with all others of that
turn. One timer watches all deadlines. A server replies in the order of the requests. So a request keeps its place in
that order, whatever becomes of its caller: the reply to a request that was cancelled or timed out is read and dropped,
and never taken for another one's.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hiredis

from tenure.contracts.limits import LONGEST_REPLY
from tenure.runtimes.aio import AsyncioRuntime, retrieve
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.link import RedisAddress
from tenure.transport.forked import abandon_transport

log = logging.getLogger("tenure")

NEVER = float("inf")
CLOSING = 1.0
"""How long to wait for the event loop to close a socket, in seconds."""


class NotSentError(Exception):
    """The connection was lost before the request was sent: another connection may send it."""


@dataclass(slots=True)
class SilenceLimits:
    """For how long a server may be silent, in seconds."""

    overdue: float = 1.0
    """How long after the deadline of the oldest request the connection is cut."""
    quiet: float = 5.0
    """After how much silence on a connection with subscriptions the client sends a PING."""
    sign: float = 5.0
    """How long the reply to that PING may take."""


@dataclass(slots=True)
class _ReplicaTally:
    """A WAIT that is sent after all requests of this turn of the loop, for those that need replicas."""

    counted: "asyncio.Future[Any]"
    replicas: int
    soonest: float
    latest: float


class Pipeline(asyncio.Protocol):
    """Requests in, replies out, in order. It ends with its connection, and does not connect again."""

    def __init__(  # noqa: PLR0917 - made in one place only
        self,
        runtime: AsyncioRuntime,
        address: RedisAddress,
        silence: SilenceLimits,
        writer: asyncio.StreamWriter,
        hear: Callable[[list[Any]], None],
        report_lost: Callable[["Pipeline"], None],
    ) -> None:
        """Take over the connection of a stream, with nothing under way. `hear` gets the pushes of the server."""
        self.run_id = b""
        """Identifies the server process, once it was asked."""
        self.is_stranger = True
        """Whether the server has not shown yet that it is Redis."""
        self.channels: set[str] = set()
        """The channels to which this connection is subscribed, as its owner notes them."""
        self.lost = False
        """Whether the connection was cut or lost; it takes no request any more."""
        self.stirred = runtime.event()
        """Raised when the connection was cut or lost, or the server has ended a subscription."""
        self.clogged = False
        """Whether the server reads so slowly that requests should wait."""
        self.unclogged = runtime.event()
        self.heard = runtime.now()
        """When the server last sent anything, a local instant."""
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
        self._unfinished = 0
        """How many bytes of a reply that is not complete have come."""
        self._writer = writer  # without a reference, it would close the connection
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self._ended = runtime.event()

    # -- requests ------------------------------------------------------------------------------------------

    def request(self, packed: bytes, until: float, push: list[bytes] | None = None) -> "asyncio.Future[Any]":
        """Send a request. The future gets its reply, also if that is an error.

        If the reply to a request is a push, `push` is how that begins. Raises NotSentError if the connection is lost,
        and StoreUnavailable if `until` has passed; the future raises OutcomeUnknown or NotSentError.
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
        """Return how many replicas have the requests of this turn of the loop, at best `replicas`.

        All callers of this turn share the future: wait for it by asyncio.wait(), for to await it could cancel it.
        """
        if (tally := self._tally) is None:
            counted = self._new_future()
            counted.add_done_callback(retrieve)
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
            return  # `cut` tells the requests that were not sent
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
        """End the requests whose deadline has passed, and set the timer for the next deadline."""
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
        """Close the connection at once, because of `error`. Idempotent."""
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
        """After a cut: wait until the event loop has closed the socket."""
        await self._ended.wait(self._now() + CLOSING)

    def abandon(self) -> None:
        """In a forked child: let go of the socket, if the connection still has one."""
        if not self.lost:
            self.lost = True
            abandon_transport(self._transport)

    # -- what the event loop calls -------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take replies and pushes."""
        if self.lost:
            return
        self.heard = self._now()
        self._unfinished += len(data)
        try:
            if self.is_stranger:
                wire.check_stranger(data, self._unfinished)
            elif self._unfinished > LONGEST_REPLY or (wire.begins_giant(data) and not self._reader.has_data()):
                raise wire.giant()
            self._reader.feed(data)
            self._take_replies()
        except (hiredis.ProtocolError, LookupError) as error:
            log.warning("the Redis server at %s answers what was not asked (%r)", self._address, error)
            self.cut(error)

    def _take_replies(self) -> None:
        take, pending = self._reader.gets, self._pending
        while (reply := take()) is not wire.NOTHING:
            self._unfinished = 0
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
        """Note that the connection is gone."""
        self.cut(exc or ConnectionAbortedError("the connection was closed"))
        self._ended.set()

    def pause_writing(self) -> None:
        """Note that the server reads too slowly."""
        self.unclogged.clear()
        self.clogged = True

    def resume_writing(self) -> None:
        """Note that the server keeps up again."""
        self.clogged = False
        self.unclogged.set()
