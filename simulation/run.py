"""One run: a world, a node, clients, faults and checks. The rule: the same seed gives the same run, bit for bit."""

import gc
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.checker import Checker
from simulation.disasters import Disasters
from simulation.followed import FollowedStore, Vanishing
from simulation.handovers import Handles
from simulation.invariants import Invariant, Violation
from simulation.jobs import Ledger
from simulation.network import Link
from simulation.node import Node, TableNode
from simulation.plan import Plan
from simulation.quantities import QuantityLedger, QuantityRounds
from simulation.runtime import EndlessError, Process, SimRuntime, World
from simulation.table_stores import EmbeddedStore, RemoteStore
from simulation.workload import Client
from tenure.stores.redis.deployment import Rules

DRAIN = 30.0
"""Within how many virtual seconds, once the faults have stopped, one of the clients must be granted a name."""

WATCHED = 3.0
"""For how many virtual seconds after the faults a run is still checked for idle names."""

LOOK = 0.025
"""The interval of these checks, in virtual seconds."""

MOST_EVENTS = 30_000
"""The greatest number of events of a run. A run without an endless loop has around a thousand."""

RESERVED = 20.0
"""For how long to wait for the end of all reservations, and for a last look at what is left, in seconds."""

FORGET = 12.0
"""How many virtual seconds after the end of the last client the store must be empty: longer than any ttl and lock
delay."""

log = logging.getLogger("tenure")


@dataclass(slots=True)
class Report:
    """The results of a run."""

    plan: Plan
    violations: list[Violation]
    virtual: float
    """The duration of the run, in virtual seconds."""
    events: int
    grants: int
    happened: Counter[str]
    """How often each fault occurred."""
    digest: str
    """The digest of the whole trace. Two runs with the same digest are the same."""
    lines: list[str] = field(default_factory=list[str])

    def broken(self) -> list[Violation]:
        """Return the violations of invariants that the scenario promises."""
        return [each for each in self.violations if each.invariant in self.plan.scenario.promises]

    def broken_by_design(self) -> set[Invariant]:
        """Return the violated invariants that the scenario does not promise."""
        return {each.invariant for each in self.violations} - self.plan.scenario.promises


def simulate(plan: Plan, *, trace: bool = False) -> Report:
    """Run a plan; with `trace`, keep a readable trace. Logging is disabled during the run.

    The garbage collector is disabled, too: a run leaves a few megabytes, and collecting them takes a tenth of the time.
    """
    disabled, log.disabled = log.disabled, True
    collecting = gc.isenabled()
    gc.disable()
    try:
        return Run(plan, trace=trace).report()
    finally:
        log.disabled = disabled
        if collecting:
            gc.enable()


