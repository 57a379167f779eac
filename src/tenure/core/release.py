"""The release of a lease: the local hand-off, the release request to the store, and the outcome.

A release is carried out even if it is cancelled or interrupted. A release request may be repeated: the store answers a
repeated request as it answered the first.
"""

import logging
from functools import partial

from tenure.contracts.deadlines import NEVER
from tenure.contracts.messages import ReleaseRequest
from tenure.contracts.store import SendsReleases
from tenure.core.access import StoreAccess
from tenure.core.lease import CLOSED, CoreLease, LeaseEvent, report_loss
from tenure.core.local_queue import LocalQueue, LocalQueues
from tenure.core.requests import MIN_REQUEST_TIME
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.escaping import quoted
from tenure.outcome import Outcome

log = logging.getLogger("tenure")

LOST_TIMEOUT = 0.5
"""For how many seconds from its beginning the release of a lost lease is repeated: short, for its holder must stop."""

COLLECT_EVERY = 0.1
"""How often the renewer looks for replies to releases that were sent, in seconds, if no other request takes them."""


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
        self._request_timeout = access.requests.request_timeout
        self._sending = access.store if isinstance(access.store, SendsReleases) else None
        self.sent: dict[str, tuple[CoreLease, float]] = {}
        """The leases whose release was sent and not answered, by the id of their request, and until when it may be."""
        self._under_way: set[CoreLease] = set()
        """The leases that a call releases: the renewer knows them no more. An interrupt may leave one that ended."""
        access.renewer.collect = self.collect
        self.abandoned = False
        """Whether this is a forked child of the process that acquired the leases."""

    async def release(self, lease: CoreLease, *, told: bool = False) -> Outcome:  # noqa: C901, PLR0911, PLR0912 - hot
        """Release a lease and return the outcome. Called again, it returns the same outcome.

        With `told`, somebody else than its holder releases it: if a `with` has entered it, it is lost first. Who enters
        one sets `body` and then looks whether the lease is released, so one of both sees the other.

        Raises ForkedLeaseError in a child of the process that acquired it.
        """
        if lease.outcome is not None:
            return lease.outcome
        if self.abandoned:
            # `abandon` disowns only leases that the renewer keeps. One that was lost before the fork may still have a
            # mutex that a thread of the parent held.
            lease.disown()
            raise lease.loss()
        left_queue = began_here = False
        try:
            if (queue := lease.local_queue) is not None and queue.linger and self.local_queues.linger_on(lease):
                return Outcome.RELEASED
            self._under_way.add(lease)  # before it leaves the renewer: a `close` finds it in one
            left_queue = queue is not None and self.local_queues.leave(lease)
            if left_queue or lease.begin_release():
                began_here = True
                if not left_queue:
                    if queue is not None and self.local_queues.hand_off(lease):
                        return Outcome.RELEASED
                    left_queue = True
                    self._renewer.discard(lease)
                if told and lease.body is not None:
                    self._tell(lease)
                began = self._runtime.now()
                until, release = began + self._request_timeout(lease.ttl), self._to_release(lease)
                try:
                    if not lease.awaited and self._send(lease, release, until):
                        return Outcome.RELEASED
                    outcome = await self._store.release(release, until)
                except StoreError as error:
                    return await self._runtime.finish(self._release_again(lease, error, began))
                return self._settle(lease, outcome)
        except GeneratorExit:
            raise
        except OutcomeUnknown as error:  # others have cancelled the task that repeats the release
            completing = partial(self.complete, lease, error, left_queue=left_queue)
            self._access.background_releases.add(completing, lease.grant.name)
        except BaseException as error:
            if told and lease.body is not None:
                self._tell(lease)
            await self._runtime.finish(self.complete(lease, error, left_queue=left_queue))
            raise
        finally:
            if began_here or lease.outcome is not None:  # else another call is releasing it
                self._under_way.discard(lease)
        return await self._released_by_another(lease)

    def _tell(self, lease: CoreLease) -> None:
        """Tell the holder that the lease is lost, because its client is closed. A callback may call `release`."""
        lease.teller = self._runtime.mark()
        try:
            if lease.lose(CLOSED, LeaseEvent.NOT_KEPT):
                report_loss(lease)
        finally:
            lease.teller = None

    def pending(self) -> bool:
        """Return whether the end of a release that has begun is still to come."""
        return bool(self.sent) or any(lease.outcome is None for lease in list(self._under_way))

    def _send(self, lease: CoreLease, release: ReleaseRequest, until: float) -> bool:
        """Send a release whose reply `_told` gets; False if the store cannot, or the lease ends too soon."""
        if self._sending is None or lease.valid_until < until:
            return False
        self.sent[release.request_id] = lease, until  # first: another thread may take the reply as soon as it is sent
        if not self._sending.send_release(lease.grant.request, release, until, partial(self._told, lease)):
            del self.sent[release.request_id]
            return False
        self._renewer.look_by(self._runtime.now() + COLLECT_EVERY)
        return True

    def _told(self, lease: CoreLease, outcome: Outcome | None) -> None:
        """Take the outcome of a release that was sent; without one, repeat the release in the background.

        After an interrupt by a signal handler it is called again, so it removes the lease last.
        """
        if lease.grant.request_id not in self.sent:  # the release was repeated meanwhile
            return
        if lease.outcome is None and outcome is None:
            unanswered = StoreUnavailable("the store did not answer the release")
            self._access.background_releases.add(partial(self._repeat_sent, lease, unanswered), lease.grant.name)
        elif lease.outcome is None and outcome is not None:
            self._settle(lease, outcome)
            if lease.lost_because:
                report_loss(lease)
        self.sent.pop(lease.grant.request_id, None)

    async def _repeat_sent(self, lease: CoreLease, unanswered: StoreUnavailable) -> None:
        if lease.outcome is None:
            await self._release_again(lease, unanswered, self._runtime.now())
            if lease.lost_because:
                report_loss(lease)

    def collect(self, now: float) -> float:
        """Take the replies to releases that were sent; return when to look again. Repeat what was not answered.

        Background releases for which no thread could be started are tried again, too.
        """
        if self.sent and self._sending is not None:
            self._sending.collect_replies()
            for lease, until in list(self.sent.values()):
                if until <= now or lease.outcome is not None:
                    self._told(lease, None)
        stalled = self._access.background_releases.go_on(), self._access.late_releases.go_on()
        return now + COLLECT_EVERY if self.sent or any(stalled) else NEVER

    async def end(self, until: float) -> None:
        """Wait for all releases that have begun, by a local instant; repeat in the background what was sent only."""
        while self.pending() and self._runtime.now() < until:
            self.collect(self._runtime.now())
            await self._runtime.sleep(0.002)
        self.collect(NEVER)

    async def complete(self, lease: CoreLease, interrupt: BaseException, *, left_queue: bool = False) -> None:
        """Complete a release that was interrupted; the lease may have been handed on in this process already.

        Repeating the steps that were done already does no harm.
        """
        began = self._runtime.now()
        self.sent.pop(lease.grant.request_id, None)  # its reply counts no more: the request is repeated below
        lease.begin_release()
        local_queue = lease.local_queue
        if isinstance(local_queue, LocalQueue) and not left_queue:
            self.local_queues.repair_after_interrupt(local_queue)
            successor = local_queue.lease
            if successor is not None and successor is not lease and successor.grant is lease.grant:
                self._renewer.replace(successor)
                self._renewer.replaced(successor)
                lease.settle(Outcome.RELEASED)
                if self._access.events is not None:
                    if successor.lingers_until == NEVER:
                        self._access.events.handed_on(lease)
                    else:
                        self._access.events.ended(lease, Outcome.RELEASED)
                return
        self._renewer.discard(lease)
        if lease.outcome is None:
            await self._release_again(lease, interrupt, began)
        elif self._access.events is not None:  # the interrupt may have come before the end was reported
            self._access.events.ended(lease, lease.outcome)

    def _to_release(self, lease: CoreLease) -> ReleaseRequest:
        grant = lease.grant
        request, keep = grant.request, lease.to_keep() if grant.free_at else 0
        return ReleaseRequest(request.name, request.request_id, grant.last, grant.unsure, keep)

    def _settle(self, lease: CoreLease, outcome: Outcome, repeated: ReleaseRequest | None = None) -> Outcome:
        """Note the outcome of a release by the store's reply to the request, or to one that was `repeated`.

        A lease that was lost is never RELEASED: its holder was told to stop, whatever the store still knew. If the
        store no longer knows a lease at a repeated request, and the lease cannot have run out, the first request was
        carried out or somebody revoked the lease before. A store that remembers revocations tells which.
        """
        if lease.lost_because:
            if outcome is Outcome.RELEASED:
                outcome = Outcome.EXPIRED
        elif repeated is not None and not outcome.kept and self._runtime.now() < lease.valid_until:
            grant = lease.grant
            longest = max(grant.longest_ttl, grant.request.ttl)  # after a revocation, the lease was not renewed
            outcome = Outcome.RELEASED if repeated.unrevoked_for >= longest else Outcome.UNKNOWN
        lease.settle(outcome)
        if self._access.events is not None:
            self._access.events.ended(lease, outcome)
        return outcome

    async def _released_by_another(self, lease: CoreLease) -> Outcome:
        """Wait for the outcome of a release by another thread or task; a second request could get another outcome."""
        if lease.teller is not None and lease.teller is self._runtime.mark():
            return Outcome.UNKNOWN  # that release waits for this call
        until = self._runtime.now() + 4 * self._request_timeout(lease.ttl) + 1.0
        while lease.outcome is None and self._runtime.now() < until:
            self.collect(self._runtime.now())
            await self._runtime.sleep(0.002)
        return lease.outcome or Outcome.UNKNOWN

    async def _release_again(self, lease: CoreLease, first: BaseException, began: float) -> Outcome:
        """Release again, after a first request that the store may or may not have carried out."""
        release, timeout = self._to_release(lease), self._request_timeout(lease.ttl)
        lost = lease.lost_because and not self._access.closed  # a client that is closed releases it at leisure
        try:
            if isinstance(first, StoreError) and not isinstance(first, StoreUnavailable):
                raise first
            if lost:
                outcome = await self._release_lost(release, first, began + LOST_TIMEOUT)
            else:
                outcome = await self._access.requests.send_up_to_three_times(
                    partial(self._store.release, release), timeout
                )
        except StoreError as error:
            level = logging.DEBUG if lost or self._access.closed else logging.WARNING
            log.log(
                level, "the lease of %r could not be released (%s); it ends at its ttl", lease.grant.name, quoted(error)
            )
            outcome = Outcome.UNKNOWN
            if isinstance(error, StoreUnavailable) and not lost:
                self._access.late_releases.repeat(
                    lambda: self._store.release(release, self._runtime.now() + timeout),
                    lease.grant.name,
                    lease.kept_until,
                )
        return self._settle(lease, outcome, release)

    async def _release_lost(self, release: ReleaseRequest, first: BaseException, give_up_at: float) -> Outcome:
        """Release a lost lease, to learn its outcome; repeat the request until `give_up_at`."""
        now = self._runtime.now()
        if now >= give_up_at and isinstance(first, StoreError):
            raise first
        until = max(give_up_at, now + MIN_REQUEST_TIME)
        return await self._access.requests.repeat_until(partial(self._store.release, release), until, give_up_at)
