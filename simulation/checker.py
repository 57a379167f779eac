"""Everything that is checked in one run, and what was found."""

from dataclasses import dataclass, field

from holdfast.core.lease import CoreLease
from holdfast.errors import StoreError
from holdfast.runtimes.simulated import Process, World
from simulation.at_clients import SLACK, Believed, LeaseChecks
from simulation.at_store import StoreChecks
from simulation.invariants import Invariant, Trace, Violation
from simulation.node import Node
from simulation.resource import Resource


@dataclass
class Checker:
    """Collects what is wrong."""

    world: World
    trace: Trace
    prompt_within: float = 0.0
    healthy: bool = False
    """Whether nothing goes wrong in this run but that waiters are cancelled and clients die."""
    node: Node | None = None
    violations: list[Violation] = field(default_factory=list[Violation])
    resources: dict[str, Resource] = field(default_factory=dict[str, Resource])
    _leaving: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        """Set up both sides."""
        self.store = StoreChecks(self.world, self.broken, self.trace, self.prompt_within)
        self.clients = LeaseChecks(self.world, self.broken, self.trace, self.healthy)

    def broken(self, invariant: Invariant, text: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(invariant, self.world.time, text))
        self.trace("CHECK", f"{invariant}: {text}")

    def after_step(self, node: Node, name: str) -> None:
        """Look at what a node stored."""
        self.store.after_step(node, name)
        self.clients.after_step(name)

    def failed(self, text: str) -> None:
        """Note that a node failed by itself."""
        self.broken(Invariant.NO_ERRORS, text)

    def leaving(self, request_id: str) -> None:
        """Note that a leave was sent."""
        self._leaving.add(request_id)

    def entered(self, believed: Believed) -> None:
        """Follow a lease from now on."""
        lease = believed.lease
        self.store.settled(lease.request_id)
        if lease.request_id in self.clients.leases and self.node is not None:
            self.store.check_turn(self.node, lease.name, lease.request_id)
        self.clients.entered(believed)

    def ended_without_lease(self, request_id: str, *, engaged: bool) -> None:
        """Note that an acquisition ended without a lease; `engaged`: the store may know of it."""
        self.store.settled(request_id)
        if engaged and request_id not in self._leaving:
            self.broken(Invariant.CLEAN, f"{request_id} ended without a lease, and has not left the store")

    def crashed(self, process: Process) -> None:
        """Forget the beliefs of a process that is no more."""
        self.clients.crashed(process)

    def check_lingering(self, process: Process, lease: CoreLease) -> None:
        """Look whether a lease lingers for too long, or before somebody who waits."""
        late = process.clock() - lease.lingers_until
        if late > SLACK and not Believed(process, lease, 1, 1).excused():
            self.broken(Invariant.OVERHELD, f"{lease.request_id} lingers {late:.3f} s too long")
        elif self.node is not None:
            self.store.check_lingering(self.node, lease.name, lease.request_id)

    def check_end(self) -> None:
        """Look at everything that can be told only when all is over."""
        self.clients.check_end()
        for name, resource in self.resources.items():
            if resource.value != resource.accepted:
                lost = f"{resource.accepted} updates were accepted, and {resource.value} are left"
                self.broken(Invariant.FENCE, f"{name}: {lost}")
        for task, error in self.world.errors:
            if not (task.endswith("/finish") and isinstance(error, StoreError)):  # whoever began it is gone
                self.broken(Invariant.NO_ERRORS, f"{task} ended by {error!r}")
