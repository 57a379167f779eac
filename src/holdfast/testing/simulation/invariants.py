"""What must hold in every run, checked after every event.

EXCLUSION     No two leases of a name whose holders both believe them valid, each by its own clock, unless they fit
              beside each other.
TOKENS        Fencing tokens strictly increase in the order of the grants of a name.
FENCE         A resource that is fenced at the first touch loses no accepted update.
FIFO          No waiter is granted while another one that joined before it, and stayed, still waits.
LOSS          A loss is told exactly once, not later than the local deadline, and at once when the store refuses.
KEPT          A healthy holder of a healthy store loses nothing.
PROMPT        With a healthy store, a name that is free has no live waiter.
CLEAN         An acquisition that ended without a lease has left, and once its leave is acknowledged nothing of it
              is seen again.
DRAINED       Once the faults stop, everybody gets what they wait for, and in the end nothing is left in the store.
NO_ERRORS     No operation raises anything but what it documents, and no background task dies.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.core.held import HeldLease
from holdfast.core.state import NameState
from holdfast.runtimes.simulated import Process, World
from holdfast.testing.simulation.node import Node


class Invariant(StrEnum):
    """The invariants by name."""

    EXCLUSION = "exclusion"
    TOKENS = "tokens"
    FENCE = "fence"
    FIFO = "fifo"
    LOSS = "loss"
    KEPT = "kept"
    PROMPT = "prompt"
    CLEAN = "clean"
    DRAINED = "drained"
    NO_ERRORS = "no errors"


@dataclass(slots=True)
class Violation:
    """One breach of an invariant."""

    invariant: Invariant
    time: float
    text: str


@dataclass(slots=True)
class Believed:
    """A lease, as the simulation follows it."""

    process: Process
    held: HeldLease
    weight: int
    capacity: int
    told: int = 0
    released: bool = False

    def valid(self) -> bool:
        """Tell whether its holder believes in it now, by its own clock."""
        held = self.held
        return not (held.lost_because or held.let_go) and self.process.clock() < held.valid_until


@dataclass(slots=True)
class Resource:
    """Something that a lock protects and that is fenced: a counter, and the highest token that touched it."""

    fence: int = 0
    value: int = 0
    accepted: int = 0
    refused: int = 0

    def read(self, token: int) -> int | None:
        """Raise the fence and return the value; None: refused."""
        if token < self.fence:
            self.refused += 1
            return None
        self.fence = token
        return self.value

    def write(self, token: int, value: int) -> None:
        """Accept a write unless the token is stale."""
        if token < self.fence:
            self.refused += 1
            return
        self.value = value
        self.accepted += 1


SLACK = 0.02
"""By how much a loss may be told after the local deadline: the keeper's own step."""

PROMPTLY = 0.05
"""How long a free name may have a live waiter where nothing is wrong: a push on its way, or its ask."""