class Run:
    """A run in progress."""

    def __init__(self, plan: Plan, *, trace: bool) -> None:
        """Set up the world, the checks, the node and the faults."""
        scenario = plan.scenario
        self._plan = plan
        self._rng = random.Random(f"{scenario.name}/{plan.seed}/faults")
        self._lines: list[str] = []
        self._tracing = trace
        self._happened: Counter[str] = Counter()
        self._clients: list[Client] = []
        self._world = World(f"{scenario.name}/{plan.seed}/world")
        self._world.most_events = MOST_EVENTS * max(1, scenario.quorum)
        self._checker = Checker(self._world, self._trace, scenario.prompt_within, scenario.healthy)
        self._world.after_event = self._checker.clients.after_event
        self._links: Callable[[Process, Link], Link] = lambda process, link: link  # noqa: ARG005
        self._node, self._store = self._make_node()
        self._ledger: Ledger | QuantityLedger | None = None
        if plan.scenario.jobs:
            self._ledger = Ledger(self._checker.broken, lambda: self._world.time, operated=plan.seed % 2 == 1)
        if plan.scenario.quantities:
            self._ledger = QuantityLedger(self._checker.broken)
        self._handles = Handles() if scenario.handover else None
        self._checker.clients.keeps_until = self._node.keeps_until
        self._checker.node = self._node
        self._disasters = Disasters(
            plan, self._node, self._clients, rng=self._rng, checker=self._checker, replace=self._add_client
        )

    def report(self) -> Report:
        """Do the run, and return its results."""
        world, checker = self._world, self._checker
        try:
            self._live()
        except EndlessError as error:
            checker.broken(Invariant.NO_ERRORS, f"the run does not end: {error}")
        checker.check_end()
        for client in self._clients:
            client.process.close()
        grants = checker.store.grants + (self._ledger.uses if isinstance(self._ledger, QuantityLedger) else 0)
        self._happened["lease taken up again"] += checker.store.restored
        self._happened["lease handed off"] += checker.clients.handed_off
        self._trace("end", f"{world.events} events, {grants} grants")
        digest = hashlib.sha256("".join(self._lines).encode()).hexdigest()
        lines = self._lines if self._tracing else []
        return Report(self._plan, checker.violations, world.time, world.events, grants, self._happened, digest, lines)

    def _live(self) -> None:
        for _ in range(self._plan.clients):
            self._add_client()
        self._disasters.schedule()
        if self._plan.scenario.prompt_within:
            self._watch()
        self._world.run(self._plan.duration)
        self._disasters.stop()
        self._drain()

    def _trace(self, who: str, text: str) -> None:
        self._lines.append(f"{self._world.time:10.6f}  {who:<8} {text}")

    def _make_node(self) -> tuple[Node, Callable[[SimRuntime, Link], Vanishing]]:
        """Make the node of the scenario, and a function that makes a client's store over it."""
        scenario, rng, world, checker = self._plan.scenario, self._rng, self._world, self._checker
        rate, offset = self._rate(), 1000.0 + rng.uniform(0.0, 5000.0)  # the clock stays above 0 when it steps back
        if scenario.redis is not None:
            from simulation.redis.node import RedisNode
            from simulation.redis.wiring import SimulatedRedisStore

            redis = scenario.redis
            rules = Rules(redis.guard, redis.replicas, scenario.ttls[-1])
            lags = [rng.uniform(0.001, 0.02 if redis.replicas else 1.5) for _ in range(redis.copies)]
            skews = [rng.uniform(-1.0, 1.0) * self._plan.faults.disorder for _ in range(redis.copies + 1)]
            redis_node = RedisNode(world, checker, rules, rate=rate, lags=lags, skews=[0.0 for _ in skews])
            if redis.copies or redis.known:
                redis_node.begin_known()
            redis_node.known = redis.known
            known = redis_node.generation() if redis.known else b""
            return redis_node, lambda runtime, link: SimulatedRedisStore(runtime, redis_node, link, known)
        if scenario.sql is not None:
            from simulation.sql.database import SimulatedSqlStore
            from simulation.sql.node import SqlNode
            from simulation.sql.server import SqlRules

            longest_ttl, queues = round(scenario.ttls[-1] * 1e6), self._plan.seed % 2 == 0
            sql_rules = SqlRules(longest_ttl, scenario.sql.strict, scenario.sql.guarded, queues)
            lag = rng.uniform(0.01, 1.5) if self._plan.faults.failovers else 0.0
            database = SqlNode(world, checker, sql_rules, rate=rate, lag=lag)
            return database, lambda runtime, link: SimulatedSqlStore(runtime, database, link, checker)
        if scenario.quorum:
            return self._make_quorum(scenario.quorum)
        if scenario.ordered:
            from simulation.ordered import OrderedNode, SimulatedOrderedStore

            ordered = OrderedNode(world, checker, rate, offset)
            return ordered, lambda runtime, link: SimulatedOrderedStore(runtime, ordered, link, checker)
        if scenario.rows:
            from simulation.rows import RowNode, SimulatedRowStore

            table = RowNode(world, checker, watched=scenario.watched)
            return table, lambda runtime, link: SimulatedRowStore(runtime, table, link, checker)
        node = TableNode(world, checker, rate, offset, rng.uniform(0.01, 1.5) if self._plan.faults.failovers else 0.0)
        store = EmbeddedStore if scenario.embedded else RemoteStore
        return node, lambda runtime, link: store(runtime, node, link, checker)

    def _make_quorum(self, count: int) -> tuple[Node, Callable[[SimRuntime, Link], Vanishing]]:
        from simulation.quorum import (
            AtNodes,
            Links,
            Quorum,
            SimulatedQuorumStore,
            VotingNode,
            make_links,
        )

        scenario, rng, world, checker = self._plan.scenario, self._rng, self._world, self._checker
        nodes = [
            VotingNode(world, AtNodes(checker), self._rate(), rng.uniform(500.0, 5000.0), 0.0) for _ in range(count)
        ]
        for node in nodes:
            node.guard = scenario.ttls[-1] if scenario.guarded else 0.0
            node.step_clock(0.0, wall=True)
        quorum = Quorum(checker, nodes, count // 2 + 1)

        def make(runtime: SimRuntime, link: Link) -> Vanishing:
            links = link.links if isinstance(link, Links) else []
            return SimulatedQuorumStore(runtime, quorum, links)

        self._links = lambda process, link: Links(make_links(process, quorum, link), process, link.faults, link)
        return quorum, make

    def _rate(self) -> float:
        return 1.0 + self._rng.uniform(-1.0, 1.0) * self._plan.faults.drift

    def _add_client(self) -> None:
        rng, plan, checker = self._rng, self._plan, self._checker
        process = Process(
            self._world,
            f"c{len(self._clients) + 1}",
            self._rate(),
            rng.uniform(0.0, 9000.0),
            wall_offset=round(rng.uniform(-1e6, 1e6) * plan.faults.disorder),
        )
        link = self._links(process, Link(process, plan.faults, self._happened, checker.trace))
        client = Client(
            process,
            checker,
            link,
            lambda runtime: FollowedStore(self._store(runtime, link), link, checker),
            kinds=plan.scenario.kinds[: plan.names],
            ttls=plan.scenario.ttls,
            multi_acquire=plan.scenario.multi_acquire,
            bounded=plan.scenario.bounded,
            barging=plan.scenario.barging,
            lingers=plan.scenario.watched,
            ledger=self._ledger,
            handles=self._handles,
        )
        self._clients.append(client)
        client.start(plan.tasks, plan.rounds)

    def _watch(self) -> None:
        self._checker.store.check_prompt(self._node)
        for client in self._clients:
            if not client.process.crashed:
                for lease in client.session.local_queues.lingering_leases():
                    self._checker.check_lingering(client.process, lease)
        if self._world.time < self._plan.duration + WATCHED:
            self._world.after(LOOK, self._watch)

    def _drain(self) -> None:
        """Let all clients finish and close, and check what is left in the store."""
        redis, sql = self._plan.scenario.redis, self._plan.scenario.sql
        guarded = (
            self._plan.scenario.guarded or (redis is not None and redis.guard) or (sql is not None and sql.guarded)
        )
        timeout = DRAIN + (2 * self._plan.scenario.ttls[-1] if guarded else 0.0)
        alive = [client for client in self._clients if not client.process.crashed]
        tasks = [task for client in alive for task in client.tasks]
        granted, seen = True, 0
        while granted:
            self._world.run(self._world.time + timeout)
            granted = self._checker.store.grants > seen and not all(task.result.done for task in tasks)
            seen = self._checker.store.grants
        for task in tasks:
            if not task.result.done:
                self._checker.broken(Invariant.DRAINED, f"{task.name} is not done")
        for client in alive[:1]:
            if isinstance(client.cells, QuantityRounds):
                self._world.run(self._world.time + RESERVED)
                client.process.start(client.cells.end(), f"{client.process.name}/end")
                self._world.run(self._world.time + RESERVED)
        for client in alive:
            client.process.start(client.session.close(), f"{client.process.name}/close")
        self._disasters.touch_all()
        self._world.run(self._world.time + FORGET)
        self._checker.store.check_drained(self._node)
