"""Simulated store nodes: what the checks look at and disasters happen to, and the one that runs the grant table."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdfast.contracts.messages import Notification, NotificationKind, ReleaseRequest
from holdfast.runtimes.simulated import EPOCH, World
from holdfast.stores.sqlite import codec
from holdfast.stores.tabled import Steps
from holdfast.table.state import NameState
from holdfast.table.step import Step
from holdfast.table.times import TOMBSTONE

if TYPE_CHECKING:
    from collections import Counter

T = TypeVar("T")


class StepWatcher(Protocol):
    """Somebody who looks at every state that a node stores."""

    def after_step(self, node: "Node", name: str) -> None:
        """Look at the state of `name`."""

    def failed(self, text: str) -> None:
        """Note that the node failed by itself."""


class Node(ABC):
    """Where the truth about locks lives in a run, whatever it consists of."""

    refuses_for = TOMBSTONE
    """For how long, in microseconds of its clock, it refuses what is left of a request that was given up."""
    buries = False
    """Whether a waiter that died keeps its place until the node itself finds out."""

    def __init__(self, world: World, rate: float, offset: float) -> None:
        """Start with a clock that runs at a rate."""
        self.world = world
        self.down_until = 0.0
        self.slow_until = 0.0
        self._rate = rate
        self._offset: float = offset
        self.granted_by_push: frozenset[str] = frozenset()
        """The requests to which the step that was just taken pushed a grant, whether anybody listens or not."""

    def is_down(self) -> bool:
        """Tell whether nobody is there to answer."""
        return self.down_until > self.world.time

    def takes(self, happened: "Counter[str]") -> float:
        """Return how much longer than usual a request takes now."""
        slow = self.slow_until > self.world.time
        happened["request slow"] += slow
        return self.world.random.uniform(0.05, 0.5) if slow else 0.0

    # -- what the checks look at ---------------------------------------------------------------------------

    @abstractmethod
    def clock(self) -> int:
        """Return the clock that judges expiry, in microseconds."""

    @abstractmethod
    def state(self, name: str) -> NameState:
        """Return the state of a name, to look at."""

    @abstractmethod
    def names(self) -> list[str]:
        """List all names that were ever used."""

    @abstractmethod
    def listens(self, channel: str) -> bool:
        """Tell whether somebody listens at a channel."""

    def has_told(self, request_id: str) -> bool:  # noqa: ARG002 - who is granted without a push has asked
        """Tell whether a holder was told of its grant, in a reply or by a push."""
        return True

    def keeps_until(self, name: str, request_id: str, token: int) -> float:
        """Return the true time until which a lease is kept as things are now; 0 if it is not."""
        for holder in self.state(name).holders:
            if holder.request_id == request_id and holder.token == token:
                return self.in_true_time(holder.expires_at)
        return 0.0

    def closed_until(self) -> float:
        """Return the true time before which nobody may be granted, because grants may have been forgotten."""
        return 0.0

    def sits_out(self, length: int) -> bool:  # noqa: ARG002 - most forget nothing, or do not care
        """Tell whether a quarantine that begins now lasts for a lease and its lock delay, in microseconds together."""
        return False

    def takes_up(self) -> bool:
        """Tell whether leases that were forgotten may be taken up again now."""
        return False

    def in_true_time(self, instant: int) -> float:
        """Return the true time at which the clock that judges expiry shows an instant."""
        return self.world.time + (instant - self.clock()) / 1e6 / self._rate

    # -- what somebody does to it --------------------------------------------------------------------------

    @abstractmethod
    def revoke(self, name: str) -> None:
        """Take a name by force."""

    @abstractmethod
    def touch(self, name: str) -> None:
        """Ask something about a name, as anybody might, that changes nothing by itself."""

    # -- disasters -----------------------------------------------------------------------------------------

    def forget_scripts(self) -> None:  # noqa: B027 - most know none
        """Forget the scripts that clients have told."""

    def calm(self) -> None:
        """Be neither slow nor down any more."""
        self.slow_until = 0.0
        self.down_until = min(self.down_until, self.world.time)

    def slow_down(self, until: float) -> None:
        """Be slow until a time."""
        self.slow_until = until

    def stall(self, until: float) -> None:  # noqa: B027 - most have no replica that can
        """Let the replicas get nothing until a time."""

    def step_clock(self, seconds: float, *, wall: bool) -> None:  # noqa: ARG002 - some have no other clock
        """Let the clock that judges expiry step; also the wall clock if told."""
        self._offset += seconds

    @abstractmethod
    def restart(self, downtime: float) -> None:
        """Be down for a while, and come back with all that was stored."""

    @abstractmethod
    def forget(self, downtime: float, rng: random.Random) -> str:
        """Be down for a while, and come back with some or nothing; say which, and what is left."""

    @abstractmethod
    def fail_over(self, downtime: float, rng: random.Random) -> str:
        """Die, and be replaced by a replica as it is now; say which it was."""

    def depose(self, downtime: float, rng: random.Random) -> str:
        """Be replaced by a replica as it is now, and live on beside it; say which it was."""
        return self.fail_over(downtime, rng)

    def reinstate(self, downtime: float) -> str:  # noqa: ARG002 - most have no such
        """Promote a master that was replaced, and lived on; say what it knows, or nothing if there is none."""
        return ""


class TableNode(Node):
    """One server that runs the grant table. States are stored as text, as the SQLite store does."""

    def __init__(self, world: World, watcher: StepWatcher, rate: float, offset: float, lag: float) -> None:
        """Start empty; `lag` is how many seconds the replica is behind (0: there is none)."""
        super().__init__(world, rate, offset)
        self._lag = lag
        self._watcher = watcher
        self._wall_offset = 0.0
        self._states: dict[str, tuple[int, str]] = {}
        self._loaded: dict[str, NameState] = {}
        """States as they were read back after they were stored: the next step takes them over."""
        self._replica: dict[str, tuple[int, str]] = {}
        self._channels: dict[str, Callable[[Notification], None]] = {}
        self.quarantined_until = 0
        """Until when, by its clock, it grants nothing."""

    def clock(self) -> int:
        """Return the node's clock in microseconds."""
        return round((self._offset + self.world.time * self._rate) * 1e6)

    def wall(self) -> int:
        """Return the node's wall clock in microseconds."""
        return EPOCH + round((self.world.time + self._wall_offset) * 1e6)

    def step_clock(self, seconds: float, *, wall: bool) -> None:
        """Let the clock that judges expiry step; also the wall clock if told."""
        super().step_clock(seconds, wall=wall)
        if wall:
            self._wall_offset += seconds

    # -- operations ----------------------------------------------------------------------------------------

    def step(self, name: str, work: Callable[[Step], T]) -> T:
        """Carry out `work` on one name atomically, and push its notifications."""
        return self.steps(lambda steps: work(steps.on(name)))

    def steps(self, work: Callable[[Steps], T]) -> T:
        """Carry out `work` on any number of names at once, and push its notifications."""
        steps = Steps(self._take, self.clock(), self.wall(), self._channels.__contains__, self.quarantined_until)
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

    def state(self, name: str) -> NameState:
        """Return the state of a name, to look at."""
        state = self._loaded.get(name)
        if state is None:
            counter, text = self._states.get(name, (0, ""))
            state = self._loaded[name] = codec.load(name, counter, text) if text else NameState(counter)
        return state

    def names(self) -> list[str]:
        """List all names that were ever used."""
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
        """Push the notifications for `channel` from now on."""
        self._channels[channel] = push

    def detach(self, channel: str) -> None:
        """Notice that nobody listens any more."""
        self._channels.pop(channel, None)

    def listens(self, channel: str) -> bool:
        """Tell whether somebody listens at a channel."""
        return channel in self._channels

    # -- what somebody does to it --------------------------------------------------------------------------

    def revoke(self, name: str) -> None:
        """Take a name by force."""
        self.step(name, lambda step: step.revoke())

    def touch(self, name: str) -> None:
        """Release what nobody holds."""
        self.step(name, lambda step: step.release(ReleaseRequest(name, "nobody", 0)))

    # -- disasters -----------------------------------------------------------------------------------------

    def restart(self, downtime: float) -> None:
        """Be down for a while, and come back with all that was stored."""
        self._return_with(downtime, self._states)

    def forget(self, downtime: float, rng: random.Random) -> str:
        """Be down for a while, and come back with the states of some names or of none."""
        kept = {name: saved for name, saved in self._states.items() if rng.random() < 0.3}
        self._return_with(downtime, kept)
        return f"restart with {'some' if kept else 'nothing'}: {', '.join(kept) or 'no name'} is left"

    def fail_over(self, downtime: float, rng: random.Random) -> str:  # noqa: ARG002 - there is one replica
        """Die, and be replaced by the replica as it is now."""
        self._return_with(downtime, dict(self._replica))
        return f"failover: a replica that is {self._lag:.3f} s behind is promoted"

    def _return_with(self, downtime: float, states: dict[str, tuple[int, str]]) -> None:
        self.down_until = self.world.time + downtime
        self._channels.clear()
        self._states = states
        self._loaded.clear()
