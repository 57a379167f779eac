"""The servers of one client: the link to each, where the client listens, and how a script runs where a name is held.

A client listens at one channel, its home, at the server that holds all names. In a Cluster it listens at a channel for
each name, at the server of that name, and follows redirections.
"""

import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from tenure.contracts.runtime import Runtime
from tenure.errors import StoreUnavailable
from tenure.stores.redis.deployment import Rules
from tenure.stores.redis.links.errors import ELSEWHERE, STALE, to_store_error
from tenure.stores.redis.links.link import RedisAddress, RedisCallbacks, RedisLink, RedisReply, ReplyError, Word, Words
from tenure.stores.redis.links.wire import RequestTemplate
from tenure.stores.redis.names import NODE, Markers, slot_of, state_key
from tenure.stores.redis.scripts import Script
from tenure.stores.redis.topology import OpenLink, Topology

HOPS = 5
"""How many MOVED and ASK replies of a Cluster one request follows."""

SCANNED = "990"
"""How many keys one SCAN looks at: with the keys that it finds besides, four times the PAGE of `key_scans` at most."""

START = b"0"
"""The cursor of a scan at its beginning, and at its end."""


class Wiring(Protocol):
    """The part of a Deployment, real or simulated, that the store uses."""

    rules: Rules

    def topology(self, runtime: Runtime, open_link: OpenLink) -> Topology:
        """Return the topology, which knows which server holds a name."""
        ...

    def link(self, runtime: Runtime, address: RedisAddress, callbacks: RedisCallbacks) -> RedisLink:
        """Return a new link to a server."""
        ...


class RedisServers:
    """The servers of one client: which server holds a name, and the link to it."""

    def __init__(self, deployment: Wiring, runtime: Runtime, callbacks: RedisCallbacks) -> None:
        """Prepare the topology; nothing is connected yet. All links call `callbacks`."""
        self._deployment = deployment
        self._runtime = runtime
        self._callbacks = callbacks
        self.links: dict[RedisAddress, RedisLink] = {}
        """The links that were opened so far."""
        self.topology: Topology = deployment.topology(runtime, self.link)

    def link(self, address: RedisAddress) -> RedisLink:
        """Return the link to a server. There is one link to each server."""
        link = self.links.get(address)
        if link is None:
            made = self._deployment.link(self._runtime, address, self._callbacks)
            link = self.links.setdefault(address, made)  # another thread may have been faster
        return link

    def refused(self, address: RedisAddress, error: ReplyError) -> Exception:
        """Return the error to raise for an error reply, after which a server may no longer be the master."""
        if error.code in STALE:
            self.topology.doubt(address)
        return to_store_error(address, error)

    async def scan(self, address: RedisAddress, cursor: bytes, match: str, until: float) -> tuple[bytes, set[str]]:
        """Return some keys and the cursor of the next scan, which is START at the end."""
        try:
            reply = await self.link(address).command("SCAN", cursor, "MATCH", match, "COUNT", SCANNED, until=until)
        except ReplyError as error:
            raise to_store_error(address, error) from error
        except StoreUnavailable:
            self.topology.doubt(address)
            raise
        return reply[0], {key.decode("utf-8", "replace") for key in reply[1]}

    async def close(self) -> None:
        """Close all links."""
        for link in list(self.links.values()):
            await link.close()
        await self.topology.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        for link in self.links.values():
            link.abandon()
        self.topology.abandon()


log = logging.getLogger("tenure")

IDLE_CHANNEL = 60.0
"""For how many seconds an unused channel is kept. A waiter sends its request every second or two."""


class RedisChannels:
    """The subscriptions of one client."""

    def __init__(self, runtime: Runtime, servers: RedisServers, channel: str, on_gap: Callable[[], None]) -> None:
        """Subscribe nowhere yet. `on_gap` is called when notifications may have been missed between two servers."""
        self._runtime = runtime
        self._servers = servers
        self._topology = servers.topology
        self._channel = channel
        self._on_gap = on_gap
        self.home: RedisAddress | None = None
        """The server at which this client listens, except in a Cluster."""
        self.by_name: dict[str, tuple[RedisAddress, float]] = {}
        """In a Cluster: for each name the server at which the client listens, and the instant of the last use."""

    async def listen_at_home(self, address: RedisAddress, until: float) -> None:
        """Listen at the server that holds all names, and no longer at the server that held them before."""
        before, self.home = self.home, address
        channel = f"tenure:channel:{self._channel}"
        try:
            await self._servers.link(address).listen(channel, until)
        except BaseException as error:  # an interrupt, too: the client does not listen there
            self.home = before
            if isinstance(error, ReplyError):
                raise self._servers.refused(address, error) from error
            if isinstance(error, StoreUnavailable):
                self._topology.doubt(address)
            raise
        if before is not None:
            log.warning("the Redis master is now %s, and was %s", address, before)
            await self._servers.link(before).ignore(channel)
            self._on_gap()

    async def listen_for(self, name: str, until: float) -> None:
        """In a Cluster: listen at the channel of a name, at the name's server; drop channels that are idle."""
        address = await self._topology.server(name, until)
        before = self.by_name.get(name)
        self.by_name[name] = (address, self._runtime.now())
        if before is not None and before[0] == address:
            return
        try:
            await self._listen_at(address, name, until)
        except BaseException:
            self.by_name.pop(name, None)
            raise
        if before is not None:
            await self._servers.link(before[0]).ignore(self._channel_of(name))
        await self._drop_idle_channels()

    async def _listen_at(self, address: RedisAddress, name: str, until: float) -> None:
        for _ in range(HOPS):
            try:
                await self._servers.link(address).listen(self._channel_of(name), until)
                return
            except ReplyError as error:
                if error.code not in ELSEWHERE:
                    raise self._servers.refused(address, error) from error
                address = self._topology.moved(error, address)
                self.by_name[name] = (address, self._runtime.now())
            except StoreUnavailable:
                self._topology.doubt(address)
                raise
        raise StoreUnavailable(f"the cluster redirects the subscription for {name!r} again and again; see CLUSTER INFO")

    async def _drop_idle_channels(self) -> None:
        now = self._runtime.now()
        for name, (address, used_at) in list(self.by_name.items()):
            if now - used_at > IDLE_CHANNEL:
                del self.by_name[name]
                await self._servers.link(address).ignore(self._channel_of(name))

    def _channel_of(self, name: str) -> str:
        return f"{state_key(name)}:channel:{self._channel}"


