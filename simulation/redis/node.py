"""A simulated Redis: a master, replicas that lag, and their disasters.

The process that replaces a master after a restart or a failover has another run id. It has only the replicated or saved
state, and the same is true of the marker of the restart guard.
"""

import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from simulation.node import Node, StepWatcher
from simulation.redis.decode import marker_at, state_of
from simulation.redis.direct import DirectDeployment
from simulation.redis.keyspace import Command, Keyspace
from simulation.redis.server import Server
from simulation.runtime import EPOCH, Process, SimRuntime, World
from tenure.contracts.deadlines import NEVER
from tenure.contracts.messages import ReleaseRequest, RenewRequest
from tenure.errors import StoreError
from tenure.stores.redis.deployment import NO_GUARD, STRICT, Rules
from tenure.stores.redis.links.link import RedisAddress
from tenure.stores.redis.names import NODE, name_of, state_key
from tenure.stores.redis.store import RedisStore
from tenure.table.state import NameState


class Replica:
    """A replica, which applies the master's changes with a delay."""

    def __init__(self, address: RedisAddress, keys: Keyspace, lag: float, skew: float) -> None:
        """Start with `keys`. `lag` is how many seconds it is behind, `skew` how many seconds its clock is ahead."""
        self.address = address
        self.keys = keys
        self.lag = lag
        self.skew = skew
        self.due = 0.0
        """The earliest time at which it receives the next change."""
        self.former: Server | None = None
        """The process, if it is a former master that has received nothing from the masters after it."""
        self.applied = 0
        """How many of the master's changes it has; -1 until it has the master's first state."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A WAIT without a reply so far."""

    number: int
    """How many changes a replica must have to count."""
    replicas: int
    tell: Callable[[int], None]


