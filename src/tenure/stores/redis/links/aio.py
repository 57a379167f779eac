"""The link to a Redis server for asyncio: one connection, for requests and for the channel alike.

A link that waits for replicas has a second connection: a WAIT delays every later request on its connection, and a
release or a renewal must not wait for it.
"""

import asyncio
from typing import Any

from tenure.contracts.runtime import Event
from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.access import RedisAccess
from tenure.stores.redis.links.aio_channel import ChannelLine
from tenure.stores.redis.links.aio_line import RedisLine
from tenure.stores.redis.links.aio_pipeline import NotSentError, SilenceLimits
from tenure.stores.redis.links.link import PackedCall, RedisAddress, RedisHearing, RedisReply, ReplyError, Word
from tenure.stores.redis.lua.scripts import Script

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

        Without `identify`, the link does not ask the server for its run id. A cluster has `sharded` channels.
        """
        self.silence = SilenceLimits()
        self._runtime = runtime
        self._address = address
        self._line = ChannelLine(
            runtime, access, address, self.silence, identify=identify, hearing=hearing, sharded=sharded
        )
        self._waiting_line = RedisLine(runtime, access, address, self.silence, identify=identify)

    async def run(self, script: Script, keys: tuple[Word, ...], args: tuple[Word, ...], until: float) -> RedisReply:
        """Run a script with `args` and the run id."""
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
        keys, args = template.words(request_id, numbers)
        return (await self._run(self._line, template.script, keys, args, until)).value

    async def run_replicated(
        self, script: Script, keys: tuple[Word, ...], args: tuple[Word, ...], until: float, replicas: int
    ) -> RedisReply:
        """Run a script, and count the replicas that have it. The requests of one turn of the loop share a WAIT."""
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

    async def wait(self, event: Event, until: float | None) -> bool:
        """Wait for an event."""
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
