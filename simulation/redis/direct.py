"""A link to a simulated server that neither delays nor loses messages, for tests and for clients not under test."""

from collections.abc import Callable
from typing import Any

from simulation.redis.server import Server
from tenure.contracts.runtime import Event, Runtime
from tenure.stores.redis.deployment import Rules
from tenure.stores.redis.links.link import (
    PackedCall,
    RedisAddress,
    RedisCallbacks,
    RedisLink,
    RedisReply,
    ReplyError,
    Word,
    Words,
)
from tenure.stores.redis.scripts import Script
from tenure.stores.redis.topology import OneServer, OpenLink, Topology


class DirectLink:
    """A link to the present process of a server. Its coroutines never suspend."""

    blocks = False

    def __init__(self, reach: Callable[[], Server], callbacks: RedisCallbacks) -> None:
        """Use the process that `reach` returns."""
        self._reach = reach
        self._callbacks = callbacks
        self._channels: list[str] = []
        self._server: Server | None = None
        self._identity = b""

    def _connect(self) -> Server:
        """Return the present process; its identity is learned once, as by a connection that stays open."""
        server = self._reach()
        if server is not self._server:
            self._server, self._identity = server, server.identity()
        return server

    async def run(self, script: Script, keys: Words, args: Words, until: float) -> RedisReply:  # noqa: ARG002 - at once
        """Run a script."""
        server = self._connect()
        return RedisReply(self._value(server, script, keys, (*args, self._identity)), self._identity)

    def _value(self, server: Server, script: Script, keys: Words, args: Words) -> Any:  # noqa: ANN401 - any reply
        try:
            return server.evalsha(script.digest, keys, args)
        except ReplyError as error:
            if error.code != "NOSCRIPT":
                raise
            return server.eval(script.text, keys, args)

    run_after_asking = run

    async def run_request(self, template: PackedCall, request_id: bytes, numbers: bytes, until: float) -> Any:  # noqa: ANN401, ARG002 - any value, at once
        """Run the script of a template for one request."""
        server = self._connect()
        script, keys, args = template.words(request_id, numbers)
        return self._value(server, script, keys, (*args, *template.last_words(self._identity)))

    def send_request(self, template: PackedCall, request_id: bytes, numbers: bytes, until: float, told: object) -> bool:  # noqa: ARG002
        """Send nothing later: replies come at once."""
        return False

    def collect(self) -> None:
        """Do nothing: no reply is owed."""

    async def run_replicated(self, script: Script, keys: Words, args: Words, until: float, replicas: int) -> RedisReply:
        """Run a script, and claim that all replicas have its writes."""
        answer = await self.run(script, keys, args, until)
        return RedisReply(answer.value, answer.run_id, replicas)

    async def command(self, *words: Word, until: float) -> Any:  # noqa: ANN401, ARG002 - any reply, at once
        """Send a plain command."""
        return self._reach().command(*words)

    async def listen(self, channel: str, until: float) -> None:  # noqa: ARG002 - at once
        """Subscribe to a channel."""
        self._channels.append(channel)
        self.listen_again()

    def listen_again(self) -> None:
        """Subscribe to the same channels at the present process."""
        for channel in self._channels:
            self._reach().subscribe(channel, self, self._callbacks.on_push)

    async def wait(self, event: Event, until: float | None) -> bool:
        """Wait for an event."""
        return await event.wait(until)

    async def ignore(self, channel: str) -> None:
        """End a subscription."""
        self._channels.remove(channel)
        self._reach().unsubscribe(self, channel)

    async def close(self) -> None:
        """End all subscriptions."""
        self._channels.clear()
        self._reach().unsubscribe(self)

    def abandon(self) -> None:
        """Do nothing: simulated processes do not fork."""


class DirectDeployment:
    """A deployment of one server, whose process may be replaced."""

    def __init__(self, rules: Rules, reach: Callable[[], Server]) -> None:
        """Use the process that `reach` returns."""
        self.rules = rules
        self.links: list[DirectLink] = []
        self._reach = reach

    def topology(self, runtime: Runtime, open_link: OpenLink) -> Topology:  # noqa: ARG002 - there is one server
        """Return the one server."""
        return OneServer(RedisAddress("here"))

    def link(self, runtime: Runtime, address: RedisAddress, callbacks: RedisCallbacks) -> RedisLink:  # noqa: ARG002 - there is one
        """Make a link to the server."""
        link = DirectLink(self._reach, callbacks)
        self.links.append(link)
        return link
