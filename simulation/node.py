"""Simulated store nodes: the interface for checks and disasters, and the node that runs the grant table."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from simulation.runtime import EPOCH, World
from tenure.contracts.cells import Cell
from tenure.contracts.messages import Notification, NotificationKind, ReleaseRequest
from tenure.stores import table_codec as codec
from tenure.stores.tabled import Steps
from tenure.table.state import NameState
from tenure.table.step import Step
from tenure.table.times import TOMBSTONE

if TYPE_CHECKING:
    from collections import Counter

T = TypeVar("T")


class StepWatcher(Protocol):
    """Observes every state that a node stores."""

    def after_step(self, node: "Node", name: str) -> None:
        """Check the state of `name`."""

    def failed(self, text: str) -> None:
        """Record that the node failed, without a fault of the plan."""


class Node(ABC):
    """The store of a run, which may consist of several servers."""

    refuses_for = TOMBSTONE
    """For how long it refuses a withdrawn request, in microseconds of its clock."""
    steps_at_clients = False
    """Whether a client takes its steps, so that one step may take several of its requests."""
    keeps_own_time = False
    """Whether the time of each name is its own, and may run slower than true time: a step shows an end before that."""
    keeps_dead_waiters = False
    """Whether a dead waiter keeps its place until the node itself notices the death."""

    def __init__(self, world: World, rate: float, offset: float) -> None:
        """Start with a clock of this rate and offset."""
        self.world = world
        self.down_until = 0.0
        self.slow_until = 0.0
        self._rate = rate
        self._offset: float = offset
        self.granted_by_push: frozenset[str] = frozenset()
        """The requests that the last step granted by a notification, whether or not it was received."""

    def withdrawals_clock(self) -> int:
        """Return the clock by which `refuses_for` counts, in microseconds."""
        return self.clock()

    def is_down(self) -> bool:
        """Tell whether the node is down."""
        return self.down_until > self.world.time

    def takes(self, happened: "Counter[str]") -> float:
        """Return how much longer than usual a request takes now."""
        slow = self.slow_until > self.world.time
        happened["request slow"] += slow
        return self.world.random.uniform(0.05, 0.5) if slow else 0.0

    # -- for the checks ------------------------------------------------------------------------------------

    @abstractmethod
    def clock(self) -> int:
        """Return the clock that judges expiry, in microseconds."""

    @abstractmethod
    def state(self, name: str) -> NameState:
        """Return the state of a name, which must not be changed."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return all names that were ever used."""

    @abstractmethod
    def listens(self, channel: str) -> bool:
        """Tell whether a client receives the notifications of a channel."""

    def has_told(self, request_id: str) -> bool:  # noqa: ARG002 - a grant without a notification is a reply
        """Tell whether a holder has received its grant, in a reply or by a notification."""
        return True

    def keeps_until(self, name: str, request_id: str, token: int) -> float:
        """Return the true time until which the node keeps a lease, whatever its token if that is 0; 0: it has none."""
        for holder in self.state(name).holders:
            if holder.request_id == request_id and token in (0, holder.token):
                return self.in_true_time(holder.expires_at)
        return 0.0

    def closed_until(self) -> float:
        """Return the true time before which the node must grant nothing, for it may have forgotten grants."""
        return 0.0

    def sits_out(self, length: int) -> bool:  # noqa: ARG002 - most nodes have no quarantine
        """Tell whether a quarantine that begins now lasts for `length`, the microseconds of a lease and lock delay."""
        return False

    def takes_up(self) -> bool:
        """Tell whether holders may take up forgotten leases now."""
        return False

    def in_true_time(self, instant: int) -> float:
        """Return the true time at which the clock that judges expiry shows an instant."""
        return self.world.time + (instant - self.clock()) / 1e6 / self._rate

    # -- requests of others --------------------------------------------------------------------------------

    @abstractmethod
    def revoke(self, name: str) -> None:
        """Revoke a name by force."""

    @abstractmethod
    def touch(self, name: str) -> None:
        """Send a request about a name that by itself changes nothing."""

    # -- disasters -----------------------------------------------------------------------------------------

    def forget_scripts(self) -> None:  # noqa: B027 - most nodes have no scripts
        """Forget all loaded scripts."""

    def calm(self) -> None:
        """End slowness and downtime."""
        self.slow_until = 0.0
        self.down_until = min(self.down_until, self.world.time)

    def slow_down(self, until: float) -> None:
        """Be slow until a time."""
        self.slow_until = until

    def stall(self, until: float) -> None:  # noqa: B027 - most nodes have no replicas
        """Stop replication until a time."""

    def step_clock(self, seconds: float, *, wall: bool) -> None:  # noqa: ARG002 - some nodes have no other clock
        """Step the clock that judges expiry, and with `wall` the wall clock, too."""
        self._offset += seconds

    @abstractmethod
    def restart(self, downtime: float) -> None:
        """Be down for `downtime`, and restart with the whole state."""

    @abstractmethod
    def forget(self, downtime: float, rng: random.Random) -> str:
        """Be down for `downtime`, and restart with a part of the state or none; return a description of both."""

    @abstractmethod
    def fail_over(self, downtime: float, rng: random.Random) -> str:
        """Die, and be replaced by a replica in its present state; return a description."""

    def depose(self, downtime: float, rng: random.Random) -> str:
        """Be replaced by a replica in its present state, and live on beside it; return a description."""
        return self.fail_over(downtime, rng)

    def reinstate(self, downtime: float) -> str:  # noqa: ARG002 - most nodes have no former master
        """Promote a former master that lived on; return a description, or "" if there is none."""
        return ""


