"""The checks of the holders: that no two believe in leases of a name at once, and that losses are notified in time."""

from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.invariants import Invariant, Tell, Trace
from simulation.runtime import Process, World
from tenure.contracts.deadlines import NEVER
from tenure.core.lease import CoreLease, LeaseState

GRANULARITY = 2e-6
"""The error of counting in whole microseconds."""

SLACK = 0.02
"""How long after the local deadline a holder may be notified of a loss: one step of the renewer."""


@dataclass(slots=True)
class Believed:
    """A lease that the simulation observes."""

    process: Process
    lease: CoreLease
    weight: int
    capacity: int
    ends_at: float = NEVER
    """The end of its max_hold, by the holder's clock."""
    leaving: bool = False
    """Whether the holder has begun to detach it: if that fails, the lease may be lost early."""
    told: int = 0
    """How often the holder was notified of its loss."""

    def valid(self) -> bool:
        """Tell whether the holder believes in the lease now, by its own clock."""
        return not self.over() and self.process.clock() < self.lease.valid_until

    def over(self) -> bool:
        """Tell whether the holder has released, detached or lost the lease."""
        lease = self.lease
        return bool(lease.lost_because or lease.release_begun or lease.current is LeaseState.DETACHED)

    def excused(self) -> bool:
        """Tell whether the process has only just continued after a pause, or has crashed."""
        process = self.process
        return process.crashed or process.world.time - process.paused_until < SLACK


