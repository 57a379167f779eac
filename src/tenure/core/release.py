"""The release of a lease: the local hand-off, the release request to the store, and the outcome.

A release is carried out even if it is cancelled or interrupted. A release request may be repeated: the store answers a
repeated request as it answered the first.
"""

import logging

from tenure.contracts.messages import ReleaseRequest
from tenure.core.access import BRIEF, StoreAccess
from tenure.core.lease import CoreLease
from tenure.core.local_queue import LocalQueue, LocalQueues
from tenure.errors import StoreError, StoreUnavailable
from tenure.escaping import quoted
from tenure.outcome import Outcome

log = logging.getLogger("tenure")

LOST_TIMEOUT = 0.5
"""For how many seconds from its beginning the release of a lost lease is repeated: short, for its holder must stop."""


class Releases:
    """The releases of one client."""

    local_queues: LocalQueues
    """Set by the session after both are made, because local queues release leases too."""

    def __init__(self, access: StoreAccess) -> None:
        """Prepare to release leases of `access`."""
        self._access = access
        self._runtime = access.runtime
        self._store = access.store
        self._renewer = access.renewer
        self.abandoned = False
        """Whether this is a forked child of the process that acquired the leases."""

    async def release(self, lease: CoreLease) -> Outcome:
        """Release a lease and return the outcome. Called again, it returns the same outcome.

        Raises ForkedLeaseError in a child of the process that acquired it.
        """
        if lease.outcome is not None:
            return lease.outcome
        if self.abandoned:
            # `abandon` disowns only leases that the renewer keeps. One that was lost before the fork may still have a
            # mutex that a thread of the parent held.
            lease.disown()
            raise lease.loss()
        left_queue = False
        try:
            if lease.linger and self.local_queues.linger_on(lease):
                return Outcome.RELEASED
            left_queue = self.local_queues.leave(lease)
            if left_queue or lease.let_it_go():
                if not left_queue:
                    if lease.local_queue is not None and self.local_queues.hand_off(lease):
                        return Outcome.RELEASED
                    left_queue = True
                    self._renewer.discard(lease)
                access, ttl, began = self._access, lease.ttl, self._runtime.now()
                timeout = access.operation_timeout if ttl >= access.ample_ttl else access.request_timeout(ttl)
                try:
                    outcome = await self._store.release(self._to_release(lease), began + timeout)
                except StoreError as error:
                    return await self._runtime.finish(self._release_again(lease, error, began))
                return self._settle(lease, outcome)
        except GeneratorExit:
            raise
        except BaseException as error:
            await self._runtime.finish(self.complete(lease, error, left_queue=left_queue))
            raise
        return await self._released_by_another(lease)

    async def complete(self, lease: CoreLease, interrupt: BaseException, *, left_queue: bool = False) -> None:
        """Complete a release that was interrupted; the lease may have been handed on in this process already.

        Repeating the steps that were done already does no harm.
        """
        began = self._runtime.now()
        lease.let_it_go()
        local_queue = lease.local_queue
        if isinstance(local_queue, LocalQueue) and not left_queue:
            self.local_queues.mend(local_queue)
            successor = local_queue.lease
            if successor is not None and successor is not lease and successor.request_id == lease.request_id:
                self._renewer.replace(successor)
                self._renewer.replaced(successor)
                lease.settle(Outcome.RELEASED)
                return
        self._renewer.discard(lease)
        if lease.outcome is None:
            await self._release_again(lease, interrupt, began)

    def _to_release(self, lease: CoreLease) -> ReleaseRequest:
        request, keep = lease.request, lease.to_keep() if lease.free_at else 0
        return ReleaseRequest(request.name, request.request_id, lease.last, lease.unsure, keep)

    def _settle(self, lease: CoreLease, outcome: Outcome) -> Outcome:
        if outcome is Outcome.EXPIRED and not lease.lost_because and self._runtime.now() < lease.valid_until:
            outcome = Outcome.RELEASED  # the store has forgotten the lease, as in a failover; nobody held it since
        lease.settle(outcome)
        if self._access.events is not None:
            self._access.events.released(lease, outcome)
        return outcome

    async def _released_by_another(self, lease: CoreLease) -> Outcome:
        """Wait for the outcome of a release by another thread or task; a second request could get another outcome."""
        until = self._runtime.now() + 4 * self._access.request_timeout(lease.ttl) + 1.0
        while lease.outcome is None and self._runtime.now() < until:
            await self._runtime.sleep(0.002)
        return lease.outcome or Outcome.UNKNOWN

    async def _release_again(self, lease: CoreLease, first: BaseException, began: float) -> Outcome:
        """Release again, after a first request that the store may or may not have carried out."""
        release, timeout = self._to_release(lease), self._access.request_timeout(lease.ttl)
        try:
            if isinstance(first, StoreError) and not isinstance(first, StoreUnavailable):
                raise first
            if lease.lost_because:
                outcome = await self._release_lost(release, first, began + LOST_TIMEOUT)
            else:
                outcome = await self._access.persist(lambda until: self._store.release(release, until), timeout)
        except StoreError as error:
            level = logging.DEBUG if lease.lost_because or self._access.closed else logging.WARNING
            log.log(level, "the lease of %r could not be released (%s); it ends at its ttl", lease.name, quoted(error))
            outcome = Outcome.UNKNOWN
            if isinstance(error, StoreUnavailable) and not lease.lost_because:
                self._access.late_releases.repeat(
                    lambda: self._store.release(release, self._runtime.now() + timeout), lease.name, lease.kept_until
                )
        if not outcome.kept and not lease.lost_because and self._runtime.now() < lease.valid_until:
            outcome = Outcome.RELEASED  # the lease cannot have run out yet: the first request was carried out
        return self._settle(lease, outcome)

    async def _release_lost(self, release: ReleaseRequest, first: BaseException, give_up_at: float) -> Outcome:
        """Release a lost lease, to learn its outcome; repeat the request until `give_up_at`."""
        now = self._runtime.now()
        if now >= give_up_at and isinstance(first, StoreError):
            raise first
        until = max(give_up_at, now + BRIEF)
        return await self._access.insist(lambda until: self._store.release(release, until), until, give_up_at)
