"""The link of the asyncio runtime: one connection a server, for requests and for the channel alike.

Where replicas are waited for there is a second one: a WAIT holds up whatever is asked after it on the same
connection, and a release or a renewal should not stand behind it.
"""

import asyncio
from typing import Any

from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.stores.redis import wire
from holdfast.stores.redis.access import RedisAccess
from holdfast.stores.redis.aio_channel import ChannelLine
from holdfast.stores.redis.aio_line import RedisLine
from holdfast.stores.redis.aio_pipeline import NotSentError, SilenceLimits
from holdfast.stores.redis.link import RedisAddress, RedisHearing, RedisReply, ReplyError, Word
from holdfast.stores.redis.scripts import Script

ASKING = wire.command(b"ASKING")


class RedisAsyncLink:
    """Implements `Link` for one event loop."""

    def __init__(
        self,
        runtime: AsyncioRuntime,
        access: RedisAccess,
        address: RedisAddress,
        hearing: RedisHearing,
        *,
        identify: wire.Identify = wire.WHO,
        sharded: bool = False,
    ) -> None:
        """Prepare; nothing is connected yet.

        Without `identify` the server is not asked who it is, and its run id is b"". `sharded` means sharded channels.
        """
        self.silence = SilenceLimits()
        self._runtime = runtime
        self._address = address
        self._line = ChannelLine(
            runtime, access, address, self.silence, identify=identify, hearing=hearing, sharded=sharded
        )
        self._waiting_line = RedisLine(runtime, access, address, self.silence, identify=identify)

    async def run(self, script: Script, keys: tuple[Word, ...], args: tuple[Word, ...], until: float) -> RedisReply:
        """Run a script with `args` and the run id. This is the short way, for a server that is there and knows it."""
        pipe = self._line.pipe
        if pipe is not None and not pipe.clogged:
            try:
                value = await pipe.request(wire.evalsha(script, keys, args, pipe.run_id), until)
                if type(value) is not ReplyError:
                    return RedisReply(value, pipe.run_id)
                if value.code != "NOSCRIPT":
                    raise value
            except NotSentError:
                pass
        return await self._run(self._line, script, keys, args, until)

    async def run_replicated(
        self, script: Script, keys: tuple[Word, ...], args: tuple[Word, ...], until: float, replicas: int
    ) -> RedisReply:
        """Run a script, and count the replicas that have it. What is asked in one turn of the loop shares a WAIT."""
        return await self._run(self._waiting_line, script, keys, args, until, replicas=replicas)

    async def run_after_asking(
        self, script: Script, keys: tuple[Word, ...], args: tuple[Word, ...], until: float
    ) -> RedisReply:
        """Run a script right after an ASKING."""
        return await self._run(self._line, script, keys, args, until, asking=True)

    async def _run(
        self,
        line: RedisLine,
        script: Script,
        keys: tuple[Word, ...],
        args: tuple[Word, ...],
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
                    pipe.request(ASKING, until).cancel()  # the script's reply will tell whether it was heeded
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
        """Await what others await as well. An error of it is not theirs or mine: each raises its own."""
        await asyncio.wait({tally}, timeout=max(0.0, until - self._runtime.now()))
        if not tally.done() or tally.exception() is not None:
            raise wire.unanswered(self._address, TimeoutError())
        if type(count := tally.result()) is ReplyError:
            raise ReplyError(str(count))
        return int(count)

    async def command(self, *words: Word, until: float) -> Any:  # noqa: ANN401 - whatever the command answers
        """Send a plain command."""
        while True:
            pipe = await self._line.ready(until)
            try:
                reply = await pipe.request(wire.command(*words), until)
            except NotSentError:
                continue
            wire.raise_if_error(reply)
            return reply

    async def listen(self, channel: str, until: float) -> None:
        """Subscribe, and stay subscribed."""
        await self._line.listen(channel, until)

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
        """In a forked child: let go of the sockets. The event loop, which is the parent's, is not touched."""
        self._line.abandon()
        self._waiting_line.abandon()