class RedisNode(Node):
    """A Redis with or without replicas, as a node for the checks and the disasters."""

    def __init__(
        self, world: World, watcher: StepWatcher, rules: Rules, *, rate: float, lags: list[float], skews: list[float]
    ) -> None:
        """Start a master with an empty keyspace, and a replica for each lag. `skews` has one for each server."""
        super().__init__(world, rate, 0.0)
        self.rules = rules
        self.known = False
        """Whether every client has used it before, and so concludes from a missing marker that its state is lost."""
        self._watcher = watcher
        self._skew = skews[0]
        self._processes = 0
        self._changes = 0
        self._term = 0
        """The number of masters so far. Changes of an earlier master are no longer replicated."""
        self._closed_until = 0.0
        self._names: dict[str, NameState | None] = {}
        """All names that the master has, with those states that were decoded."""
        self.address = RedisAddress("node-1")
        self.replicas = [
            Replica(RedisAddress(f"node-{number}"), Keyspace(), lag, skew)
            for number, (lag, skew) in enumerate(zip(lags, skews[1:], strict=True), 2)
        ]
        self._waiting: list[_Waiting] = []
        self.server = self._start(Keyspace())

    # -- for the checks ------------------------------------------------------------------------------------

    def clock(self) -> int:
        """Return the master's clock in microseconds."""
        return EPOCH + round((self._offset + self._skew + self.world.time * self._rate) * 1e6)

    def state(self, name: str) -> NameState:
        """Return the state of a name, which must not be changed."""
        state = self._names.get(name)
        if state is None:
            state = self._names[name] = state_of(self.server.keys, name)
        return state

    def names(self) -> list[str]:
        """Return all names that the master knows."""
        return list(self._names)

    def listens(self, channel: str) -> bool:
        """Tell whether a client receives the notifications of a channel."""
        return self.server.listens(f"tenure:channel:{channel}")

    def keeps_until(self, name: str, request_id: str, token: int) -> float:
        """Return the true time until which nobody else can be granted the name of a lease."""
        until = super().keeps_until(name, request_id, token)
        return max(until, self.in_true_time(self._quarantined_until()))

    def closed_until(self) -> float:
        """Return the true time before which nobody may be granted: a ttl after another process took over."""
        return self._closed_until

    def sits_out(self, length: int) -> bool:
        """Tell whether a quarantine that begins now lasts for a lease and its lock delay, in microseconds together."""
        return self._quarantined_until() >= self.clock() + length

    def takes_up(self) -> bool:
        """Tell whether there is a quarantine, in which holders may take up forgotten leases."""
        return self._quarantined_until() > self.clock()

    def step_clock(self, seconds: float, *, wall: bool) -> None:
        """Step the clock. After a step forward, every key expires early."""
        super().step_clock(seconds, wall=wall)
        self._closed_until = 0.0 if seconds > 0.0 else self._closed_until

    def _quarantined_until(self) -> int:
        """Return the end of the quarantine: of the present one, or of the one that the first request will begin."""
        if self.rules.guard == NO_GUARD:
            return 0
        marker = marker_at(self.server.keys, NODE)
        here = " " + self.server.identity().decode()
        begins = not marker.generation.endswith(here) if marker else self.known or self.rules.guard == STRICT
        if begins:
            longest = max(marker.longest if marker else 0, round(self.rules.max_ttl * 1e6))
            return self.clock() + longest
        return marker.ends if marker else 0

    # -- servers -------------------------------------------------------------------------------------------

    def server_at(self, address: RedisAddress) -> Server | None:
        """Return the process at an address; None if there is none."""
        return self.server if address == self.address and not self.is_down() else None

    def wait(self, replicas: int, timeout: float, tell: Callable[[int], None]) -> None:
        """Do as WAIT does: call `tell` with the number of replicas that have all present writes.

        The call comes when there are enough of them or the timeout is over. It never comes if the master dies before.
        """
        waiting = _Waiting(self._changes, replicas, tell)
        self._waiting.append(waiting)
        self.world.after(timeout, partial(self._in_term, self._term, partial(self._answer, waiting, late=True)))
        self._answer(waiting)

    def _answer(self, waiting: "_Waiting", *, late: bool = False) -> None:
        count = sum(replica.applied >= waiting.number for replica in self.replicas)
        if waiting in self._waiting and (late or count >= waiting.replicas):
            self._waiting.remove(waiting)
            waiting.tell(count)

    def _start(self, keys: Keyspace, former: Server | None = None) -> Server:
        """Start a new master process, or promote a former one."""
        self._processes += former is None
        run_id = former.run_id.decode() if former else f"{self._processes:040x}"
        server = Server(run_id, self.clock, keys, former.promoted_at + 1 if former else 0)
        server.after_write = partial(self._changed, server)
        server.when_broken = self._watcher.failed
        self._names = {name: None for key in keys.all() if (name := _name_of(key)) is not None}
        return server

    def _changed(self, server: Server, effects: list[Command]) -> None:
        if server is not self.server:
            return
        self._changes += 1
        for replica in self.replicas:
            follow = partial(self._follow, replica, effects, self._changes)
            replica.due = max(replica.due, self.world.time + replica.lag)
            self.world.at(replica.due, partial(self._in_term, self._term, follow))
        grants = [message for message in server.published if message[:1] in {b"G", b"g"}]
        self.granted_by_push = frozenset(message.decode().split(" ", 2)[2] for message in grants)
        for name in {name: None for _, key, *_ in effects if (name := _name_of(key)) is not None}:
            self._names[name] = None
            self._watcher.after_step(self, name)

    def _follow(self, replica: Replica, effects: list[Command], number: int) -> None:
        if replica.former is not None:
            return
        replica.keys.apply(effects)
        replica.applied = number
        for waiting in list(self._waiting):
            self._answer(waiting)

    def _in_term(self, term: int, work: Callable[[], None]) -> None:
        if term == self._term:
            work()

    # -- requests of others --------------------------------------------------------------------------------

    def revoke(self, name: str) -> None:
        """Revoke a name by force."""
        self._do(self._somebody().revoke(name, NEVER))

    def touch(self, name: str) -> None:
        """Release a request that never held the name."""
        self._do(self._somebody().release(ReleaseRequest(name, "nobody", 0), NEVER))

    def begin_known(self) -> None:
        """Act as a Redis that has been used for long: the guard knows the master, and the replicas have its marker."""
        long_ago = self.rules.max_ttl + 1.0
        self._offset -= long_ago
        self._do(self._somebody().renew([RenewRequest("nothing", "nobody", 0, 1)], NEVER))
        self._offset += long_ago
        self.server.command("DEL", state_key("nothing"))
        for replica in self.replicas:
            replica.keys = self.server.keys.copy()
        self._names.clear()

    def generation(self) -> bytes:
        """Return the generation in the marker, which every client remembers that has used the master."""
        marker = marker_at(self.server.keys, NODE)
        return marker.generation.encode() if marker else b""

    def _somebody(self) -> RedisStore:
        """Return the store of a new client without faults."""
        deployment = DirectDeployment(self.rules, lambda: self.server)
        return RedisStore(deployment, SimRuntime(Process(self.world, "somebody")))

    def _do(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine that never suspends. The watcher already knows of a script that failed."""
        with suppress(StopIteration, StoreError):
            work.send(None)

    # -- disasters -----------------------------------------------------------------------------------------

    def restart(self, downtime: float) -> None:
        """Be down for `downtime`, and restart with the whole state."""
        self._replace(downtime, self.server.keys)

    def forget(self, downtime: float, rng: random.Random) -> str:
        """Be down for `downtime`, and restart with no state, or with that of a replica, as from a snapshot."""
        if self.replicas and rng.random() < 0.5:
            replica = rng.choice(self.replicas)
            self._replace(downtime, replica.keys.copy())
            return f"restart with some: what was there {replica.lag:.3f} s ago"
        self._replace(downtime, Keyspace())
        return "restart with nothing: no key is left"

    def fail_over(self, downtime: float, rng: random.Random) -> str:
        """Die, and be replaced by a replica in its present state; return as a replica with the master's state."""
        replica = rng.choice(self.replicas)
        self._promote(replica, downtime)
        return f"failover: a replica that is {replica.lag:.3f} s behind is promoted"

    def depose(self, downtime: float, rng: random.Random) -> str:
        """Be replaced by a replica in its present state, and live on without changes from the new master."""
        replica, server = rng.choice(self.replicas), self.server
        self._promote(replica, downtime)
        replica.former = server
        return f"failover: a replica that is {replica.lag:.3f} s behind is promoted, and its master lives on"

    def reinstate(self, downtime: float) -> str:
        """Promote a former master, with its process and its state of then. Return "" if there is none."""
        for replica in self.replicas:
            if replica.former is not None:
                self._promote(replica, downtime)
                return "failback: the master before is promoted, and knows nothing of the one between"
        return ""

    def _promote(self, replica: Replica, downtime: float) -> None:
        """Swap the places of a replica and the master."""
        old, self.address = self.address, replica.address
        died, self._skew, replica_skew = self.server.keys, replica.skew, self._skew
        keys, former = replica.keys, replica.former
        replica.address, replica.keys, replica.skew, replica.former = old, died, replica_skew, None
        self._replace(downtime, keys, former)

    def forget_scripts(self) -> None:
        """Do as SCRIPT FLUSH does."""
        self.server.forget_scripts()

    def stall(self, until: float) -> None:
        """Stop replication until a time."""
        for replica in self.replicas:
            replica.due = max(replica.due, until)

    def _replace(self, downtime: float, keys: Keyspace, former: Server | None = None) -> None:
        """Make another process the master, from which the replicas replicate."""
        self.down_until = self.world.time + downtime
        self.server.end()
        self._term += 1
        self._changes = 0
        self._waiting.clear()
        self.server = self._start(keys, former)
        guarded = self._quarantined_until() > self.clock()
        self._closed_until = self.world.time + self.rules.max_ttl / self._rate - 1e-5 if guarded else 0.0
        for replica in self.replicas:
            replica.applied = -1
            synchronize = partial(_synchronize, replica, keys.copy())
            replica.due = max(replica.due, self.down_until + replica.lag)
            self.world.at(replica.due, partial(self._in_term, self._term, synchronize))


def _synchronize(replica: Replica, keys: Keyspace) -> None:
    if replica.former is None:
        replica.keys = keys
        replica.applied = 0


@lru_cache(maxsize=1000)
def _name_of(key: bytes) -> str | None:
    return name_of(key.decode())
