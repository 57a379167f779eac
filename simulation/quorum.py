"""A simulated quorum: independent nodes that run the grant table, and a client's links to them.

For the checks a quorum is one node, which keeps a lease for as long as a majority of its nodes does. For the disasters
it is one node as well: each disaster hits a random node, or some random links.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from simulation.checker import Checker
from simulation.faults import Faults
from simulation.invariants import Invariant
from simulation.network import Link
from simulation.node import Node, TableNode
from simulation.runtime import Process, SimRuntime
from simulation.table_stores import RemoteStore
from tenure.contracts.messages import AcquireRequest, Granted, Reply
from tenure.contracts.store import StoreSource
from tenure.stores.quorum.store import QuorumStore
from tenure.table.state import NameState

TEST_TIMEOUT = 0.4
"""How long a client waits for one node, in seconds."""


class AtNodes:
    """Observes the nodes of a quorum. The rule: the grant of a single node is no grant."""

    def __init__(self, checker: Checker) -> None:
        """Report to `checker`."""
        self._checker = checker

    def after_step(self, node: Node, name: str) -> None:  # noqa: ARG002 - the check is of the majority
        """Check that the majority keeps the leases that holders believe in."""
        self._checker.clients.after_step(name)

    def failed(self, text: str) -> None:
        """Record that a node failed, without a fault of the plan."""
        self._checker.failed(text)


class VotingNode(TableNode):
    """A node of a quorum. After it has forgotten state, it gives no vote for a while."""

    guard = 0.0
    """For how many seconds it then gives no vote; 0: it is not guarded."""

    def forget(self, downtime: float, rng: random.Random) -> str:
        """Be down for `downtime`, and restart with some states or none, in quarantine."""
        told = super().forget(downtime, rng)
        self.quarantined_until = self.clock() + round((downtime + self.guard) * 1e6) if self.guard else 0
        return told


class Quorum(Node):
    """All nodes of a run as a single node."""

    def __init__(self, checker: Checker, nodes: Sequence[VotingNode], needed: int) -> None:
        """Make a quorum of `nodes`, `needed` of which decide."""
        super().__init__(checker.world, 1.0, 0.0)
        self.nodes = list(nodes)
        self.needed = needed
        self.highest: dict[str, int] = {}
        """The largest granted token of each name."""
        self.checker = checker

    def _any(self) -> VotingNode:
        return self.world.random.choice(self.nodes)

    # -- for the checks ------------------------------------------------------------------------------------

    def clock(self) -> int:
        """Return true time, for the nodes have no common clock."""
        return round(self.world.time * 1e6)

    def state(self, name: str) -> NameState:
        """Return the holders of a name on all nodes, in true time."""
        merged = NameState()
        for node in self.nodes:
            for holder in node.state(name).holders:
                merged.holders.append(replace(holder, expires_at=round(node.in_true_time(holder.expires_at) * 1e6)))
        return merged

    def names(self) -> list[str]:
        """Return all names that any node knows."""
        return sorted({name for node in self.nodes for name in node.names()})

    def listens(self, channel: str) -> bool:  # noqa: ARG002 - a quorum grants nothing by a notification
        """Return True, for a quorum grants nothing by a notification."""
        return True

    def keeps_until(self, name: str, request_id: str, token: int) -> float:  # noqa: ARG002 - each node has its own
        """Return until when a majority keeps a lease. A node in quarantine keeps every lease it may have forgotten."""
        ends: list[float] = []
        for node in self.nodes:
            kept = [
                each.expires_at for each in node.state(name).holders if each.request_id.rpartition("/")[0] == request_id
            ]
            ends_at = max(kept) if kept else node.quarantined_until
            ends.append(node.in_true_time(ends_at) if ends_at else 0.0)
        return sorted(ends, reverse=True)[self.needed - 1]

    # -- requests of others --------------------------------------------------------------------------------

    def revoke(self, name: str) -> None:
        """Revoke a name by force on all nodes."""
        for node in self.nodes:
            node.revoke(name)

    def touch(self, name: str) -> None:
        """Send a request about a name to all nodes."""
        for node in self.nodes:
            node.touch(name)

    # -- disasters -----------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Make all nodes fast, and up, again."""
        for node in self.nodes:
            node.slow_until = 0.0
            node.down_until = min(node.down_until, self.world.time)

    def slow_down(self, until: float) -> None:
        """Make one node slow."""
        self._any().slow_until = until

    def step_clock(self, seconds: float, *, wall: bool) -> None:
        """Step the clock of one node."""
        self._any().step_clock(seconds, wall=wall)

    def restart(self, downtime: float) -> None:
        """Restart one node, or two, with their whole state."""
        for node in self.world.random.sample(self.nodes, self.world.random.randint(1, 2)):
            node.restart(downtime * 3.0)

    def forget(self, downtime: float, rng: random.Random) -> str:
        """Make one node forget its state."""
        return self._any().forget(downtime, rng)

    def fail_over(self, downtime: float, rng: random.Random) -> str:
        """Make one node forget its state: a node of a quorum has no replicas."""
        return self.forget(downtime, rng)


