"""A simulated table of rows without a clock, and the shipped store over it, for one client.

Each request is a message to the table and a reply. In every second run the table tells its clients of changes, by
messages that may be lost or late.
"""

import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from simulation.checker import Checker
from simulation.network import RECOVERY, Answer, Link
from simulation.node import Node, StepWatcher
from simulation.runtime import EPOCH, Process, SimRuntime, World
from tenure.contracts.deadlines import DRIFT, NEVER
from tenure.contracts.messages import ReleaseRequest
from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.rows.contract import Row
from tenure.stores.rows.store import CAPABILITIES, RowStore
from tenure.stores.rows.values import LOCK, load_row
from tenure.table.state import NameState
from tenure.table.times import TOMBSTONE

T = TypeVar("T")

ABLE = replace(CAPABILITIES, min_ttl=0.05)


class RowNode(Node):
    """The table. The time of a row is its own; outside a step the clock is the true one."""

    refuses_for = round(TOMBSTONE * (1 - 2 * DRIFT))
    steps_at_clients = True
    keeps_dead_waiters = True
    keeps_own_time = True

    def __init__(self, world: World, watcher: StepWatcher, *, watched: bool) -> None:
        """Start empty. `watched`: it tells of changes."""
        super().__init__(world, 1.0, 0.0)
        self.watched = watched
        self.watchers: dict[str, Callable[[str, Row], None]] = {}
        self.rows: dict[str, Row] = {}
        self._watcher = watcher
        self._writes = 0
        self._states: dict[str, tuple[NameState, float]] = {}
        """By name: the state, and when it was written, in true time."""
        self._pulses: dict[str, tuple[int, float]] = {}
        """By request of a holder: its last pulse, and the true time of that."""
        self._step_at: int | None = None

    def write(self, key: str, value: bytes, version: object) -> int | None:
        """Write a row if it is unchanged, check what it says, and tell of it."""
        if self.rows.get(key, Row()).version != version:
            return None
        self._writes += 1
        row = self.rows[key] = Row(value, self._writes)
        if key.startswith(f"{LOCK}."):
            self._check(row)
        for changed in list(self.watchers.values()):
            changed(key, row)
        return self._writes

    def _check(self, row: Row) -> None:
        said = load_row("", row)
        before = self._states.get(said.name)
        if before is not None and said.state.used_at < before[0].used_at:
            self._watcher.failed(f"the time of {said.name} runs back")
        self._states[said.name] = said.state, self.world.time
        for request_id, pulse in said.pulses.items():
            if self._pulses.get(request_id, (0, 0.0))[0] != pulse:
                self._pulses[request_id] = pulse, self.world.time
        self.granted_by_push = frozenset(
            each[4] for each in said.news if each[0] == said.number and each[3] == "granted"
        )
        self._step_at = said.state.used_at
        self._watcher.after_step(self, said.name)
        self._step_at = None

    # -- for the checks ------------------------------------------------------------------------------------

    def clock(self) -> int:
        """Return the true time; while a step is checked, the time of its row."""
        return self.true_clock() if self._step_at is None else self._step_at

    def in_true_time(self, instant: int) -> float:
        """Return the true time before which no client takes an instant of the row under a check for past."""
        return self.world.time + (instant - self.clock()) / 1e6 / (1 + DRIFT / 2)

    def true_clock(self) -> int:
        """Return the true time."""
        return EPOCH + round(self.world.time * 1e6)

    def withdrawals_clock(self) -> int:
        """Return the true time: a withdrawn request is refused for some true time."""
        return self.true_clock()

    def state(self, name: str) -> NameState:
        """Return the state of a name."""
        return self._states[name][0] if name in self._states else NameState()

    def names(self) -> list[str]:
        """Return all names that have a row."""
        return list(self._states)

    def listens(self, channel: str) -> bool:  # noqa: ARG002 - a waiter lives as long as it asks
        """Return True: nobody sees whether a client lives."""
        return True

    def keeps_until(self, name: str, request_id: str, token: int) -> float:
        """Return the true time before which no client can take a lease for dead, by its row or by its pulse."""
        state, written = self._states.get(name, (NameState(), 0.0))
        for holder in state.holders:
            if holder.request_id == request_id and token in (0, holder.token):
                by_pulse = self._pulses[request_id][1] + holder.ttl / 1e6 / (1 + DRIFT / 2)
                return min(by_pulse, written + (holder.expires_at - state.used_at) / 1e6 / (1 + DRIFT / 2))
        return 0.0

    # -- requests of others, and disasters -------------------------------------------------------------------

    def revoke(self, name: str) -> None:
        """Revoke a name by force."""
        self._do(lambda store: store.revoke(name, NEVER))

    def touch(self, name: str) -> None:
        """Release a request that never held the name."""
        self._do(lambda store: store.release(ReleaseRequest(name, "nobody", 0), NEVER))

    def _do(self, work: Callable[[RowStore], Coroutine[Any, Any, object]]) -> None:
        """Have a client without faults do something."""
        store = RowStore("rows", lambda _: _Direct(self), 0.25, ABLE, SimRuntime(Process(self.world, "somebody")))
        for each in (store.open(lambda _: None, NEVER), work(store)):
            with suppress(StopIteration, StoreError):
                each.send(None)

    def restart(self, downtime: float) -> None:
        """Be down for a while."""
        self.down_until = self.world.time + downtime

    def forget(self, downtime: float, rng: random.Random) -> str:
        """Refuse: a table that forgets rows is none."""
        raise NotImplementedError

    def fail_over(self, downtime: float, rng: random.Random) -> str:
        """Refuse: a table that forgets rows is none."""
        raise NotImplementedError


