"""The store `memory://`: a grant table in this process, for tests and for programs of one process.

`memory://` and `memory://name` are tables that all clients of the process share, both threads and asyncio tasks. A
forked child starts with empty tables: it shares no memory with its parent, so no table can protect the two from
each other.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tenure import fork
from tenure.contracts.cells import Cell
from tenure.contracts.messages import Notification, Page
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities, StoreSource
from tenure.runtimes import clocks
from tenure.stores.tabled import RETENTION, Steps, TabledStore
from tenure.table.state import NameState
from tenure.table.step import Step

T = TypeVar("T")

SWEEP_EVERY = 60_000_000
"""The time between two searches for unused names, in microseconds."""

REMEMBERED = 4096
"""The largest number of unused names that a sweep keeps. It keeps the names that were used last."""


class MemoryTable:
    """The states of all names, and the notification channels of the clients that use them."""

    def __init__(
        self,
        clock: Callable[[], int] = clocks.steady_micros,
        wall: Callable[[], int] = clocks.wall_micros,
    ) -> None:
        """Create an empty table. `clock` and `wall` return microseconds; a simulation can replace them."""
        self._clock = clock
        self._wall = wall
        self._mutex = threading.Lock()
        self._states: dict[str, NameState] = {}
        self._channels: dict[str, Callable[[Notification], None]] = {}
        self._cells: dict[str, tuple[bytes, int]] = {}
        """By name: the value of a cell, and its version."""
        self._writes = 0
        """The last version of a cell."""
        self._floor = 0
        self._sweep_at = clock() + SWEEP_EVERY
        self._crowded = 2 * REMEMBERED
        """The number of names that starts a sweep before `_sweep_at`."""
        fork.watch(self)

    def step(self, name: str, work: Callable[[Step], T]) -> T:
        """Run `work` on one name atomically, then send the notifications of the step."""
        with self._mutex:
            now = self._clock()
            if now >= self._sweep_at or len(self._states) >= self._crowded:
                self._sweep(now)
            state = self._states.get(name) or self._load(name)
            step = Step(state, now, self._wall(), self._listening)
            result = work(step)
        if step.notifications:
            self._send(step)
        return result

    def steps(self, work: Callable[[Steps], T]) -> T:
        """Run `work` on any number of names in one atomic step, then send the notifications of the step."""
        with self._mutex:
            now = self._tick()
            steps = Steps(self._load, now, self._wall(), self._listening)
            result = work(steps)
        for step in steps.taken.values():
            self._send(step)
        return result

    def names(self, prefix: str) -> list[str]:
        """Return the names in use that start with `prefix`, sorted."""
        with self._mutex:
            now = self._clock()
            in_use = [name for name, state in self._states.items() if state.idle_after() > now]
        return sorted(name for name in in_use if name.startswith(prefix))

    def cell(self, name: str) -> Cell:
        """Return a cell."""
        with self._mutex:
            return Cell(*self._cells.get(name, (b"", 0)), self._wall())

    def write_cell(self, name: str, value: bytes, version: int) -> Cell:
        """Write a cell if it has this version; b"" removes it."""
        with self._mutex:
            kept = self._cells.get(name, (b"", 0))
            if kept[1] != version:
                return Cell(*kept, self._wall())
            self._writes += 1
            if value:
                self._cells[name] = value, self._writes
            else:
                self._cells.pop(name, None)
            return Cell(value, self._writes if value else 0, self._wall(), written=True)

    def attach(self, channel: str, push: Callable[[Notification], None]) -> None:
        """Deliver the notifications for `channel` to `push` from now on."""
        self._channels[channel] = push

    def detach(self, channel: str) -> None:
        """Remove a channel. Grants skip its waiters from now on."""
        self._channels.pop(channel, None)

    def store(self, runtime: Runtime) -> "MemoryStore":
        """Create one client's store on this table."""
        return MemoryStore(runtime, self)

    def after_fork_in_child(self) -> None:
        """Empty the table and replace the mutex, which a thread of the parent may have locked."""
        self._mutex = threading.Lock()
        self._states.clear()
        self._cells.clear()
        self._channels.clear()

    def _tick(self) -> int:
        now = self._clock()
        if now >= self._sweep_at or len(self._states) >= self._crowded:
            self._sweep(now)
        return now

    def _send(self, step: Step) -> None:
        for notification in step.notifications:
            if push := self._channels.get(notification.channel):
                push(notification)

    def _listening(self, channel: str) -> bool:
        """Return whether a grant can reach the waiter: a waiter without a channel polls, so it needs no push."""
        return not channel or channel in self._channels

    def _load(self, name: str) -> NameState:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = NameState(self._floor)
        return state

    def _sweep(self, now: int) -> None:
        """Remove names unused for longer than RETENTION, and the oldest beyond REMEMBERED.

        The floor rises to their counters and new names start at the floor, so that tokens never repeat. A sweep visits
        all names, so the next one waits for its time, or until there are twice as many names again.
        """
        self._sweep_at = now + SWEEP_EVERY
        unused = sorted((idle, name) for name, state in self._states.items() if (idle := state.idle_after()) < now)
        too_many = len(unused) - REMEMBERED
        for place, (idle, name) in enumerate(unused):
            if place < too_many or idle + RETENTION < now:
                self._floor = max(self._floor, self._states.pop(name).counter)
        self._crowded = 2 * max(len(self._states), REMEMBERED)