class Links(Link):
    """The links of one client to all nodes. A disaster of its connection hits some of them."""

    def __init__(self, links: Sequence[Link], process: Process, faults: Faults, like: Link) -> None:
        """Combine `links` into one."""
        self.links = list(links)
        super().__init__(process, faults, like.happened, like._trace)  # noqa: SLF001 - of the same class

    def _some(self) -> list[Link]:
        rng = self.world.random
        return rng.sample(self.links, rng.randint(1, len(self.links)))

    def cut(self) -> None:
        """Break some of the connections."""
        for link in self._some():
            link.cut()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, and forward what a disaster sets to the links."""
        object.__setattr__(self, name, value)
        if name == "faults" or (name.endswith("_until") and not value):
            for link in self.links:
                setattr(link, name, value)
        elif name.endswith("_until"):
            for link in self._some():
                setattr(link, name, value)
        elif name == "when_sent":
            self.links[0].when_sent = value  # type: ignore[assignment]


class SimulatedQuorumStore(QuorumStore):
    """The shipped quorum store of one client, which may die."""

    def __init__(self, runtime: SimRuntime, quorum: Quorum, links: Sequence[Link]) -> None:
        """Use the nodes of `quorum`, each over its link."""
        self._stores = [
            RemoteStore(runtime, node, link, quorum.checker) for node, link in zip(quorum.nodes, links, strict=True)
        ]
        sources = [
            _source(f"node {number}", store, node.guard)
            for number, (store, node) in enumerate(zip(self._stores, quorum.nodes, strict=True), 1)
        ]
        super().__init__(runtime, sources, quorum.needed, TEST_TIMEOUT)
        self._all = quorum

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Acquire, and check that the token is larger than those granted before the request."""
        before = self._all.highest.get(request.name, 0)
        reply = await super().acquire(request, until)
        if isinstance(reply, Granted):
            self._all.checker.store.grants += 1
            if reply.token - request.span < before:
                text = f"{request.name}: token {reply.token} was granted to a request sent after the grant of {before}"
                self._all.checker.broken(Invariant.TOKENS, text)
            self._all.highest[request.name] = max(self._all.highest.get(request.name, 0), reply.token)
        return reply

    def vanish(self) -> None:
        """Close the channels at all nodes, as the death of the client does."""
        for store in self._stores:
            store.vanish()


def _source(title: str, store: RemoteStore, guard: float) -> StoreSource:
    """Return the source of a node, whose longest ttl is the time for which it gives no vote after it has forgotten."""
    able = RemoteStore.capabilities
    return StoreSource(title, replace(able, max_ttl=guard) if guard else able, lambda _: store)


def make_links(process: Process, quorum: Quorum, like: Link) -> list[Link]:
    """Connect a client with each node."""
    return [like.another(process) for _ in quorum.nodes]
