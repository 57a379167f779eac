"""One run: a world, a node, clients, faults, and what was found. The same seed gives the same run, bit for bit."""

import hashlib
import logging
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.core.messages import Release
from holdfast.runtimes.simulated import Process, World
from holdfast.testing.simulation.faults import Faults
from holdfast.testing.simulation.invariants import Checker, Invariant, Violation
from holdfast.testing.simulation.network import EmbeddedStore, Link, RemoteStore
from holdfast.testing.simulation.node import Node
from holdfast.testing.simulation.scenarios import Scenario
from holdfast.testing.simulation.workload import Client

if TYPE_CHECKING:
    from collections.abc import Callable

DRAIN = 30.0
"""How long everybody has, once the faults stop, to get what they wait for; virtual seconds."""

WATCHED = 3.0
"""For how many virtual seconds after the faults a healthy run is still watched for idle names."""

FORGET = 12.0
"""How long after the last client left nothing may be left in the store: longer than any ttl and lock delay."""

logging.getLogger("holdfast").addHandler(logging.NullHandler())


@dataclass(slots=True, frozen=True)
class Plan:
    """All that a run depends on."""

    scenario: Scenario
    seed: int
    clients: int
    tasks: int
    rounds: int
    duration: float
    """For how many virtual seconds faults happen."""
    faults: Faults

    @classmethod
    def draw(cls, scenario: Scenario, seed: int) -> "Plan":
        """Draw a plan from a seed."""
        rng = random.Random(f"{scenario.name}/{seed}/plan")
        return cls(
            scenario,
            seed,
            clients=rng.randint(2, 4),
            tasks=rng.randint(1, 2),
            rounds=rng.randint(2, 4),
            duration=rng.uniform(2.0, 5.0),
            faults=scenario.faults.drawn(rng),
        )

    def describe(self) -> str:
        """Say in a line what happens."""
        faults = ", ".join(f"{name}={getattr(self.faults, name):.3g}" for name in self.faults.active()) or "none"
        return (
            f"{self.scenario.name} seed {self.seed}: {self.clients} clients x {self.tasks} tasks x {self.rounds} "
            f"rounds, {self.duration:.1f} s, faults: {faults}"
        )


@dataclass(slots=True)
class Report:
    """What a run showed."""

    plan: Plan
    violations: list[Violation]
    virtual: float
    events: int
    grants: int
    digest: str
    """Of the whole trace: two runs are the same if their digests are."""
    lines: list[str] = field(default_factory=list[str])

    def broken(self) -> list[Violation]:
        """Return the violations of what the scenario promises."""
        return [each for each in self.violations if each.invariant in self.plan.scenario.promises]

    def broken_by_design(self) -> set[Invariant]:
        """Return what was violated and not promised."""
        return {each.invariant for each in self.violations} - self.plan.scenario.promises


def simulate(plan: Plan, *, trace: bool = False) -> Report:
    """Carry out a plan."""
    return Run(plan, trace=trace).report()