@dataclass
class LeaseChecks:
    """Observes all leases of a run."""

    world: World
    tell: Tell
    trace: Trace
    healthy: bool
    """Whether nothing goes wrong in this run, so that no lease may be lost at all."""
    keeps_until: Callable[[str, str, int], float] = lambda name, request_id, token: NEVER  # noqa: ARG005
    """Returns until when, in true time, the store keeps the lease of a name, a request and a token."""
    leases: dict[str, Believed] = field(default_factory=dict[str, Believed])
    """The leases, by their request."""
    successors: dict[str, str] = field(default_factory=dict[str, str])
    """The requests of leases that were handed over in the store, and those of their successors."""
    raised: dict[str, int] = field(default_factory=dict[str, int])
    """By request: the largest token to which a client asked to raise that of its lease."""
    handed_off: int = 0
    """The number of local hand-offs."""
    _current: dict[str, list[Believed]] = field(default_factory=dict[str, list[Believed]])
    _crowded: dict[str, list[Believed]] = field(default_factory=dict[str, list[Believed]])
    """The names with more than one lease that a holder may believe in."""

    # -- events --------------------------------------------------------------------------------------------

    def entered(self, believed: Believed) -> None:
        """Observe a lease from now on."""
        lease = believed.lease
        before = self.leases.get(lease.grant.request_id)
        if before is not None:
            self.handed_off += 1
            if lease.token <= before.lease.token:
                self.tell(Invariant.TOKENS, f"{lease.grant.name} is handed off with token {lease.token} once more")
        self.leases[lease.grant.request_id] = believed
        current = self._current.setdefault(lease.grant.name, [])
        current.append(believed)
        if len(current) > 1:
            self._crowded[lease.grant.name] = current
        lease.when_lost(lambda reason: self._lost(believed, reason))
        left = lease.valid_until - believed.process.clock()
        self.trace(
            believed.process.name,
            f"{lease.grant.name}: holds it, token {lease.token}, and believes in it for {left:.3f} s",
        )
        self._check_backed(believed)
        self._look_in_time(believed)
        if believed.ends_at < NEVER:
            believed.process.later(
                believed.ends_at - believed.process.clock() + SLACK, lambda: self._overheld(believed)
            )

    def _overheld(self, believed: Believed) -> None:
        if believed.valid():
            self.tell(Invariant.OVERHELD, f"{believed.lease.grant.request_id} believes in its lease after its max_hold")

    def renewing(self, request_id: str) -> None:
        """Check a lease that is about to be renewed."""
        believed = self.leases.get(request_id)
        if believed is not None and believed.process.clock() > believed.ends_at:
            self.tell(Invariant.OVERHELD, f"{request_id} is renewed after its max_hold")
        if believed is not None and believed.lease.current is LeaseState.DETACHED:
            self.tell(Invariant.HANDOVER, f"{request_id} is renewed after it was detached")

    def heard(self, request_id: str, token: int, *, refused: bool) -> None:
        """Check the reply to a renewal: the holder of a refused lease must know of the loss very soon.

        A refusal of a smaller token than the client has asked for meanwhile says nothing of the lease.
        """
        believed = self.leases.get(request_id)
        if believed is not None and not (refused and token < self.raised.get(request_id, 0)):
            shared = believed.weight < believed.capacity and request_id not in self.successors
            if refused and shared and believed.valid():
                self.tell(Invariant.SHARED, f"the renewal of {request_id} is refused while its lease is valid")
            process, told = believed.process, believed.told
            process.later(0.0, lambda: process.later(0.0, lambda: self._after_hearing(believed, told, refused)))

    def _after_hearing(self, believed: Believed, told: int, refused: bool) -> None:  # noqa: FBT001 - from a callback
        request_id = believed.lease.grant.request_id
        if believed.valid() and refused:
            self.tell(Invariant.LOSS, f"{request_id} believes in its lease after the store refused it")
        if believed.valid() and told:
            self.tell(Invariant.LOSS, f"{request_id} believes again in its lease after the notification of its loss")
        self._check_backed(believed)

    def crashed(self, process: Process) -> None:
        """Forget the leases of a process that has crashed."""
        for leases in self._current.values():
            leases[:] = [believed for believed in leases if believed.process is not process]

    def after_step(self, name: str) -> None:
        """Check that the store still keeps the leases that holders believe in."""
        for believed in self._current.get(name, ()):
            self._check_backed(believed)

    def _check_backed(self, believed: Believed) -> None:
        lease, process = believed.lease, believed.process
        if believed.valid():
            believed_until = process.world.time + (lease.valid_until - process.clock()) / process.rate
            excess = believed_until - self._kept_until(believed)
            if excess > GRANULARITY:
                self.tell(
                    Invariant.BACKED,
                    f"{lease.grant.request_id} believes in {lease.grant.name} {excess:.3f} s beyond its grant",
                )

    def _kept_until(self, believed: Believed) -> float:
        """Return until when the store keeps a lease or what became of it when it was handed over, in true time."""
        lease, request_id = believed.lease, believed.lease.grant.request_id
        # While it is being detached, the store may have raised it already, and the holder has no reply yet.
        token = 0 if believed.leaving else lease.grant.last
        until = self.keeps_until(lease.grant.name, request_id, token)
        while request_id in self.successors:
            request_id = self.successors[request_id]
            until = max(until, self.keeps_until(lease.grant.name, request_id, 0))
        return until

    # -- exclusion -----------------------------------------------------------------------------------------

    def after_event(self) -> None:
        """Check that no two holders believe at once in leases that exclude each other."""
        if self._crowded:
            for name, leases in list(self._crowded.items()):
                if len(leases) > 1:
                    self._check_exclusion(name, leases)
                if len(leases) < 2:
                    del self._crowded[name]

    def _check_exclusion(self, name: str, leases: list[Believed]) -> None:
        valid = [believed for believed in leases if believed.valid()]
        if sum(believed.weight for believed in valid) > min(believed.capacity for believed in leases):
            who = " and ".join(f"{each.lease.grant.request_id} (token {each.lease.token})" for each in valid)
            self.tell(Invariant.EXCLUSION, f"{name} is held by {who} at once")
            valid = valid[-1:]
        leases[:] = valid

    # -- loss ----------------------------------------------------------------------------------------------

    def _lost(self, believed: Believed, reason: str) -> None:
        lease, process = believed.lease, believed.process
        believed.told += 1
        self.trace(
            process.name, f"{lease.grant.name}: notified that the lease with token {lease.token} is lost: {reason}"
        )
        if believed.told > 1:
            self.tell(Invariant.LOSS, f"{lease.grant.request_id} was notified {believed.told} times")
        left = lease.valid_until - process.clock()
        if left < -SLACK and not believed.excused():
            self.tell(Invariant.LOSS, f"{lease.grant.request_id} was notified {-left:.3f} s after its deadline")
        if left > 0.0 and not believed.leaving and lease.grant.request_id not in self.successors:
            self.tell(
                Invariant.KEPT,
                f"{lease.grant.request_id} lost {lease.grant.name} {left:.3f} s before its deadline: {reason}",
            )
        elif self.healthy and lease.ends_at > process.clock() + SLACK:
            self.tell(
                Invariant.KEPT, f"{lease.grant.request_id} lost {lease.grant.name} though nothing was wrong: {reason}"
            )

    def _look_in_time(self, believed: Believed) -> None:
        """Check the lease after its deadline, again and again as renewals move the deadline."""
        lease, process = believed.lease, believed.process
        wait = lease.valid_until - process.clock() + 2 * SLACK
        process.later(max(wait, SLACK), lambda: self._when_due(believed))

    def _when_due(self, believed: Believed) -> None:
        lease, clock = believed.lease, believed.process.clock()
        if believed.over():
            return
        if believed.excused() or clock <= lease.valid_until + SLACK:
            self._look_in_time(believed)
        else:
            late = clock - lease.valid_until
            self.tell(
                Invariant.LOSS, f"{lease.grant.request_id} is not notified of its loss, {late:.3f} s after its deadline"
            )

    def check_end(self) -> None:
        """Check that the holder of each lost lease was notified once."""
        for request_id, believed in self.leases.items():
            lease = believed.lease
            if lease.lost_because and not lease.release_begun and not believed.process.crashed and believed.told != 1:
                self.tell(Invariant.LOSS, f"{request_id} was notified of its loss {believed.told} times")