@dataclass
class Checker:
    """Follows a run and collects what is wrong."""

    world: World
    healthy: bool = False
    """Whether nothing goes wrong in this run, so that KEPT and PROMPT hold at every moment."""
    violations: list[Violation] = field(default_factory=list[Violation])
    leases: list[Believed] = field(default_factory=list[Believed])
    resources: dict[str, Resource] = field(default_factory=dict[str, Resource])
    grants: int = 0
    trace: Callable[[str, str], None] = lambda who, text: None  # noqa: ARG005
    _current: dict[str, list[Believed]] = field(default_factory=dict[str, list[Believed]])
    _tokens: dict[str, int] = field(default_factory=dict[str, int])
    _holding: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    _joined: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    _joins: int = 0
    _gone: set[str] = field(default_factory=set[str])
    _leaving: set[str] = field(default_factory=set[str])
    _free_since: dict[str, float] = field(default_factory=dict[str, float])

    def broken(self, invariant: Invariant, text: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(invariant, self.world.time, text))
        self.trace("CHECK", f"{invariant}: {text}")

    # -- at the store --------------------------------------------------------------------------------------

    def after_step(self, node: Node, name: str) -> None:
        """Look at what a node stored."""
        state = node.state(name)
        self._check_grants(name, state)
        self._check_queue(name, state)
        self._check_gone(name, state)
        if self.healthy:
            self._note_free(node, name, state)

    def node_forgot(self, node: Node, name: str) -> None:
        """Start over from what a node still knows; what it forgot is no guide to the order of its queue any more."""
        state = node.state(name)
        self._joined.pop(name, None)
        self._check_queue(name, state)
        self._holding[name] = {holder.request for holder in state.holders}

    def _check_grants(self, name: str, state: NameState) -> None:
        known = self._holding.get(name, set[str]())
        for holder in state.holders:
            if holder.request in known:
                continue
            self.grants += 1
            last = self._tokens.get(name, 0)
            if holder.token <= last:
                self.broken(Invariant.TOKENS, f"{name}: token {holder.token} was granted after {last}")
            self._tokens[name] = max(last, holder.token)
            self._check_overtaking(name, holder.request, state)
            self.trace("store", f"{name}: granted to {holder.request}, token {holder.token}")
        self._holding[name] = {holder.request for holder in state.holders}

    def _check_overtaking(self, name: str, request: str, state: NameState) -> None:
        order = self._joined.get(name, {})
        mine = order.get(request, self._joins + 1)
        waiting = {waiter.ask.request for waiter in state.queue}
        for other, joined in order.items():
            if joined < mine and other in waiting:
                self.broken(Invariant.FIFO, f"{name}: {request} was granted before {other}, which waited longer")

    def _check_queue(self, name: str, state: NameState) -> None:
        before = self._joined.get(name, {})
        after: dict[str, int] = {}
        for waiter in state.queue:
            if waiter.ask.request not in before:
                self._joins += 1
            after[waiter.ask.request] = before.get(waiter.ask.request, self._joins)
        self._joined[name] = after

    def _check_gone(self, name: str, state: NameState) -> None:
        for request in self._gone:
            if any(holder.request == request for holder in state.holders):
                self.broken(Invariant.CLEAN, f"{name}: {request} holds after its leave was acknowledged")
            if any(waiter.ask.request == request for waiter in state.queue):
                self.broken(Invariant.CLEAN, f"{name}: {request} waits after its leave was acknowledged")

    def _note_free(self, node: Node, name: str, state: NameState) -> None:
        now = node.clock()
        held = any(holder.expires_at > now for holder in state.holders) or state.blocked_until > now
        waiting = any(waiter.fresh_until > now and node.listens(waiter.ask.inbox) for waiter in state.queue)
        if held or not waiting:
            self._free_since.pop(name, None)
        else:
            self._free_since.setdefault(name, self.world.time)

    def check_prompt(self, node: Node) -> None:
        """Look for names that are free while somebody waits."""
        for name in node.names():
            self._note_free(node, name, node.state(name))
            since = self._free_since.get(name)
            if since is not None and self.world.time - since > PROMPTLY:
                self.broken(Invariant.PROMPT, f"{name} is free since {since:.3f}, and somebody waits for it")
                del self._free_since[name]

    def check_drained(self, node: Node) -> None:
        """Look for what is left in the store when nobody wants anything any more."""
        now = node.clock()
        for name in node.names():
            state = node.state(name)
            left = [holder.request for holder in state.holders if holder.expires_at > now]
            left += [waiter.ask.request for waiter in state.queue if waiter.fresh_until > now]
            if left:
                self.broken(Invariant.DRAINED, f"{name}: {', '.join(left)} is left in the store at the end")

    # -- at the clients ------------------------------------------------------------------------------------

    def leaving(self, request: str) -> None:
        """Note that a leave was sent."""
        self._leaving.add(request)

    def left(self, request: str) -> None:
        """Note that a leave was acknowledged: from now on nothing of the request may be seen."""
        self._gone.add(request)

    def ended_without_lease(self, request: str, *, engaged: bool) -> None:
        """Note that an acquisition ended without a lease; `engaged`: the store may know of it."""
        if engaged and request not in self._leaving:
            self.broken(Invariant.CLEAN, f"{request} ended without a lease, and has not left the store")

    def entered(self, believed: Believed) -> None:
        """Follow a lease from now on."""
        held = believed.held
        self.leases.append(believed)
        self._current.setdefault(held.name, []).append(believed)
        held.when_lost(lambda reason: self._lost(believed, reason))
        self.trace(believed.process.name, f"{held.name}: entered with token {held.token}")

    def _lost(self, believed: Believed, reason: str) -> None:
        held, process = believed.held, believed.process
        believed.told += 1
        self.trace(process.name, f"{held.name}: told that the lease with token {held.token} is lost: {reason}")
        if believed.told > 1:
            self.broken(Invariant.LOSS, f"{held.request} was told {believed.told} times")
        late = process.clock() - held.valid_until
        resumed_late = self.world.time - process.paused_until < SLACK
        if late > SLACK and not resumed_late:
            self.broken(Invariant.LOSS, f"{held.request} was told {late:.3f} s after its deadline")
        if self.healthy and held.ends_at > process.clock() + SLACK:
            self.broken(Invariant.KEPT, f"{held.request} lost {held.name} though nothing was wrong: {reason}")

    def refused(self, process: Process, request: str) -> None:
        """Note that a renewal was refused: very soon its lease must be known to be lost."""

        def look() -> None:
            for believed in self.leases:
                if believed.held.request == request and believed.process is process and believed.valid():
                    self.broken(Invariant.LOSS, f"{request} believes in its lease after the store refused it")

        process.later(0.0, lambda: process.later(0.0, look))

    def crashed(self, process: Process) -> None:
        """Forget the beliefs of a process that is no more."""
        for leases in self._current.values():
            leases[:] = [believed for believed in leases if believed.process is not process]

    def after_event(self) -> None:
        """Look for leases that exclude each other and are believed in at once."""
        for name, leases in self._current.items():
            if len(leases) > 1:
                self._check_exclusion(name, leases)

    def _check_exclusion(self, name: str, leases: list[Believed]) -> None:
        valid = [believed for believed in leases if believed.valid()]
        if sum(believed.weight for believed in valid) > min(believed.capacity for believed in leases):
            who = " and ".join(f"{each.held.request} (token {each.held.token})" for each in valid)
            self.broken(Invariant.EXCLUSION, f"{name} is held by {who} at once")
            valid = valid[-1:]
        leases[:] = valid

    def check_end(self) -> None:
        """Look at everything that can be told only when all is over."""
        for believed in self.leases:
            held = believed.held
            if held.lost_because and not held.let_go and not believed.process.crashed and believed.told != 1:
                self.broken(Invariant.LOSS, f"{held.request} was told of its loss {believed.told} times")
        for name, resource in self.resources.items():
            if resource.value != resource.accepted:
                self.broken(
                    Invariant.FENCE,
                    f"{name}: {resource.accepted} updates were accepted, and {resource.value} are left",
                )
        for task, error in self.world.errors:
            self.broken(Invariant.NO_ERRORS, f"{task} ended by {error!r}")
