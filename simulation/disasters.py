"""The faults that happen to clients and the store at random instants of a run."""

import random
from collections.abc import Callable

from simulation.checker import Checker
from simulation.faults import Faults
from simulation.network import RECOVERY
from simulation.node import Node
from simulation.plan import Plan
from simulation.workload import Client


class Disasters:
    """The faults of a run that have a count instead of a rate."""

    def __init__(
        self,
        plan: Plan,
        node: Node,
        clients: list[Client],
        *,
        rng: random.Random,
        checker: Checker,
        replace: Callable[[], None],
    ) -> None:
        """Make the disasters of `node` and `clients`. `replace` starts a client in place of a dead one."""
        self._plan = plan
        self._rng = rng
        self._world = node.world
        self._node = node
        self._checker = checker
        self._clients = clients
        self._replace = replace

    def schedule(self) -> None:
        """Draw the instant of each disaster."""
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
            (faults.failbacks, self._fail_back),
            (faults.stalls, self._stall),
            (faults.flushes, self._flush),
            (faults.revokes, self._revoke),
        ]
        for count, happen in kinds:
            for _ in range(count):
                self._world.at(self._rng.uniform(0.0, self._plan.duration), happen)

    def stop(self) -> None:
        """Stop all faults."""
        self._checker.trace("calm", "all faults stop")
        for client in self._clients:
            client.link.faults = Faults()
            client.link.when_sent = client.link.when_granted = None
            client.link.deaf_until = client.link.mute_until = 0.0
        self._node.calm()

    def _note(self, kind: str, text: str) -> None:
        self._checker.trace("fault", text)
        self._clients[0].link.happened[kind] += 1

    def _any_client(self) -> Client:
        return self._rng.choice([client for client in self._clients if not client.process.crashed])

    # -- clients and connections ---------------------------------------------------------------------------

    def _cut(self) -> None:
        client = self._any_client()
        self._note("connection cut", f"the connection of {client.process.name} breaks")
        client.link.cut()
        client.store.vanish()

    def _partition(self) -> None:
        client, until = self._any_client(), self._world.time + self._rng.uniform(0.1, 4.0)
        direction = self._rng.choice(("to", "from", "to and from"))
        self._note(f"partition: {direction}", f"nothing gets {direction} {client.process.name} until {until:.3f}")
        if "from" in direction:
            client.link.deaf_until = until
        if "to" in direction:
            client.link.mute_until = until

    def _pause(self) -> None:
        """Pause a client: now, or at a worse instant, just after it has sent its next request."""
        client, duration = self._any_client(), self._rng.choice((0.05, 0.5, 2.0, 5.0)) * self._rng.random()
        if self._rng.random() < 0.5:
            self._pause_for(client, duration)
        else:
            client.link.when_sent = lambda: self._pause_for(client, duration)

    def _pause_for(self, client: Client, duration: float) -> None:
        self._note("client paused", f"{client.process.name} is paused for {duration:.3f} s")
        client.process.pause(duration)
        self._checker.store.disturbed(client.store.channel, client.process.paused_until + RECOVERY)

    def _crash(self) -> None:
        """Kill a client: now, or at a worse instant, just when it is granted a name that it waits for."""
        client = self._any_client()
        if self._rng.random() < 0.5:
            self._kill(client)
        else:
            client.link.when_granted = lambda: self._kill(client)

    def _kill(self, client: Client) -> None:
        self._note("client crashed", f"{client.process.name} dies")
        client.crash()
        self._replace()

    # -- the store -----------------------------------------------------------------------------------------

    def _slow(self) -> None:
        until = self._world.time + self._rng.uniform(0.1, 2.0)
        self._node.slow_down(until)
        self._note("store slow", f"the store is slow until {until:.3f}")

    def _clock_back(self) -> None:
        seconds = self._rng.choice((0.01, 1.0, 100.0, 400.0)) * self._rng.random()
        self._note("clock back", f"the clock that judges expiry steps back by {seconds:.3f} s, the wall clock too")
        self._node.step_clock(-seconds, wall=True)
        self._checker.store.clock_stepped()

    def _clock_forward(self) -> None:
        seconds = self._rng.choice((0.5, 5.0, 100.0)) * self._rng.random()
        self._note("clock forward", f"the clock that judges expiry steps forward by {seconds:.3f} s")
        self._node.step_clock(seconds, wall=self._rng.random() < 0.5)
        self._checker.store.clock_stepped()

    def _restart(self) -> None:
        self._note("restart with all", "the store restarts with all of its state")
        self._break_connections()
        self._node.restart(self._rng.uniform(0.01, 1.0))

    def _amnesia(self) -> None:
        self._break_connections()
        self._forget(self._node.forget(self._rng.uniform(0.01, 1.0), self._rng))

    def _fail_over(self) -> None:
        self._break_connections()
        self._forget(self._node.fail_over(self._rng.uniform(0.05, 1.0), self._rng))

    def _fail_back(self) -> None:
        self._break_connections()
        self._forget(self._node.depose(self._rng.uniform(0.05, 0.5), self._rng))
        self._world.after(self._rng.uniform(0.2, 3.0), self._reinstate)

    def _reinstate(self) -> None:
        what = self._node.reinstate(self._rng.uniform(0.05, 0.5))
        if what:
            self._break_connections()
            self._forget(what)

    def _forget(self, what: str) -> None:
        """Record what the store has forgotten. `what` begins with the kind of the disaster and a colon."""
        self._note(what.partition(":")[0], what)
        for _ in range(self._plan.faults.newcomers):
            self._world.at(self._node.down_until, self._replace)
        for kind in self._plan.scenario.kinds:
            self._checker.store.forgot(self._node, kind.name)

    def _stall(self) -> None:
        until = self._world.time + self._rng.uniform(0.1, 2.0)
        self._note("replicas stalled", f"the replicas receive nothing until {until:.3f}")
        self._node.stall(until)

    def _flush(self) -> None:
        self._note("scripts forgotten", "the server forgets all scripts")
        self._node.forget_scripts()

    def _revoke(self) -> None:
        names = self._node.names()
        if names:
            name = self._rng.choice(names)
            self._note("taken by force", f"{name} is revoked by force")
            self._node.revoke(name)

    def touch_all(self) -> None:
        """Send a request for every name, for a request corrects the effects of a clock that stepped back."""
        for name in self._node.names():
            self._node.touch(name)

    def _break_connections(self) -> None:
        for client in self._clients:
            if not client.process.crashed:
                client.link.cut()