class TableNode(Node):
    """A server that runs the grant table. It stores states as text, like the SQLite store."""

    def __init__(self, world: World, watcher: StepWatcher, rate: float, offset: float, lag: float) -> None:
        """Start empty. `lag` is how many seconds the replica is behind; 0: there is no replica."""
        super().__init__(world, rate, offset)
        self._lag = lag
        self._watcher = watcher
        self._wall_offset = 0.0
        self._states: dict[str, tuple[int, str]] = {}
        self._loaded: dict[str, NameState] = {}
        """Stored states that were parsed again; the next step uses them."""
        self._replica: dict[str, tuple[int, str]] = {}
        self._channels: dict[str, Callable[[Notification], None]] = {}
        self._cells: dict[str, tuple[bytes, int]] = {}
        self._writes = 0
        """The version of the last cell that was written."""
        self.quarantined_until = 0
        """The end of its quarantine, by its clock."""

    def clock(self) -> int:
        """Return the node's clock in microseconds."""
        return round((self._offset + self.world.time * self._rate) * 1e6)

    def wall(self) -> int:
        """Return the node's wall clock in microseconds."""
        return EPOCH + round((self.world.time + self._wall_offset) * 1e6)

    def step_clock(self, seconds: float, *, wall: bool) -> None:
        """Step the clock that judges expiry, and with `wall` the wall clock, too."""
        super().step_clock(seconds, wall=wall)
        if wall:
            self._wall_offset += seconds

    # -- operations ----------------------------------------------------------------------------------------

    def step(self, name: str, work: Callable[[Step], T]) -> T:
        """Carry out `work` on one name atomically, and push its notifications."""
        return self.steps(lambda steps: work(steps.on(name)))

    def steps(self, work: Callable[[Steps], T]) -> T:
        """Carry out `work` on any number of names at once, and push its notifications."""
        steps = Steps(self._take, self.clock(), self.wall(), self._channels.__contains__, (self.quarantined_until, 0))
        result = work(steps)
        for name, step in steps.taken.items():
            self._save(name, step.state)
        for name, step in steps.taken.items():
            grants = [
                notification.request_id
                for notification in step.notifications
                if notification.kind is NotificationKind.GRANTED
            ]
            self.granted_by_push = frozenset(grants)
            self._watcher.after_step(self, name)
            for notification in step.notifications:
                push = self._channels.get(notification.channel)
                if push is not None:
                    push(notification)
        return result

    def cell(self, name: str) -> Cell:
        """Return a cell."""
        return Cell(*self._cells.get(name, (b"", 0)), self.wall())

    def write_cell(self, name: str, value: bytes, version: int) -> Cell:
        """Write a cell if it has this version."""
        if self.cell(name).version != version:
            return self.cell(name)
        self._writes += 1
        self._cells[name] = (value, self._writes) if value else (b"", 0)
        return replace(self.cell(name), written=True)

    def state(self, name: str) -> NameState:
        """Return the state of a name, which must not be changed."""
        state = self._loaded.get(name)
        if state is None:
            counter, text = self._states.get(name, (0, ""))
            state = self._loaded[name] = codec.load(name, counter, text) if text else NameState(counter)
        return state

    def names(self) -> list[str]:
        """Return all names that were ever used."""
        return list(self._states)

    def _take(self, name: str) -> NameState:
        state = self.state(name)
        del self._loaded[name]
        return state

    def _save(self, name: str, state: NameState) -> None:
        saved = self._states[name] = (state.counter, codec.dump(state))
        if self._lag:
            self.world.after(self._lag, lambda: self._replica.__setitem__(name, saved))

    # -- channels -------------------------------------------------------------------------------------------

    def attach(self, channel: str, push: Callable[[Notification], None]) -> None:
        """Deliver the notifications of `channel` to `push` from now on."""
        self._channels[channel] = push

    def detach(self, channel: str) -> None:
        """Close a channel."""
        self._channels.pop(channel, None)

    def listens(self, channel: str) -> bool:
        """Tell whether a client receives the notifications of a channel."""
        return channel in self._channels

    # -- requests of others --------------------------------------------------------------------------------

    def revoke(self, name: str) -> None:
        """Revoke a name by force."""
        self.step(name, lambda step: step.revoke())

    def touch(self, name: str) -> None:
        """Release a request that never held the name."""
        self.step(name, lambda step: step.release(ReleaseRequest(name, "nobody", 0)))

    # -- disasters -----------------------------------------------------------------------------------------

    def restart(self, downtime: float) -> None:
        """Be down for `downtime`, and restart with the whole state."""
        self._return_with(downtime, self._states)

    def forget(self, downtime: float, rng: random.Random) -> str:
        """Be down for `downtime`, and restart with the states of some names or of none."""
        kept = {name: saved for name, saved in self._states.items() if rng.random() < 0.3}
        self._return_with(downtime, kept)
        return f"restart with {'some' if kept else 'nothing'}: {', '.join(kept) or 'no name'} is left"

    def fail_over(self, downtime: float, rng: random.Random) -> str:  # noqa: ARG002 - there is one replica
        """Die, and be replaced by the replica in its present state."""
        self._return_with(downtime, dict(self._replica))
        return f"failover: a replica that is {self._lag:.3f} s behind is promoted"

    def _return_with(self, downtime: float, states: dict[str, tuple[int, str]]) -> None:
        self.down_until = self.world.time + downtime
        self._channels.clear()
        self._states = states
        self._loaded.clear()
