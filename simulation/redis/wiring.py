"""What makes the shipped Redis store run against a simulated Redis: a Deployment, and the store of one client."""

from collections.abc import Callable

from holdfast.contracts.runtime import Runtime
from holdfast.runtimes.simulated import SimRuntime
from holdfast.stores.redis.link import RedisAddress, RedisHearing, RedisLink, ReplyError, Word
from holdfast.stores.redis.names import NODE
from holdfast.stores.redis.store import RedisStore
from holdfast.stores.redis.topology import OneServer, OpenLink, Sentinels, Topology
from simulation import network
from simulation.redis.link import SimulatedRedisLink
from simulation.redis.node import RedisNode
from simulation.redis.server import Server

SENTINEL = RedisAddress("sentinel", 26379)


class Sentinel(Server):
    """Tells who is the master. It never fails, but what lies between it and a client does."""

    def __init__(self, node: RedisNode) -> None:
        """Watch over a node."""
        super().__init__("sentinel", node.clock)
        self._node = node

    def command(self, *words: Word) -> object:
        """Answer the one question that it is asked."""
        if words[:2] != ("SENTINEL", "GET-MASTER-ADDR-BY-NAME"):
            raise ReplyError("ERR unknown command in the simulation")
        return [self._node.address.host.encode(), b"%d" % self._node.address.port]


class SimulatedDeployment:
    """A simulated Redis as one client sees it."""

    def __init__(self, node: RedisNode, wire: network.Link) -> None:
        """Reach `node` over `wire`; if it has replicas, a Sentinel says who is the master."""
        self.rules = node.rules
        self.links: list[SimulatedRedisLink] = []
        self._node = node
        self._wire = wire

    def topology(self, runtime: Runtime, open_link: OpenLink) -> Topology:  # noqa: ARG002 - for nodes of a cluster
        """Make what knows who is the master."""
        if not self._node.replicas:
            return OneServer(self._node.address)
        sentinel = Sentinel(self._node)
        return Sentinels(runtime, [SENTINEL], "holdfast", lambda _: self._link(runtime, lambda: sentinel, _deaf()))

    def link(self, runtime: Runtime, address: RedisAddress, hearing: RedisHearing) -> RedisLink:
        """Make a link to a server."""
        return self._link(runtime, lambda: self._node.server_at(address), hearing)

    def _link(self, runtime: Runtime, reach: Callable[[], Server | None], hearing: RedisHearing) -> SimulatedRedisLink:
        assert isinstance(runtime, SimRuntime)  # noqa: S101 - who else would simulate
        link = SimulatedRedisLink(runtime, self._wire, self._node, reach, hearing)
        self.links.append(link)
        return link


class SimulatedRedisStore(RedisStore):
    """The shipped store, for a client that may die."""

    def __init__(self, runtime: SimRuntime, node: RedisNode, wire: network.Link, known: bytes = b"") -> None:
        """Use `node` over `wire`; the client remembers a generation if it has used the node before."""
        self._simulated = SimulatedDeployment(node, wire)
        super().__init__(self._simulated, runtime)
        if known:
            self._runner.seen[NODE] = known

    def vanish(self) -> None:
        """Have the servers find that nobody listens."""
        for link in self._simulated.links:
            link.vanish()


def _deaf() -> RedisHearing:
    return RedisHearing(lambda payload: None, lambda: None)  # noqa: ARG005