class _Direct:
    """A table without faults, whose calls take no time."""

    def __init__(self, node: RowNode) -> None:
        self._node = node

    def read(self, key: str, timeout: float) -> Row:  # noqa: ARG002
        """Return a row."""
        return self._node.rows.get(key, Row())

    def write(self, key: str, value: bytes, version: object, timeout: float) -> object:  # noqa: ARG002
        """Write a row."""
        return self._node.write(key, value, version)

    def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:  # noqa: ARG002
        """Return keys."""
        return sorted(key for key in self._node.rows if key.startswith(prefix) and key > after)[:most]

    def close(self) -> None:
        """Disconnect."""


class SimulatedTable:
    """The access of a simulated client: every call is a request and a reply."""

    def __init__(self, runtime: SimRuntime, node: RowNode, link: Link, checker: Checker) -> None:
        self._runtime = runtime
        self._node = node
        self._link = link
        self._checker = checker
        self._direct = _Direct(node)
        if node.watched:
            self.watch = self._watch

    async def read(self, key: str, timeout: float) -> Row:
        """Return a row."""
        return await self._call(partial(self._direct.read, key, timeout), timeout)

    async def write(self, key: str, value: bytes, version: object, timeout: float) -> object:
        """Write a row."""
        return await self._call(partial(self._direct.write, key, value, version, timeout), timeout)

    async def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:
        """Return keys."""
        return await self._call(partial(self._direct.keys, prefix, after, most, timeout), timeout)

    async def close(self) -> None:
        """Watch no more."""
        self.vanish()

    def vanish(self) -> None:
        """Watch no more, as the death of the client does."""
        self._node.watchers.pop(self._runtime.process.name, None)

    def _watch(self, changed: Callable[[str, Row], None]) -> None:
        def tell(key: str, row: Row) -> None:
            self._link.push(lambda: changed(key, row), key)

        self._node.watchers[self._runtime.process.name] = tell
        self._link.when_cut.append(lambda: changed("", Row()))

    async def _call(self, work: Callable[[], T], timeout: float) -> T:
        node, link = self._node, self._link
        if node.is_down():
            link.happened["connection refused"] += 1
            await self._runtime.sleep(link.delay())
            raise StoreUnavailable("connection refused")
        if link.faults.errors and link.world.random.random() < link.faults.errors:
            await self._fail()

        def serve(answer: Answer[T]) -> None:
            if not node.is_down():
                answer.resolve(work())

        return await link.exchange(serve, self._runtime.now() + timeout, lambda: node.takes(link.happened))

    async def _fail(self) -> None:
        """Raise StoreUnavailable without an effect; now and then StoreError, after which a retry is useless."""
        world, delay = self._link.world, self._link.delay()
        self._link.happened["error answered"] += 1
        self._checker.store.disturbed(self._runtime.process.name, world.time + delay + RECOVERY)
        await self._runtime.sleep(delay)
        if world.random.random() < 0.2:
            raise StoreError("the table replied with an error, and a retry would fail as well")
        raise StoreUnavailable("the table replied with an error")


class SimulatedRowStore(RowStore):
    """The shipped store of one client, which may die."""

    def __init__(self, runtime: SimRuntime, node: RowNode, link: Link, checker: Checker) -> None:
        self._simulated = SimulatedTable(runtime, node, link, checker)
        super().__init__("rows", lambda _: self._simulated, 0.25, ABLE, runtime)

    def vanish(self) -> None:
        """Watch no more."""
        self._simulated.vanish()
