"""A Redis Cluster: masters that share the slots, each with a replica that replaces it when it dies.

It is set up with the commands that `redis-cli --cluster create` sends, for that program is not always installed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from tests.servers.ports import LOCALHOST
from tests.servers.redis import RedisServer
from tests.servers.resp import info
from tests.servers.server import start_all, stop_all
from tests.servers.waiting import ServerFailedError, wait_until

SLOTS = 16384


class ClusterNode(RedisServer):
    """One node of a cluster. It stores its view of the other nodes, and joins them again after a restart."""

    title: ClassVar[str] = "cluster node"
    distances = (10_000,)
    """The second port, on which nodes communicate with each other."""

    def __init__(
        self, folder: Path, *, node_timeout: float, port: int | None = None, options: Sequence[str] = ()
    ) -> None:
        """Prepare a node that considers others dead after `node_timeout` seconds of silence."""
        settings = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": f"{node_timeout * 1000:.0f}",
            "cluster-replica-validity-factor": "0",  # a replica that was cut off for a while may still take over
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        super().__init__(folder, port=port, options=[*words, *options])

    def cluster_info(self) -> dict[str, str]:
        """Return the fields of CLUSTER INFO."""
        return info(self.command("CLUSTER", "INFO"))

    def view(self) -> list["Seen"]:
        """Return its view of all nodes."""
        return [Seen.read(line) for line in str(self.command("CLUSTER", "NODES")).splitlines()]

    def is_master(self) -> bool:
        """Tell whether the node considers itself a master."""
        return self.info("replication")["role"] == "master"


@dataclass(slots=True)
class Seen:
    """A node's view of another or of itself: a line of CLUSTER NODES."""

    name: str
    port: int
    flags: set[str]
    master: str
    """The name of its master, if it is a replica."""
    slots: list[range]

    @classmethod
    def read(cls, line: str) -> Self:
        """Parse a line."""
        name, address, flags, master, _ping, _pong, _epoch, _link, *slots = line.split()
        port = int(address.split("@")[0].rsplit(":", 1)[1])
        return cls(name, port, set(flags.split(",")) - {"myself"}, master, [_range(each) for each in slots])


def _range(slots: str) -> range:
    first, _, last = slots.partition("-")
    return range(int(first), int(last or first) + 1)


class Cluster:
    """A cluster on ports of 127.0.0.1; `with` starts and stops it."""

    def __init__(
        self, folder: Path, *, masters: int = 3, node_timeout: float = 1.0, options: Sequence[str] = ()
    ) -> None:
        """Prepare a cluster of `masters` masters, each with one replica."""
        self._masters = masters
        self.nodes = [
            ClusterNode(folder / f"node-{n}", node_timeout=node_timeout, options=options) for n in range(2 * masters)
        ]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses of the nodes."""
        return [node.address for node in self.nodes]

    @property
    def url(self) -> str:
        """The URL of all nodes."""
        return "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in self.addresses)

    def start(self) -> None:
        """Start all nodes, and return when the cluster would notice and handle the death of a master."""
        try:
            start_all(self.nodes)
            self._introduce()
            self._share_slots()
            self._await_acquaintance()
            self._assign_replicas()
            self.await_health()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all of them."""
        stop_all(self.nodes, timeout=0)

    def master_of(self, slot: int) -> ClusterNode:
        """Return the running master that serves a slot."""
        for node in self.nodes:
            if node.serves and node.is_master() and any(slot in served for served in _own(node).slots):
                return node
        raise ServerFailedError(f"No running master serves slot {slot}.")

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        """Return the replica of a running master."""
        name = _own(master).name
        port = next(seen.port for seen in master.view() if seen.master == name)
        return next(node for node in self.nodes if node.port == port)

    def mend(self) -> None:
        """Resume or start all nodes that don't run, and return when the cluster is whole again, in any roles."""
        for node in self.nodes:
            node.mend()
        self.await_health()

    def is_whole(self) -> bool:
        """Tell whether all nodes run, serve or follow a master, consider all others healthy, and agree on the roles."""
        if not all(node.serves and self._is_well(node) for node in self.nodes):
            return False
        roles = {frozenset((seen.port, seen.master) for seen in node.view()) for node in self.nodes}
        return len(roles) == 1

    def await_health(self) -> None:
        """Return when the cluster is whole."""
        wait_until(self.is_whole, "a cluster whose nodes are all well")

    def await_failover(self, slot: int, old: ClusterNode) -> ClusterNode:
        """Return the new master of a slot once it is not `old` and the cluster serves again."""
        wait_until(partial(self._is_served, slot, old), f"another master for slot {slot}")
        return self.master_of(slot)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _introduce(self) -> None:
        """Introduce each pair of nodes, for gossip alone takes longer."""
        for epoch, node in enumerate(self.nodes, 1):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", epoch)  # while it knows nobody
        for number, node in enumerate(self.nodes, 1):
            with node.connect() as wire:
                for other in self.nodes[number:]:
                    wire.command("CLUSTER", "MEET", LOCALHOST, other.port)

    def _share_slots(self) -> None:
        for number in range(self._masters):
            first, end = (SLOTS * border // self._masters for border in (number, number + 1))
            self.nodes[number].command("CLUSTER", "ADDSLOTS", *range(first, end))

    def _await_acquaintance(self) -> None:
        ports = {node.port for node in self.nodes}
        for node in self.nodes:
            wait_until(partial(_knows, node, ports), "a node that knows all others")

    def _assign_replicas(self) -> None:
        masters = self.nodes[: self._masters]
        for master, replica in zip(masters, self.nodes[self._masters :], strict=True):
            replica.command("CLUSTER", "REPLICATE", _own(master).name)

    def _is_well(self, node: ClusterNode) -> bool:
        seen = node.view()
        flags = [one.flags for one in seen]
        return (
            node.cluster_info()["cluster_state"] == "ok"
            and flags.count({"master"}) == flags.count({"slave"}) == self._masters
            and sum(len(slots) for one in seen for slots in one.slots) == SLOTS
            and node.info("replication").get("master_link_status", "up") == "up"
            and node.has_replicas_in_step()
        )

    def _is_served(self, slot: int, old: ClusterNode) -> bool:
        """Tell whether all running nodes agree on a master other than `old`, and serve."""
        running = [node for node in self.nodes if node.serves and node is not old]
        masters = {seen.port for node in running for seen in node.view() if any(slot in s for s in seen.slots)}
        states = {node.cluster_info()["cluster_state"] for node in running}
        return states == {"ok"} and len(masters) == 1 and old.port not in masters


def _knows(node: ClusterNode, ports: set[int]) -> bool:
    seen = node.view()
    return {one.port for one in seen} == ports and all(one.flags == {"master"} for one in seen)


def _own(node: ClusterNode) -> Seen:
    """Return a node's view of itself."""
    return next(seen for seen in node.view() if seen.port == node.port)
