"""The handles that simulated clients pass on: leases that are detached by one client and adopted by others."""

import random
from dataclasses import dataclass, field
from typing import Any

from simulation.at_clients import Believed
from simulation.checker import Checker
from simulation.invariants import Invariant
from simulation.network import Link
from simulation.runtime import Cancelled, Process, SimTask
from tenure.contracts.handles import Handle
from tenure.contracts.owner_metadata import read_metadata
from tenure.core import handover
from tenure.core.lease import CoreLease, LeaseState
from tenure.core.session import Session
from tenure.errors import LeaseLost, LockTimeout, StoreError
from tenure.outcome import Outcome

DETACHED = 0.6
"""The share of leases that are detached instead of released."""

ADOPTING = 0.5
"""The share of rounds that adopt a lease, if there are handles."""

RECENT = 3
"""From how many handles an adopter chooses: the last ones, of which most leases have not ended."""


@dataclass(slots=True)
class Handles:
    """All handles of a run. A handle stays, so that several adopt its lease, at once or one after another."""

    passed_on: list[Handle] = field(default_factory=list[Handle])


class Handovers:
    """The rounds of one client, which detaches leases and adopts them."""

    def __init__(self, process: Process, session: Session, link: Link, checker: Checker, handles: Handles) -> None:
        """Share `handles` with the other clients."""
        self._process = process
        self._session = session
        self._link = link
        self._checker = checker
        self._handles = handles

    async def detach(self, believed: Believed, rng: random.Random) -> bool:
        """Detach a lease, and pass its handle on; return False if the holder is to release it."""
        lease, ttl = believed.lease, rng.choice((None, 1.0, 3.0))
        task = self._process.start(handover.detach(self._session, lease, ttl, ""), f"{self._process.name}/detach")
        self._cancel(task, rng)
        believed.leaving = True
        try:
            handle = await task.result
        except (Cancelled, LeaseLost, StoreError) as error:
            self._checker.trace(self._process.name, f"{lease.grant.request_id} is not detached: {error!r}")
            return False
        if lease.trusted() or lease.current is not LeaseState.DETACHED:
            self._broken(f"{lease.grant.request_id} is detached, and its client still takes it for its own")
        if await self._session.release(lease) is not Outcome.DETACHED:
            self._broken(f"{lease.grant.request_id} is released after it was detached")
        self._handles.passed_on.append(handle)
        self._link.happened["lease detached"] += 1
        return True

    async def adopt(self, rng: random.Random) -> Believed | None:
        """Adopt a lease by one of the last handles; return it, or None if that failed."""
        handle = rng.choice(self._handles.passed_on[-RECENT:])
        ttl, timeout = rng.choice((None, 0.3, 1.0, 3.0)), rng.choice((None, None, 0.0, 1.0))
        owned: list[CoreLease] = []
        work = handover.adopt(self._session, handle, handle.name, ttl=ttl, timeout=timeout, owned=owned)
        task = self._process.start(work, f"{self._process.name}/adopt")
        self._cancel(task, rng)
        try:
            lease = await task.result
        except (Cancelled, LeaseLost, LockTimeout, StoreError) as error:
            self._session.drop(owned)
            self._checker.trace(self._process.name, f"{handle.request_id} is not adopted: {error!r}")
            self._link.happened[f"adoption failed: {type(error).__name__}"] += 1
            if isinstance(error, LeaseLost) and not owned:
                self._check_refusal(handle, task.note.split())
            return None
        self._link.happened["lease adopted"] += 1
        return Believed(self._process, lease, handle.weight, handle.capacity)

    def _cancel(self, task: SimTask[Any], rng: random.Random) -> None:
        if self._link.faults.cancel and rng.random() < self._link.faults.cancel:
            task.cancel_at = rng.randint(1, 8)

    def _check_refusal(self, handle: Handle, successors: list[str]) -> None:
        """Check that a lease whose adoption was refused has ended, or that another client has adopted it."""
        node = self._checker.node
        if node is None:
            return
        for holder in node.state(handle.name).holders:
            owner, ended = read_metadata(holder.owner), holder.expires_at <= node.clock()
            if node.keeps_own_time:
                ended = node.keeps_until(handle.name, holder.request_id, 0) <= self._checker.world.time
            if owner.handle == handle.request_id and owner.adopted in ("", *successors) and not ended:
                self._broken(f"{handle.request_id} is refused to its adopter, though {holder.request_id} has not ended")

    def _broken(self, text: str) -> None:
        self._checker.broken(Invariant.HANDOVER, text)
