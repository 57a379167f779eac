"""The link to memcached, and what a server tells of itself when a client connects: its process and its settings.

A restart of the server begins the CAS values anew. So a CAS value is only ever compared in the process that gave it.
The process is identified by its id and the second of its start, which is the difference of two statistics.
"""

from collections.abc import Iterable, Mapping
from typing import cast

from tenure.contracts.runtime import Runtime
from tenure.doctor.memcached import MemcachedFacts
from tenure.errors import StoreError
from tenure.escaping import shown
from tenure.stores.memcached import errors
from tenure.stores.memcached.options import MemcachedDeployment
from tenure.stores.memcached.protocol import (
    SETTINGS,
    STAT,
    STATS,
    MemcachedAnswer,
    MemcachedConversation,
    MemcachedRequest,
    MemcachedServer,
    MetaReply,
)
from tenure.transport.aio import pump_for
from tenure.transport.errors import BROKEN
from tenure.transport.link import Line, ServerAddress, ServerLink

NUMBERS = {
    "evicted": b"evicted",
    "flushed": b"cmd_flush",
    "used": b"bytes",
    "most": b"limit_maxbytes",
    "clients": b"curr_connections",
    "most_clients": b"maxconns",
}
"""The facts that are numbers, and the statistics that tell them."""


def facts_of(address: ServerAddress, said: Mapping[bytes, bytes]) -> MemcachedFacts:
    """Return what the statistics and the settings of a server tell."""
    facts = MemcachedFacts(str(address))
    facts.version = shown(said[b"version"].decode("utf-8", "replace")) if b"version" in said else None
    facts.cas = said[b"cas_enabled"] != b"no" if b"cas_enabled" in said else None
    facts.evicts = said[b"evictions"] != b"off" if b"evictions" in said else None
    facts.crawls = said[b"lru_crawler"] != b"no" if b"lru_crawler" in said else None
    for name, key in NUMBERS.items():
        if said.get(key, b"").isdigit():
            setattr(facts, name, int(said[key]))
    return facts


QUESTIONS = (MemcachedRequest(STATS, 0), MemcachedRequest(SETTINGS, 0))
"""Asked one after the other, because a server that is no memcached may answer anything to the first."""


EVICTED = b"evicted"
"""The statistic `evictions`: the setting of the same name says something else."""


def server_of_greeting(address: ServerAddress, replies: Iterable[MetaReply]) -> MemcachedServer:
    """Return what a server says of itself. Raises StoreError if it is no memcached, or cannot keep locks."""
    said: dict[bytes, bytes] = {}
    for reply in replies:
        if reply.code == STAT:
            key, _, value = reply.rest.partition(b" ")
            said[EVICTED if key == b"evictions" and value.isdigit() else key] = value
        elif not reply.goes_on():
            raise _refusal(address, reply)
    try:
        started_at = int(said[b"time"]) - int(said[b"uptime"])
        process = f"{int(said[b'pid'])}@{started_at}"
    except (KeyError, ValueError):
        raise StoreError(errors.not_memcached(address, "its statistics name no process")) from None
    if said.get(b"cas_enabled") == b"no":
        raise errors.WithoutCas(address, facts_of(address, said))
    return MemcachedServer(process, said.get(b"evictions") != b"off", facts_of(address, said))


def _refusal(address: ServerAddress, reply: MetaReply) -> StoreError:
    if reply.code.endswith(b"ERROR"):  # memcached speaks so
        return errors.refused(address, reply)
    return StoreError(errors.not_memcached(address, f"it says {reply.line()[:100]!r}"))


class MemcachedLink(ServerLink[MemcachedRequest, MemcachedAnswer]):
    """The link to all servers of a deployment."""

    def __init__(self, runtime: Runtime, deployment: MemcachedDeployment) -> None:
        pump = pump_for(runtime, "memcached", pipelined=True)
        super().__init__(runtime, pump, errors.SERVER, deployment.connect_timeout)

    def _conversation(self, address: ServerAddress) -> MemcachedConversation:  # noqa: ARG002
        return MemcachedConversation()

    async def _greet(self, address: ServerAddress, line: Line[MemcachedRequest, MemcachedAnswer], until: float) -> None:
        conversation = cast("MemcachedConversation", line.conversation)
        replies: list[MetaReply] = []
        try:
            for question in QUESTIONS:
                replies += (await line.exchange(question, until)).replies
                if not line.goes_on():
                    break
            conversation.server = server_of_greeting(address, replies)
        except BROKEN as error:
            raise errors.no_greeting(address, error) from error
        conversation.peer = conversation.server.process

    async def server(self, address: ServerAddress, until: float) -> MemcachedServer:
        """Return what a server says of itself, from a connection to it."""
        return cast("MemcachedConversation", await self.conversation(address, until)).server
