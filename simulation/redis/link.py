"""Simulated connections to simulated servers: the contract of `redis/links/link.py` over the simulated network."""

from collections.abc import Callable
from typing import Any, TypeVar

from simulation import network
from simulation.redis.node import RedisNode
from simulation.redis.server import Server
from simulation.runtime import SimRuntime
from tenure.contracts.runtime import Event
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.redis.links.link import PackedCall, RedisCallbacks, RedisReply, ReplyError, Word, Words
from tenure.stores.redis.scripts import Script

T = TypeVar("T")

PASSING = (
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY Redis is busy running a script.",
    "MISCONF Redis is configured to save RDB snapshots",
    "NOREPLICAS Not enough good replicas to write.",
    "ERR max number of clients reached",
)
LASTING = ("NOPERM this user has no permissions to run the 'evalsha' command", "WRONGTYPE Operation against a key")

SHORTEST, LONGEST = 0.01, 0.5
"""The first and the longest pause before the channel connects again, in seconds."""


class SimulatedRedisLink:
    """The link of one client to one server: requests, and a notification channel on a connection of its own."""

    blocks = False

    def __init__(
        self,
        runtime: SimRuntime,
        wire: network.Link,
        node: RedisNode,
        reach: Callable[[], Server | None],
        callbacks: RedisCallbacks,
    ) -> None:
        """Use `wire` to reach the process that `reach` returns, which is of `node`. Nothing is connected yet."""
        self._runtime = runtime
        self._wire = wire
        self._node = node
        self._reach = reach
        self._callbacks = callbacks
        self._server: Server | None = None
        self._epoch = 0
        """The epoch of the wire when the link connected to the server."""
        self._channels: list[str] = []
        self._heard: Server | None = None
        """The server at which the channels are subscribed."""
        self._returning = False
        """Whether a task is connecting the channel again."""
        self._closed = False
        wire.when_cut.append(self._lost)

    # -- requests ------------------------------------------------------------------------------------------

    async def run(self, script: Script, keys: Words, args: Words, until: float) -> RedisReply:
        """Run a script."""
        server = await self._connect(until)
        return await self._run(server, script, keys, (*args, server.identity()), until)

    async def _run(self, server: Server, script: Script, keys: Words, args: Words, until: float) -> RedisReply:
        try:
            value = await self._exchange(server, lambda: server.evalsha(script.digest, keys, args), until)
        except ReplyError as error:
            if error.code != "NOSCRIPT":
                raise
            self._wire.happened["script not known"] += 1
            value = await self._exchange(server, lambda: server.eval(script.text, keys, args), until)
        return RedisReply(value, server.identity())

    async def run_request(self, template: PackedCall, request_id: bytes, numbers: bytes, until: float) -> Any:  # noqa: ANN401 - whatever the script returns
        """Run the script of a template for one request."""
        server = await self._connect(until)
        script, keys, args = template.words(request_id, numbers)
        args = (*args, *template.last_words(server.identity()))
        return (await self._run(server, script, keys, args, until)).value

    def send_request(
        self, template: PackedCall, request_id: bytes, numbers: bytes, until: float, told: Callable[[Any], None]
    ) -> bool:
        """Run the script of a template beside the caller; `told` gets its value, or the error."""

        async def run() -> None:
            try:
                told(await self.run_request(template, request_id, numbers, until))
            except (ReplyError, StoreError):
                told(None)

        self._runtime.spawn(run, "release sent")
        return True

    def collect(self) -> None:
        """Do nothing: tasks take all replies."""

    async def run_replicated(self, script: Script, keys: Words, args: Words, until: float, replicas: int) -> RedisReply:
        """Run a script, and wait until replicas have its writes."""
        server = await self._connect(until)
        args = (*args, server.identity())
        try:
            return await self._replicated(server, lambda: server.evalsha(script.digest, keys, args), until, replicas)
        except ReplyError as error:
            if error.code != "NOSCRIPT":
                raise
            return await self._replicated(server, lambda: server.eval(script.text, keys, args), until, replicas)

    async def run_after_asking(self, script: Script, keys: Words, args: Words, until: float) -> RedisReply:
        """Raise NotImplementedError, for no slot moves in the simulation."""
        raise NotImplementedError

    async def command(self, *words: Word, until: float) -> Any:  # noqa: ANN401 - the type of the command's reply
        """Send a plain command."""
        server = await self._connect(until)
        return await self._exchange(server, lambda: server.command(*words), until)

    async def _connect(self, until: float) -> Server:
        """Return the connected process, or connect to the present one."""
        server = self._server
        if server is None or not server.alive or self._epoch != self._wire.epoch:
            epoch = self._wire.epoch
            self._server = None
            server = await self._reached(until)
            self._server, self._epoch = server, epoch
        faults, random = self._wire.faults, self._wire.world.random
        if faults.errors and random.random() < faults.errors:
            self._wire.happened["error answered"] += 1
            await self._runtime.sleep(self._wire.delay())
            raise ReplyError(random.choice(LASTING if random.random() < 0.2 else PASSING))
        return server

    async def _reached(self, until: float) -> Server:
        """Connect to the present process, and learn its run id."""
        wire, now, epoch = self._wire, self._runtime.now, self._wire.epoch
        server = None if self._closed else self._reach()
        if server is None:
            wire.happened["connection refused"] += 1
            await self._runtime.sleep(wire.delay())
            raise StoreUnavailable("connection refused")
        split_until = max(wire.deaf_until, wire.mute_until)
        if split_until > wire.world.time:
            wire.happened["connection timed out"] += 1
            await self._runtime.sleep(max(0.0, until - now()))
            raise StoreUnavailable("timed out")
        await self._runtime.sleep(wire.delay() + wire.delay())
        if not server.alive or epoch != wire.epoch:
            raise StoreUnavailable("the connection broke")
        return server

    async def _exchange(self, server: Server, work: Callable[[], T], until: float) -> T:
        def serve(answer: network.Answer[T]) -> None:
            if server.alive and not self._node.is_down():
                try:
                    answer.resolve(work())
                except ReplyError as error:
                    answer.fail(error)

        return await self._wire.exchange(serve, until, self._takes)

    async def _replicated(self, server: Server, work: Callable[[], Any], until: float, replicas: int) -> RedisReply:
        left = (until - self._runtime.now()) * 0.8

        def serve(answer: network.Answer[RedisReply]) -> None:
            if not server.alive or self._node.is_down():
                return
            try:
                value = work()
            except ReplyError as error:
                answer.fail(error)
                return

            def tell(count: int) -> None:
                answer.resolve(RedisReply(value, server.identity(), count))

            self._node.wait(replicas, left, tell)

        return await self._wire.exchange(serve, until, self._takes)

    def _takes(self) -> float:
        return self._node.takes(self._wire.happened)

    # -- the channel -----------------------------------------------------------------------------------------

    async def listen(self, channel: str, until: float) -> None:
        """Subscribe to a channel, and return once the server has confirmed it."""
        if channel not in self._channels or self._heard is None:
            await self._subscribe([*self._channels, channel], until)
            if channel not in self._channels:
                self._channels.append(channel)

    async def wait(self, event: Event, until: float | None) -> bool:
        """Wait for an event."""
        return await event.wait(until)

    async def ignore(self, channel: str) -> None:
        """End a subscription."""
        if channel in self._channels:
            self._channels.remove(channel)
        if self._heard is not None:
            self._heard.unsubscribe(self, channel)

    async def close(self) -> None:
        """Disconnect."""
        self._closed = True
        self._channels.clear()
        self.vanish()

    def abandon(self) -> None:
        """Do nothing: simulated processes do not fork."""

    def vanish(self) -> None:
        """Close the channel at the server, as the death of the client does."""
        if self._heard is not None:
            self._heard.unsubscribe(self)
            self._heard = None

    async def _subscribe(self, channels: list[str], until: float) -> None:
        server = await self._reached(until)

        def subscribe() -> None:
            for channel in channels:
                server.subscribe(channel, self, self._push)

        try:
            await self._exchange(server, subscribe, until)
        except BaseException:
            server.unsubscribe(self)
            raise
        self._heard = server

    def _push(self, payload: bytes) -> None:
        self._wire.push(lambda: self._callbacks.on_push(payload), payload.decode())

    def _lost(self) -> None:
        """Handle a broken connection: connect and subscribe again, and report a gap in the notifications."""
        self.vanish()
        if self._channels and not self._returning:
            self._returning = True
            self._runtime.spawn(self._return, "channel")

    async def _return(self) -> None:
        pause = SHORTEST
        while self._channels and self._heard is None:
            try:
                await self._subscribe(list(self._channels), self._runtime.now() + 1.0)
            except (StoreError, ReplyError):
                await self._runtime.sleep(pause * (0.5 + self._runtime.random()))
                pause = min(pause * 2, LONGEST)
        self._returning = False
        if self._channels:
            self._callbacks.on_gap()
