"""A simulated store node: the grant table behind a clock that may step, and a replica that lags."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from holdfast.core.messages import Notice
from holdfast.core.state import NameState
from holdfast.core.table import Step
from holdfast.runtimes.simulated import EPOCH, World
from holdfast.stores.sqlite import codec
from holdfast.stores.tabled import Steps

T = TypeVar("T")


class StepWatcher(Protocol):
    """Somebody who looks at every state that a node stores."""

    def after_step(self, node: "Node", name: str) -> None:
        """Look at the state of `name`."""


class Node:
    """One server that runs the grant table. States are stored as text, as the SQLite store does."""

    def __init__(self, world: World, watcher: StepWatcher, rate: float = 1.0, offset: float = 1000.0) -> None:
        """Start empty; `lag` is how many seconds the replica is behind."""
        self.world = world
        self.lag = 0.0
        self.down_until = 0.0
        self.slow_until = 0.0
        self._watcher = watcher
        self._rate = rate
        self._offset = offset
        self._wall_offset = 0.0
        self._states: dict[str, tuple[int, str]] = {}
        self._loaded: dict[str, NameState] = {}
        """States as they were read back after they were stored: the next step takes them over."""
        self._replica: dict[str, tuple[int, str]] = {}
        self._inboxes: dict[str, Callable[[Notice], None]] = {}

    def clock(self) -> int:
        """Return the node's clock in microseconds."""
        return round((self._offset + self.world.time * self._rate) * 1e6)

    def wall(self) -> int:
        """Return the node's wall clock in microseconds."""
        return EPOCH + round((self.world.time + self._wall_offset) * 1e6)

    def keeps_until(self, name: str, request: str, token: int) -> float:
        """Return the true time until which a lease is kept as things are now; 0 if it is not held."""
        for holder in self.state(name).holders:
            if holder.request == request and holder.token == token:
                return self.world.time + (holder.expires_at - self.clock()) / 1e6 / self._rate
        return 0.0

    def step_clock(self, seconds: float, *, wall: bool) -> None:
        """Let the clock that judges expiry step; also the wall clock if told."""
        self._offset += seconds
        if wall:
            self._wall_offset += seconds

    # -- operations ----------------------------------------------------------------------------------------

    def step(self, name: str, work: Callable[[Step], T]) -> T:
        """Carry out `work` on one name atomically, and push its notices."""
        return self.steps(lambda steps: work(steps.on(name)))

    def steps(self, work: Callable[[Steps], T]) -> T:
        """Carry out `work` on any number of names at once, and push its notices."""
        steps = Steps(self._take, self.clock(), self.wall(), self._inboxes.__contains__)
        result = work(steps)
        for name, step in steps.taken.items():
            self._save(name, step.state)
        for name, step in steps.taken.items():
            self._watcher.after_step(self, name)
            for notice in step.notices:
                push = self._inboxes.get(notice.inbox)
                if push is not None:
                    push(notice)
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
        if self.lag:
            self.world.after(self.lag, lambda: self._replica.__setitem__(name, saved))

    # -- inboxes -------------------------------------------------------------------------------------------

    def attach(self, inbox: str, push: Callable[[Notice], None]) -> None:
        """Push the notices for `inbox` from now on."""
        self._inboxes[inbox] = push

    def detach(self, inbox: str) -> None:
        """Notice that nobody listens any more."""
        self._inboxes.pop(inbox, None)

    def listens(self, inbox: str) -> bool:
        """Tell whether somebody listens at an inbox."""
        return inbox in self._inboxes

    # -- disasters -----------------------------------------------------------------------------------------

    def restart(self, downtime: float, keep: Callable[[str], bool]) -> None:
        """Be down for a while, and come back with the names that `keep` says."""
        self.down_until = self.world.time + downtime
        self._inboxes.clear()
        self._states = {name: saved for name, saved in self._states.items() if keep(name)}
        self._loaded.clear()

    def fail_over(self, downtime: float) -> None:
        """Die, and be replaced by the replica as it is now."""
        self.down_until = self.world.time + downtime
        self._inboxes.clear()
        self._states = dict(self._replica)
        self._loaded.clear()
