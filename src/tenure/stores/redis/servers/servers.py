"""The servers of a deployment: the topology, and one link to each server."""

from typing import Protocol

from tenure.contracts.runtime import Runtime
from tenure.errors import StoreUnavailable
from tenure.stores.redis.links.errors import STALE, to_store_error
from tenure.stores.redis.links.link import RedisAddress, RedisHearing, RedisLink, ReplyError
from tenure.stores.redis.servers.deployment import Rules
from tenure.stores.redis.servers.topology import OpenLink, Topology

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

    def link(self, runtime: Runtime, address: RedisAddress, hearing: RedisHearing) -> RedisLink:
        """Return a new link to a server."""
        ...


class RedisServers:
    """The servers of one client: which server holds a name, and the link to it."""

    def __init__(self, deployment: Wiring, runtime: Runtime, hearing: RedisHearing) -> None:
        """Prepare the topology; nothing is connected yet. All links call `hearing`."""
        self._deployment = deployment
        self._runtime = runtime
        self._hearing = hearing
        self.links: dict[RedisAddress, RedisLink] = {}
        """The links that were opened so far."""
        self.topology: Topology = deployment.topology(runtime, self.link)

    def link(self, address: RedisAddress) -> RedisLink:
        """Return the link to a server. There is one link to each server."""
        link = self.links.get(address)
        if link is None:
            made = self._deployment.link(self._runtime, address, self._hearing)
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