class MemoryStore(TabledStore):
    """One client's access to a table in memory."""

    capabilities = Capabilities(
        min_ttl=0.05,
        queue=True,
        weights=True,
        runs_in_caller=True,
        multi_acquire=True,
        barging=True,
        cells=True,
        hands_over=True,
    )

    def __init__(self, runtime: Runtime, table: MemoryTable) -> None:
        """Create a store on `table` whose notifications arrive in `runtime`."""
        self._runtime = runtime
        self._table = table
        self._channel = ""

    def identity(self) -> str:
        """Return the identity of the table."""
        return f"table {id(self._table)}"

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:  # noqa: ARG002 - takes no time
        """Attach a notification channel and return it."""
        self._channel = self._runtime.new_id()

        def push(notification: Notification) -> None:
            if not self._runtime.post(partial(deliver, notification)):
                self._table.detach(notification.channel)

        self._table.attach(self._channel, push)
        return self._channel

    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:  # noqa: ARG002 - takes no time
        """Run `work` on one name atomically."""
        return self._table.step(name, work)

    async def steps(self, names: Sequence[str], work: Callable[[Steps], T], until: float) -> T:  # noqa: ARG002 - takes no time
        """Run `work` on any number of names in one atomic step."""
        return self._table.steps(work)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:  # noqa: ARG002 - takes no time
        """Return all names in use that start with `prefix`, in one page."""
        return Page(self._table.names(prefix))

    async def read_cell(self, name: str, until: float) -> Cell:  # noqa: ARG002 - takes no time
        """Return a cell."""
        return self._table.cell(name)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:  # noqa: ARG002 - takes no time, and is kept as long as the process
        """Write a cell if it has this version."""
        return self._table.write_cell(name, value, version)

    async def close(self) -> None:
        """Detach the notification channel."""
        self._table.detach(self._channel)

    def abandon(self) -> None:
        """Do nothing: a forked child has tables of its own."""


def memory_source(table: MemoryTable, title: str = "memory://") -> StoreSource:
    """Return the source of stores that share `table`."""
    return StoreSource(title, MemoryStore.capabilities, table.store)


_shared: dict[str, MemoryTable] = {}


def shared_table(name: str) -> MemoryTable:
    """Return the table that all clients of this process know by `name`, and create it if there is none."""
    return _shared.setdefault(name, MemoryTable())


def share_table(name: str, table: MemoryTable) -> None:
    """Register `table` under `name` for all clients of this process."""
    _shared[name] = table


def forget_table(name: str) -> None:
    """Remove the table `name` from the registry: the next client that uses the name starts with an empty table."""
    _shared.pop(name, None)
