"""A line that also listens. Its subscriptions outlive its connections."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from tenure.errors import OutcomeUnknown, StoreError
from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.access import RedisAccess
from tenure.stores.redis.links.aio_line import RedisLine
from tenure.stores.redis.links.aio_pipeline import NotSentError, Pipeline, SilenceLimits
from tenure.stores.redis.links.link import RedisAddress, RedisHearing, ReplyError

log = logging.getLogger("tenure")

SHORTEST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
"""The shortest and the longest pause between attempts to connect, in seconds, give or take a half."""

PING = wire.command(b"PING")
MESSAGES = frozenset({b"message", b"smessage"})
ENDS = frozenset({b"unsubscribe", b"sunsubscribe"})


class ChannelLine(RedisLine):
    """While there are subscriptions, a task connects again when needed, and checks a server that fell silent."""

    def __init__(
        self,
        runtime: AsyncioRuntime,
        access: RedisAccess,
        address: RedisAddress,
        silence: SilenceLimits,
        *,
        identify: wire.Identify,
        hearing: RedisHearing,
        sharded: bool,
    ) -> None:
        """Prepare; nothing is connected yet."""
        super().__init__(runtime, access, address, silence, identify=identify)
        self._hearing = hearing
        self._prefix = b"s" if sharded else b""
        self._channels: set[str] = set()
        self._tending: asyncio.Task[None] | None = None

    async def listen(self, channel: str, until: float) -> None:
        """Subscribe, and return once the server has confirmed it. Idempotent."""
        while True:
            pipe = await self.ready(until)
            try:
                if channel not in pipe.channels:
                    await self._subscribe(pipe, channel, until)
                break
            except NotSentError:
                continue
        self._channels.add(channel)
        if self._tending is None and not self._stopped:
            self._tending = self._runtime.loop.create_task(self._tend(), name="tenure-channel")

    def ignore(self, channel: str) -> None:
        """Unsubscribe, without waiting for the confirmation."""
        self._channels.discard(channel)
        if (pipe := self.pipe) is not None and channel in pipe.channels:
            pipe.channels.discard(channel)
            self._exchange(pipe, b"unsubscribe", channel, self._runtime.now() + self._silence.sign).cancel()

    def stop(self) -> None:
        """Disconnect, and do not connect again."""
        super().stop()
        if self._tending is not None:
            self._tending.cancel()

    async def stopped(self) -> None:
        """After `stop`: wait until its tasks have ended and its sockets are closed."""
        if self._tending is not None:
            await asyncio.wait({self._tending})
        await super().stopped()

    # -- subscriptions -------------------------------------------------------------------------------------

    async def _subscribe(self, pipe: Pipeline, channel: str, until: float) -> None:
        wire.raise_if_error(await self._exchange(pipe, b"subscribe", channel, until))
        pipe.channels.add(channel)

    def _exchange(self, pipe: Pipeline, verb: bytes, channel: str, until: float) -> "asyncio.Future[Any]":
        """Send a command whose reply is a push that begins with the same words, or an error."""
        words = [self._prefix + verb, channel.encode()]
        return pipe.request(wire.command(*words), until, words)

    async def _greet(self, pipe: Pipeline) -> None:
        """Identify the server, and subscribe before any request: a waiter that does not listen may be passed over."""
        await super()._greet(pipe)
        with contextlib.suppress(ReplyError):  # requests do not need it, and the task tries again
            await self._catch_up(pipe)

    async def _catch_up(self, pipe: Pipeline) -> None:
        """Subscribe to the channels that a connection lacks, and then report a gap in the messages.

        A channel that has moved to another server is dropped: its waiters learn the new server from their next request.
        """
        if not (missing := list(self._channels - pipe.channels)):
            return
        until = self._runtime.now() + self._access.connect_timeout
        ends = await asyncio.gather(*(self._subscribe(pipe, each, until) for each in missing), return_exceptions=True)
        for channel, end in zip(missing, ends, strict=True):
            if wire.is_error(end, "MOVED"):
                self._channels.discard(channel)
            elif end is not None:
                raise end
        self._tell(self._hearing.on_gap)

    def _hear(self, push: list[Any]) -> None:
        """Pass messages on. A server that ends a subscription by itself has lost the channel to another server."""
        if push[0] in MESSAGES:
            self._tell(self._hearing.on_push, push[2])
        elif push[0] in ENDS and self.pipe is not None:
            self.pipe.channels.discard(push[1].decode())
            self.pipe.stirred.set()

    def _tell(self, action: Callable[..., None], *what: bytes) -> None:
        try:
            action(*what)
        except Exception:
            log.exception("a message could not be taken; whoever waits for it asks again by itself")

    # -- the task for the subscriptions --------------------------------------------------------------------

    async def _tend(self) -> None:
        try:
            pause = SHORTEST_PAUSE
            while self._channels:
                began = self._runtime.now()
                with contextlib.suppress(StoreError, NotSentError, ReplyError):
                    pipe = await self.ready(began + self._access.connect_timeout)
                    await self._catch_up(pipe)
                    await self._watch(pipe)
                if self._runtime.now() - began > LONGEST_PAUSE:
                    pause = SHORTEST_PAUSE
                await self._runtime.sleep(pause * (0.5 + self._runtime.random()))
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            self._tending = None

    async def _watch(self, pipe: Pipeline) -> None:
        """Return when the subscriptions need something. Cut the connection of a server that gives no sign of life."""
        while self._channels and self._channels <= pipe.channels and not pipe.lost:
            pipe.stirred.clear()
            await pipe.stirred.wait(pipe.heard + self._silence.quiet)
            if not pipe.lost and (now := self._runtime.now()) >= pipe.heard + self._silence.quiet:
                await self._demand_sign(pipe, now)

    async def _demand_sign(self, pipe: Pipeline, now: float) -> None:
        with contextlib.suppress(OutcomeUnknown, NotSentError):
            await pipe.request(PING, now + self._silence.sign)
        if pipe.heard < now:
            pipe.cut(TimeoutError())
