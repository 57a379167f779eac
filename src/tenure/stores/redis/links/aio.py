"""The link to a Redis server for asyncio: one connection, for requests and for the channel alike.

A link that waits for replicas has a second connection: a WAIT delays every later request on its connection, and a
release or a renewal must not wait for it.
"""

# ruff: noqa: D102 - the contracts say what these methods do

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from tenure.contracts.runtime import Event
from tenure.errors import OutcomeUnknown, StoreError
from tenure.runtimes.aio import AsyncioRuntime, LoopTask
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.aio_line import RedisLine
from tenure.stores.redis.links.aio_pipeline import NotSentError, Pipeline, SilenceLimits
from tenure.stores.redis.links.link import (
    PackedCall,
    RedisAccess,
    RedisAddress,
    RedisCallbacks,
    RedisReply,
    ReplyError,
    Word,
    Words,
)
from tenure.stores.redis.scripts import Script

ASKING = wire.command(b"ASKING")


class RedisAsyncLink:
    """Implements `Link` for one event loop."""

    blocks = False

    def __init__(
        self,
        runtime: AsyncioRuntime,
        access: RedisAccess,
        address: RedisAddress,
        callbacks: RedisCallbacks,
        *,
        identify: wire.Identify = wire.WHO,
        sharded: bool = False,
    ) -> None:
        """Prepare; nothing is connected yet.

        Without `identify`, the link does not ask the server for its run id. A cluster has `sharded` channels.
        """
        self.silence = SilenceLimits()
        self._runtime = runtime
        self._address = address
        self._line = ChannelLine(
            runtime, access, address, self.silence, identify=identify, callbacks=callbacks, sharded=sharded
        )
        self._waiting_line = RedisLine(runtime, access, address, self.silence, identify=identify)

    async def run(self, script: Script, keys: Words, args: Words, until: float) -> RedisReply:
        return await self._run(self._line, script, keys, args, until)

    async def run_request(self, template: PackedCall, request_id: bytes, numbers: bytes, until: float) -> Any:  # noqa: ANN401 - whatever the script returns
        """Run the script of a template for one request: the short way, if the server is connected and knows it."""
        pipe = self._line.pipe
        if pipe is not None and not pipe.clogged:
            try:
                value = await pipe.request(template.packed(request_id, numbers, pipe.run_id), until)
                if type(value) is not ReplyError:
                    return value
                if value.code != "NOSCRIPT":
                    raise value
            except NotSentError:
                pass
        return (await self._run(self._line, *template.words(request_id, numbers), until)).value

    def send_request(
        self, template: PackedCall, request_id: bytes, numbers: bytes, until: float, told: Callable[[Any], None]
    ) -> bool:
        pipe = self._line.pipe
        if pipe is None or pipe.clogged:
            return False
        try:
            reply = pipe.request(template.packed(request_id, numbers, pipe.run_id), until)
        except NotSentError:
            return False
        reply.add_done_callback(partial(_tell, told))
        return True

    def collect(self) -> None:
        """Do nothing: the event loop takes all replies."""

    async def run_replicated(self, script: Script, keys: Words, args: Words, until: float, replicas: int) -> RedisReply:
        """Run a script, and count the replicas that have it. The requests of one turn of the loop share a WAIT."""
        return await self._run(self._waiting_line, script, keys, args, until, replicas=replicas)

    async def run_after_asking(self, script: Script, keys: Words, args: Words, until: float) -> RedisReply:
        return await self._run(self._line, script, keys, args, until, asking=True)

    async def _run(
        self,
        line: RedisLine,
        script: Script,
        keys: Words,
        args: Words,
        until: float,
        *,
        replicas: int = 0,
        asking: bool = False,
    ) -> RedisReply:
        pack = wire.evalsha
        while True:
            pipe = await line.ready(until)
            try:
                if asking:
                    pipe.request(ASKING, until).cancel()  # the script's reply tells whether the server took it
                reply = pipe.request(pack(script, keys, args, pipe.run_id), until)
                tally = pipe.tally(replicas, until) if replicas else None
                value = await reply
            except NotSentError:
                continue
            if pack is wire.evalsha and wire.is_error(value, "NOSCRIPT"):
                pack = wire.eval_text
                continue
            wire.raise_if_error(value)
            return RedisReply(value, pipe.run_id, 0 if tally is None else await self._counted(tally, until))

    async def _counted(self, tally: "asyncio.Future[Any]", until: float) -> int:
        """Await a count that other tasks await, too. Each of them raises an error of its own."""
        await asyncio.wait({tally}, timeout=max(0.0, until - self._runtime.now()))
        if not tally.done() or tally.exception() is not None:
            raise wire.unanswered(self._address, TimeoutError())
        if type(count := tally.result()) is ReplyError:
            raise ReplyError(str(count))
        return int(count)

    async def command(self, *words: Word, until: float) -> Any:  # noqa: ANN401 - whatever the command answers
        while True:
            pipe = await self._line.ready(until)
            try:
                reply = await pipe.request(wire.command(*words), until)
            except NotSentError:
                continue
            wire.raise_if_error(reply)
            return reply

    async def listen(self, channel: str, until: float) -> None:
        await self._line.listen(channel, until)

    async def wait(self, event: Event, until: float | None) -> bool:
        return await event.wait(until)

    async def ignore(self, channel: str) -> None:
        """Unsubscribe. Does not wait for the server."""
        self._line.ignore(channel)

    async def close(self) -> None:
        """Disconnect, and leave no task and no socket behind. Requests under way end by OutcomeUnknown."""
        self._line.stop()
        self._waiting_line.stop()
        await self._line.stopped()
        await self._waiting_line.stopped()

    def abandon(self) -> None:
        """In a forked child: let go of the sockets, and leave the event loop alone, which is the parent's."""
        self._line.abandon()
        self._waiting_line.abandon()


def _tell(told: Callable[[Any], None], reply: "asyncio.Future[Any]") -> None:
    told(None if reply.cancelled() or reply.exception() is not None else reply.result())


log = logging.getLogger("tenure")

SHORTEST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
"""The shortest and the longest pause between attempts to connect, in seconds, give or take a half."""

PING = wire.command(b"PING")
MESSAGES = frozenset({b"message", b"smessage"})
ENDS = frozenset({b"unsubscribe", b"sunsubscribe"})


class ChannelLine(RedisLine):
    """A line that also listens. Its subscriptions outlive its connections.

    While there are some, a task connects again when needed, and checks a server that fell silent.
    """

    def __init__(
        self,
        runtime: AsyncioRuntime,
        access: RedisAccess,
        address: RedisAddress,
        silence: SilenceLimits,
        *,
        identify: wire.Identify,
        callbacks: RedisCallbacks,
        sharded: bool,
    ) -> None:
        super().__init__(runtime, access, address, silence, identify=identify, on_greeting=callbacks.on_greeting)
        self._callbacks = callbacks
        self._prefix = b"s" if sharded else b""
        self._channels: set[str] = set()
        self._tending: LoopTask | None = None

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
        if not self._stopped and (self._tending is None or self._tending.ended()):
            self._tending = self._runtime.spawn(self._tend, "channel", again=True)

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
            await self._tending.join(None)
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
        self._tell(self._callbacks.on_gap)

    def _hear(self, push: list[Any]) -> None:
        """Pass messages on. A server that ends a subscription by itself has lost the channel to another server."""
        if push[0] in MESSAGES:
            self._tell(self._callbacks.on_push, push[2])
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
