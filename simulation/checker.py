"""All checks of one run, and the violations that they found."""

from dataclasses import dataclass, field

from simulation.at_clients import SLACK, Believed, LeaseChecks
from simulation.at_store import StoreChecks
from simulation.invariants import Invariant, Trace, Violation
from simulation.node import Node
from simulation.resource import Resource
from simulation.runtime import Process, World
from tenure.core.lease import CoreLease
from tenure.errors import StoreError


@dataclass
class Checker:
    """Runs the checks and collects their violations."""

    world: World
    trace: Trace
    prompt_within: float = 0.0
    healthy: bool = False
    """Whether the only faults of this run are cancelled waiters and clients that die."""
    node: Node | None = None
    violations: list[Violation] = field(default_factory=list[Violation])
    resources: dict[str, Resource] = field(default_factory=dict[str, Resource])
    _withdrawing: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        """Set up the checks of the store and of the clients."""
        self.store = StoreChecks(self.world, self.broken, self.trace, self.prompt_within)
        self.clients = LeaseChecks(self.world, self.broken, self.trace, self.healthy)
        self.clients.successors = self.store.successors

    def broken(self, invariant: Invariant, text: str) -> None:
        """Record a violation."""
        self.violations.append(Violation(invariant, self.world.time, text))
        self.trace("CHECK", f"{invariant}: {text}")

    def after_step(self, node: Node, name: str) -> None:
        """Check the state that a node stored."""
        self.store.after_step(node, name)
        self.clients.after_step(name)

    def failed(self, text: str) -> None:
        """Record that a node failed, without a fault of the plan."""
        self.broken(Invariant.NO_ERRORS, text)

    def withdrawing(self, request_id: str) -> None:
        """Record that a withdraw request was sent."""
        self._withdrawing.add(request_id)

    def entered(self, believed: Believed, joined: float) -> None:
        """Follow a lease from now on. Its contender began to acquire it at `joined`, in true time."""
        lease = believed.lease
        self.store.settled(lease.grant.request_id)
        if self.node is not None:
            self.store.check_fairness(self.node, lease.grant.name, lease.grant.request_id, joined)
        self.clients.entered(believed)

    def ended_without_lease(self, request_id: str, *, engaged: bool) -> None:
        """Record that an acquisition ended without a lease. `engaged` tells whether the store may know its request."""
        self.store.settled(request_id)
        if engaged and request_id not in self._withdrawing:
            self.broken(Invariant.CLEAN, f"{request_id} ended without a lease, and was not withdrawn")

    def released(self, name: str, request_id: str) -> None:
        """Check, where the store forgets nothing, that a lease has ended there that the client was told is released."""
        if self.healthy and self.node is not None and self.node.state(name).find_holder(request_id) is not None:
            self.broken(Invariant.CLEAN, f"the release of {request_id} was not carried out, though it was told to be")

    def crashed(self, process: Process) -> None:
        """Forget the leases of a process that has crashed."""
        self.clients.crashed(process)

    def check_lingering(self, process: Process, lease: CoreLease) -> None:
        """Check that a lease lingers neither for too long nor while a waiter waits."""
        late = process.clock() - lease.lingers_until
        if late > SLACK and not Believed(process, lease, 1, 1).excused():
            self.broken(Invariant.OVERHELD, f"{lease.grant.request_id} lingers {late:.3f} s too long")
        elif self.node is not None:
            self.store.check_lingering(self.node, lease.grant.name, lease.grant.request_id)

    def check_end(self) -> None:
        """Run the checks that need a finished run."""
        self.clients.check_end()
        for name, resource in self.resources.items():
            if resource.value != resource.accepted:
                lost = f"{resource.accepted} updates were accepted, but only {resource.value} are in the resource"
                self.broken(Invariant.FENCE, f"{name}: {lost}")
        for task, error in self.world.errors:
            if not (task.endswith("/finish") and isinstance(error, StoreError)):  # the task that started it has ended
                self.broken(Invariant.NO_ERRORS, f"{task} ended with {error!r}")
