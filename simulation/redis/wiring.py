"""The shipped Redis store over a simulated Redis: a deployment, and the store of one client."""

from collections.abc import Callable

from simulation import network
from simulation.redis.link import SimulatedRedisLink
from simulation.redis.node import RedisNode
from simulation.redis.server import Server
from simulation.runtime import SimRuntime
from tenure.contracts.runtime import Runtime
from tenure.stores.redis.links.link import RedisAddress, RedisCallbacks, RedisLink, ReplyError, Word
from tenure.stores.redis.names import NODE
from tenure.stores.redis.store import RedisStore
from tenure.stores.redis.topology import OneServer, OpenLink, Sentinels, Topology

SENTINEL = RedisAddress("sentinel", 26379)


class Sentinel(Server):
    """A Sentinel, which names the master. It never fails, but the network between it and a client does."""

    def __init__(self, node: RedisNode) -> None:
        """Watch a node."""
        super().__init__("sentinel", node.clock)
        self._node = node

    def command(self, *words: Word) -> object:
        """Reply to SENTINEL GET-MASTER-ADDR-BY-NAME, the only command of Tenure's clients."""
        if words[:2] != ("SENTINEL", "GET-MASTER-ADDR-BY-NAME"):
            raise ReplyError("ERR unknown command in the simulation")
        return [self._node.address.host.encode(), b"%d" % self._node.address.port]


class SimulatedDeployment:
    """The simulated Redis of one client."""

    def __init__(self, node: RedisNode, wire: network.Link) -> None:
        """Reach `node` over `wire`. If the node has replicas, a Sentinel names the master."""
        self.rules = node.rules
        self.links: list[SimulatedRedisLink] = []
        self._node = node
        self._wire = wire

    def topology(self, runtime: Runtime, open_link: OpenLink) -> Topology:  # noqa: ARG002 - for nodes of a cluster
        """Make the topology, which knows the master."""
        if not self._node.replicas:
            return OneServer(self._node.address)
        sentinel = Sentinel(self._node)
        return Sentinels(runtime, [SENTINEL], "tenure", lambda _: self._link(runtime, lambda: sentinel, _deaf()))

    def link(self, runtime: Runtime, address: RedisAddress, callbacks: RedisCallbacks) -> RedisLink:
        """Make a link to a server."""
        return self._link(runtime, lambda: self._node.server_at(address), callbacks)

    def _link(
        self, runtime: Runtime, reach: Callable[[], Server | None], callbacks: RedisCallbacks
    ) -> SimulatedRedisLink:
        assert isinstance(runtime, SimRuntime)  # noqa: S101 - for the type checker
        link = SimulatedRedisLink(runtime, self._wire, self._node, reach, callbacks)
        self.links.append(link)
        return link


class SimulatedRedisStore(RedisStore):
    """The shipped store of a client that may die."""

    def __init__(self, runtime: SimRuntime, node: RedisNode, wire: network.Link, known: bytes = b"") -> None:
        """Use `node` over `wire`. `known` is the generation that a client remembers which has used the node before."""
        self._simulated = SimulatedDeployment(node, wire)
        super().__init__(self._simulated, runtime)
        if known:
            self._runner.seen[NODE] = known

    def vanish(self) -> None:
        """Close the channels at all servers, as the death of the client does."""
        for link in self._simulated.links:
            link.vanish()


def _deaf() -> RedisCallbacks:
    return RedisCallbacks(lambda payload: None, lambda: None)  # noqa: ARG005
