"""A simulated database server with a standby, as a node for the checks and the disasters.

A failover promotes the standby, which is behind and on another timeline. Nobody can reach the old primary any more:
whoever promotes a standby must see to that. A request that is under way arrives at the new primary, as through a proxy
in front of both.
"""

import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from simulation.node import Node, StepWatcher
from simulation.runtime import EPOCH, Process, SimRuntime, World
from simulation.sql.direct import DirectSqlDatabase, capabilities_of
from simulation.sql.server import SqlData, SqlMeta, SqlRules, SqlServer
from tenure.contracts.deadlines import NEVER
from tenure.contracts.messages import ReleaseRequest
from tenure.errors import StoreError
from tenure.stores.sql.rows import SqlRow, state_of
from tenure.stores.sql.store import SqlStore
from tenure.table.state import NameState

SKEW = 0.02
"""By how many seconds the clocks of a primary and its standby may differ."""


class SqlNode(Node):
    """The primary, and the data of its standby."""

    steps_at_clients = True

    def __init__(self, world: World, watcher: StepWatcher, rules: SqlRules, *, rate: float, lag: float) -> None:
        """Start empty. `lag` is how many seconds the standby is behind; 0: there is no standby."""
        super().__init__(world, rate, 0.0)
        self.rules = rules
        self.server = SqlServer(self.clock, self._changed)
        self._watcher = watcher
        self._lag = lag
        self._standby = SqlData()
        self._term = 0
        """The number of failovers. Changes of an earlier primary are no longer replicated."""
        self._step_at: int | None = None
        """While a step is checked, its instant: that of the snapshot, which is earlier than the write."""
        self._closed_until = 0.0
        self._states: dict[str, tuple[SqlRow, NameState]] = {}

    # -- for the checks ------------------------------------------------------------------------------------

    def clock(self) -> int:
        """Return the clock of the server, in microseconds; while a step is checked, the instant of the step."""
        return self._now() if self._step_at is None else self._step_at

    def _now(self) -> int:
        return EPOCH + round((self._offset + self.world.time * self._rate) * 1e6)

    def in_true_time(self, instant: int) -> float:
        """Return the true time at which the server's clock shows an instant."""
        return self.world.time + (instant - self._now()) / 1e6 / self._rate

    def state(self, name: str) -> NameState:
        """Return the state of a name, which must not be changed."""
        row = self.server.data.rows.get(name) or SqlRow(name)
        known = self._states.get(name)
        if known is None or known[0] is not row:
            known = self._states[name] = row, state_of(row, self.server.data.meta.floor)
        return known[1]

    def names(self) -> list[str]:
        """Return all names that have a row."""
        return list(self.server.data.rows)

    def listens(self, channel: str) -> bool:
        """Tell whether a client receives the notifications of a channel."""
        return channel in self.server.channels

    def keeps_until(self, name: str, request_id: str, token: int) -> float:
        """Return the true time until which nobody else can be granted the name of a lease."""
        until = super().keeps_until(name, request_id, token)
        return max(until, self.in_true_time(self._quarantined_until()))

    def closed_until(self) -> float:
        """Return the true time before which nobody may be granted."""
        return self._closed_until

    def sits_out(self, length: int) -> bool:
        """Tell whether a quarantine that begins now lasts for a lease and its lock delay, in microseconds together."""
        return self._quarantined_until() >= self._now() + length

    def takes_up(self) -> bool:
        """Tell whether there is a quarantine, in which holders may take up forgotten leases."""
        return self._quarantined_until() > self._now()

    def _quarantined_until(self) -> int:
        """Return the end of the quarantine: of the present one, or of the one that the first request will begin."""
        if not self.rules.guarded:
            return 0
        meta = self.server.data.meta
        if self.server.is_new(self.rules):
            return self._now() + max(meta.longest_ttl, self.rules.longest_ttl)
        return meta.quarantined_until

    def step_clock(self, seconds: float, *, wall: bool) -> None:
        """Step the clock. After a step forward, a quarantine ends early."""
        super().step_clock(seconds, wall=wall)
        self._closed_until = 0.0 if seconds > 0.0 else self._closed_until

    def _changed(self, names: list[str], at: int, granted: frozenset[str]) -> None:
        """Have the standby receive some rows, and check them."""
        if self._lag:
            rows, meta = self.server.data.rows, replace(self.server.data.meta)
            arrive = partial(self._replicate, self._term, {name: rows[name] for name in names}, meta)
            self.world.after(self._lag, arrive)
        self.granted_by_push = granted
        self._step_at = min(at, self._now())  # the clock may have stepped back since
        for name in names:
            self._watcher.after_step(self, name)
        self._step_at = None

    def _replicate(self, term: int, rows: dict[str, SqlRow], meta: SqlMeta) -> None:
        if term == self._term:
            self._standby.rows.update(rows)
            self._standby.meta = meta

    # -- requests of others --------------------------------------------------------------------------------

    def revoke(self, name: str) -> None:
        """Revoke a name by force."""
        self._do(self._somebody().revoke(name, NEVER))

    def touch(self, name: str) -> None:
        """Release a request that never held the name."""
        self._do(self._somebody().release(ReleaseRequest(name, "nobody", 0), NEVER))

    def _somebody(self) -> SqlStore:
        """Return the store of a client without faults."""
        database = DirectSqlDatabase(self.server, self.rules)
        return SqlStore(
            "sql://simulated", SimRuntime(Process(self.world, "somebody")), database, capabilities_of(self.rules)
        )

    def _do(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine that never suspends."""
        with suppress(StopIteration, StoreError):
            work.send(None)

    # -- disasters -----------------------------------------------------------------------------------------

    def restart(self, downtime: float) -> None:
        """Be down for `downtime`, and restart with the whole state."""
        self._start(downtime)

    def forget(self, downtime: float, rng: random.Random) -> str:
        """Be restored from a backup: what the standby has."""
        return self.fail_over(downtime, rng)

    def fail_over(self, downtime: float, rng: random.Random) -> str:
        """Die, and be replaced by the standby in its present state, on the next timeline."""
        self._term += 1
        self._offset += rng.uniform(-SKEW, SKEW)
        self.server.data = self._standby
        self._standby = self._standby.copy()
        self.server.timeline += 1
        self._states.clear()
        self._start(downtime)
        return f"failover: a standby that is {self._lag:.3f} s behind is promoted"

    def _start(self, downtime: float) -> None:
        """Start a process: nobody listens there. If a quarantine is due, nobody may be granted until it is over."""
        self.down_until = self.world.time + downtime
        self.server.channels.clear()
        self.server.started += 1
        if self.server.is_new(self.rules) and self.rules.guarded:
            self._closed_until = self.world.time + self.rules.longest_ttl / 1e6 / self._rate - 1e-5
