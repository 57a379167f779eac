"""The script runner: it runs a script at the server that holds a name.

It follows the redirections of a Cluster, sends the generation that this client knows, remembers the generation of the
reply, and waits for the replicas.
"""

from collections.abc import Coroutine
from typing import Any, NamedTuple

from tenure.errors import StoreUnavailable
from tenure.stores.redis.channels import RedisChannels
from tenure.stores.redis.links.errors import ELSEWHERE, to_store_error
from tenure.stores.redis.links.link import RedisAddress, RedisReply, ReplyError, Word
from tenure.stores.redis.links.wire import RequestTemplate
from tenure.stores.redis.lua.scripts import Script
from tenure.stores.redis.names import NODE, Markers, slot_of, state_key
from tenure.stores.redis.servers.servers import HOPS, RedisServers


class _Call(NamedTuple):
    """The arguments of one run of a script on a link."""

    script: Script
    keys: tuple[Word, ...]
    args: tuple[Word, ...]
    until: float


class ScriptRunner:
    """Runs scripts for one client."""

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
        self, script: Script, name: str, request_id: str, args: tuple[Word, ...], until: float
    ) -> Coroutine[Any, Any, RedisReply]:
        """Run a script for one request and one name."""
        state = state_key(name)
        keys = (self.marker(name) if self._clustered else NODE, state, state + ":q", f"{state}:t:{request_id}")
        return self.call(script, name, keys, args, until)

    def template(self, script: Script, name: str, fields: bytes, numbers: int, length: int) -> RequestTemplate:
        """Pack what the requests for a name have in common; see `RequestTemplate`."""
        marker = self.marker(name)
        return RequestTemplate(script, marker, state_key(name), fields, self.seen.get(marker), numbers, length)

    async def run_request(
        self, template: RequestTemplate, name: str, request_id: bytes, numbers: bytes, until: float
    ) -> Any:  # noqa: ANN401 - whatever the script returns
        """Run the script of a template for one request, as most acquisitions and releases do; return its value."""
        address = self._topology.known or await self.find(name, until)
        link = self._links.get(address) or self._servers.link(address)
        try:
            return await link.run_request(template, request_id, numbers, until)
        except ReplyError as error:
            call = _Call(template.script, *template.words(request_id, numbers), until)
            return (await self._follow(error, address, call)).value
        except StoreUnavailable:
            self._topology.doubt(address)
            raise

    def without_generation(self, template: RequestTemplate, value: Any) -> Any:  # noqa: ANN401
        """Return a reply without the generation, which this client remembers."""
        answer = RedisReply(value, b"")
        self.take_generation(template.marker, answer)
        return answer.value

    async def call(
        self, script: Script, name: str, keys: tuple[Word, ...], args: tuple[Word, ...], until: float
    ) -> RedisReply:
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