class Run:
    """A run under way."""

    def __init__(self, plan: Plan, *, trace: bool) -> None:
        """Set the stage."""
        self._plan = plan
        self._rng = random.Random(f"{plan.scenario.name}/{plan.seed}/faults")
        self._lines: list[str] = []
        self._digest = hashlib.sha256()
        self._tracing = trace
        self.world = World(f"{plan.scenario.name}/{plan.seed}/world")
        self.checker = Checker(self.world, healthy=plan.scenario.healthy, trace=self._trace)
        self.world.after_event = self.checker.after_event
        self.node = Node(self.world, self.checker, rate=self._rate(), offset=self._rng.uniform(500.0, 5000.0))
        self.node.lag = self._rng.uniform(0.01, 1.5) if plan.faults.failovers else 0.0
        self.clients: list[Client] = []
        self._born = 0

    def report(self) -> Report:
        """Let it all happen, and say what was found."""
        for _ in range(self._plan.clients):
            self._add_client()
        self._schedule_faults()
        if self._plan.scenario.healthy:
            self._watch()
        self.world.run(self._plan.duration)
        self._calm_down()
        self._drain()
        self.checker.check_end()
        for client in self.clients:
            client.process.close()
        world, checker = self.world, self.checker
        self._trace("end", f"{world.events} events, {checker.grants} grants")
        return Report(
            self._plan,
            checker.violations,
            world.time,
            world.events,
            checker.grants,
            self._digest.hexdigest(),
            self._lines,
        )

    def _trace(self, who: str, text: str) -> None:
        line = f"{self.world.time:10.6f}  {who:<8} {text}"
        self._digest.update(line.encode())
        if self._tracing:
            self._lines.append(line)

    def _rate(self) -> float:
        return 1.0 + self._rng.uniform(-1.0, 1.0) * self._plan.faults.drift

    # -- clients -------------------------------------------------------------------------------------------

    def _add_client(self) -> None:
        self._born += 1
        rng, plan = self._rng, self._plan
        process = Process(
            self.world,
            f"c{self._born}",
            self._rate(),
            rng.uniform(0.0, 9000.0),
            wall_offset=round(rng.uniform(-1e6, 1e6) * plan.faults.disorder),
        )
        link = Link(self.world, plan.faults)
        store = EmbeddedStore if plan.scenario.embedded else RemoteStore
        client = Client(
            process,
            self.checker,
            link,
            lambda runtime: store(runtime, self.node, link),
            plan.scenario.kinds,
        )
        self.clients.append(client)
        client.start(plan.tasks, plan.rounds)

    def _alive(self) -> list[Client]:
        return [client for client in self.clients if not client.process.crashed]

    def _any_client(self) -> Client:
        return self._rng.choice(self._alive())

    # -- faults --------------------------------------------------------------------------------------------

    def _schedule_faults(self) -> None:
        faults = self._plan.faults
        kinds: list[tuple[int, Callable[[], None]]] = [
            (faults.cuts, self._cut),
            (faults.partitions, self._partition),
            (faults.slow, self._slow),
            (faults.pauses, self._pause),
            (faults.crashes, self._crash),
            (faults.clock_back, self._clock_back),
            (faults.clock_forward, self._clock_forward),
            (faults.restarts, self._restart),
            (faults.amnesia, self._amnesia),
            (faults.failovers, self._fail_over),
            (faults.revokes, self._revoke),
        ]
        for count, happen in kinds:
            for _ in range(count):
                self.world.at(self._rng.uniform(0.0, self._plan.duration), happen)

    def _cut(self) -> None:
        client = self._any_client()
        self._trace("fault", f"the connection of {client.process.name} breaks")
        client.link.cut()
        client.store.vanish()

    def _partition(self) -> None:
        client, until = self._any_client(), self.world.time + self._rng.uniform(0.1, 4.0)
        direction = self._rng.choice(("to", "from", "to and from"))
        self._trace("fault", f"nothing gets through {direction} {client.process.name} until {until:.3f}")
        if "from" in direction:
            client.link.deaf_until = until
        if "to" in direction:
            client.link.mute_until = until

    def _slow(self) -> None:
        self.node.slow_until = self.world.time + self._rng.uniform(0.1, 2.0)
        self._trace("fault", f"the store is slow until {self.node.slow_until:.3f}")

    def _pause(self) -> None:
        client, duration = self._any_client(), self._rng.choice((0.05, 0.5, 2.0, 5.0)) * self._rng.random()
        self._trace("fault", f"{client.process.name} is paused for {duration:.3f} s")
        client.process.pause(duration)

    def _crash(self) -> None:
        client = self._any_client()
        self._trace("fault", f"{client.process.name} dies")
        client.crash()
        self._add_client()

    def _clock_back(self) -> None:
        seconds = self._rng.choice((0.01, 1.0, 100.0, 400.0)) * self._rng.random()
        self._trace("fault", f"the clock that judges expiry steps back by {seconds:.3f} s, the wall clock too")
        self.node.step_clock(-seconds, wall=True)

    def _clock_forward(self) -> None:
        seconds = self._rng.choice((0.5, 5.0, 100.0)) * self._rng.random()
        self._trace("fault", f"the clock that judges expiry steps forward by {seconds:.3f} s")
        self.node.step_clock(seconds, wall=self._rng.random() < 0.5)

    def _restart(self) -> None:
        self._trace("fault", "the store restarts with all of its state")
        self._break_connections()
        self.node.restart(self._rng.uniform(0.01, 1.0), lambda name: True)  # noqa: ARG005

    def _amnesia(self) -> None:
        kept = {name for name in self.node.names() if self._rng.random() < 0.3}
        self._trace("fault", f"the store restarts with the state of {', '.join(sorted(kept)) or 'nothing'}")
        self._break_connections()
        self.node.restart(self._rng.uniform(0.01, 1.0), lambda name: name in kept)
        self._forget()

    def _fail_over(self) -> None:
        self._trace("fault", f"a replica that is {self.node.lag:.3f} s behind is promoted")
        self._break_connections()
        self.node.fail_over(self._rng.uniform(0.05, 1.0))
        self._forget()

    def _revoke(self) -> None:
        names = self.node.names()
        if names:
            name = self._rng.choice(names)
            self._trace("fault", f"somebody takes {name} by force")
            self.node.step(name, lambda step: step.revoke())

    def _break_connections(self) -> None:
        for client in self._alive():
            client.link.cut()

    def _forget(self) -> None:
        for kind in self._plan.scenario.kinds:
            self.checker.node_forgot(self.node, kind.name)

    def _touch(self, name: str) -> None:
        self.node.step(name, lambda step: step.release(Release(name, "nobody", 0)))

    # -- the end -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self.checker.check_prompt(self.node)
        if self.world.time < self._plan.duration + WATCHED:
            self.world.after(0.02, self._watch)

    def _calm_down(self) -> None:
        self._trace("calm", "all faults stop")
        nothing = replace(Faults())
        for client in self.clients:
            client.link.faults = nothing
            client.link.deaf_until = client.link.mute_until = 0.0
        self.node.slow_until = 0.0
        self.node.down_until = min(self.node.down_until, self.world.time)

    def _drain(self) -> None:
        self.world.run(self.world.time + DRAIN)
        for client in self._alive():
            for task in client.tasks:
                if not task.result.done:
                    self.checker.broken(Invariant.DRAINED, f"{task.name} is not done")
            client.process.start(client.session.close(), f"{client.process.name}/close")
        for name in self.node.names():  # a clock that stepped back is healed by whoever asks
            self._touch(name)
        self.world.run(self.world.time + FORGET)
        self.checker.check_drained(self.node)