class _Call(NamedTuple):
    """The arguments of one run of a script on a link."""

    script: Script
    keys: Words
    args: Words
    until: float


class ScriptRunner:
    """Runs scripts for one client.

    It sends the generation that the client knows, remembers the one of the reply, and waits for the replicas.
    """

    def __init__(self, servers: RedisServers, channels: RedisChannels, replicas: int) -> None:
        """Run scripts at `servers`; a guarded script waits for `replicas` replicas."""
        self._servers = servers
        self._links = servers.links
        self._topology = servers.topology
        self._clustered = servers.topology.clustered
        self._channels = channels
        self._replicas = replicas
        self._markers = Markers()
        self.seen: dict[Word, bytes] = {}
        """By marker: the latest generation that this client knows of; see `quarantine` in state.lua."""

    def run(
        self, script: Script, name: str, request_id: str, args: Words, until: float
    ) -> Coroutine[Any, Any, RedisReply]:
        """Run a script for one request and one name."""
        state = state_key(name)
        keys = (self.marker(name) if self._clustered else NODE, state, state + ":q", f"{state}:t:{request_id}")
        return self.call(script, name, keys, args, until)

    def template(self, script: Script, name: str, fields: bytes, numbers: int, length: int) -> RequestTemplate:
        """Pack what the requests for a name have in common; see `RequestTemplate`."""
        marker = self.marker(name)
        return RequestTemplate(script, marker, state_key(name), fields, self.seen.get(marker), numbers, length)

    async def after(
        self,
        error: ReplyError | StoreUnavailable,
        address: RedisAddress,
        call: tuple[Script, Words, Words],
        until: float,
    ) -> Any:  # noqa: ANN401 - whatever the script returns
        """Return the value of a call from where the server redirects it; raise what any other error of it means."""
        if isinstance(error, ReplyError):
            return (await self._follow(error, address, _Call(*call, until))).value
        self._topology.doubt(address)
        raise error

    def without_generation(self, template: RequestTemplate, value: Any) -> Any:  # noqa: ANN401
        """Return a reply without the generation, which this client remembers."""
        answer = RedisReply(value, b"")
        self.take_generation(template.marker, answer)
        return answer.value

    async def call(self, script: Script, name: str, keys: Words, args: Words, until: float) -> RedisReply:
        """Run a script at the server of a name, follow redirections, and remember the server's generation."""
        marker = keys[0]
        seen = self.seen.get(marker, b"")
        address = self._topology.known or await self.find(name, until)
        link = self._links.get(address) or self._servers.link(address)
        args = (args[0], seen, *args[1:])
        try:
            if self._replicas and script.guarded:
                answer = await link.run_replicated(script, keys, args, until, self._replicas)
            else:
                answer = await link.run(script, keys, args, until)
        except ReplyError as error:
            answer = await self._follow(error, address, _Call(script, keys, args, until))
        except StoreUnavailable:
            self._topology.doubt(address)
            raise
        self.take_generation(marker, answer)
        return answer

    def take_generation(self, marker: Word, answer: RedisReply) -> None:
        """Remember the generation in front of a reply, unless it is older than the known one."""
        match answer.value:
            case [bytes() as generation, value]:
                answer.value = value
                if _number_of(generation) > _number_of(self.seen.get(marker, b"0")):
                    self.seen[marker] = generation
            case _:
                pass

    async def _follow(self, error: ReplyError, address: RedisAddress, call: _Call) -> RedisReply:
        """Follow MOVED and ASK replies of a Cluster from node to node; raise the meaning of any other error."""
        for _ in range(HOPS):
            if error.code not in ELSEWHERE:
                raise self._servers.refused(address, error) from error
            address = self._topology.moved(error, address)
            link = self._servers.link(address)
            try:
                if error.code == "ASK":
                    return await link.run_after_asking(*call)
                if call.script.guarded and self._replicas:
                    return await link.run_replicated(*call, self._replicas)
                return await link.run(*call)
            except ReplyError as another:
                error = another
            except StoreUnavailable:
                self._topology.doubt(address)
                raise
        raise to_store_error(address, error) from error

    async def find(self, name: str, until: float) -> RedisAddress:
        """Return the server of a name. If all names have moved to another server, listen there from now on."""
        address = await self._topology.server(name, until)
        home = self._channels.home
        if home is not None and address != home:
            await self._channels.listen_at_home(address, until)
        return address

    def marker(self, name: str) -> str:
        """Return the key of the marker of a name's server, or in a Cluster of the name's slot."""
        return self._markers.of(slot_of(name)) if self._clustered else NODE


def _number_of(generation: bytes) -> int:
    """Return the number that a generation begins with."""
    return int(generation.partition(b" ")[0])
