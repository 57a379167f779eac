"""The session: one client at one store, with all that its locks share and the operations that the public API calls."""

import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from tenure.contracts.deadlines import DRIFT, EPSILON, micros
from tenure.contracts.limits import check_ttl
from tenure.contracts.messages import AdjustRequest, HolderView, NotGranted, Notification
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Forgetful, Store
from tenure.core.access import Settings, StoreAccess
from tenure.core.attempt import Attempt
from tenure.core.cells import Cells
from tenure.core.deadlocks import Actors, find_deadlocks
from tenure.core.lease import CoreLease, why_refused
from tenure.core.local_queue import LocalQueues
from tenure.core.notifications import Notifications
from tenure.core.release import Releases
from tenure.core.release_all import release_all_kept
from tenure.core.reservations import Reservations
from tenure.core.spec import LockSpec
from tenure.core.stop import Stop
from tenure.errors import StoreError, UsageError, Wait

log = logging.getLogger("tenure")

ASKED_AGAIN_FOR = 0.1
"""For how many seconds an extension is repeated: a connection that the server has closed just now fails at once."""

NO_LINGER = (
    "linger is not available: this store cannot tell this client that another client waits. Make the lock without "
    "linger, or use another store, such as redis://host."
)

NO_TOKENS = (
    "linger is not available: this store cannot reserve a fencing token for the next lease. Make the lock without "
    "linger, or use another store, such as redis://host."
)


class Session(StoreAccess):
    """One client at one store: its access, its local queues, and the operations of its locks."""

    def __init__(self, runtime: Runtime, store: Store, settings: Settings) -> None:
        """Prepare; the first operation opens the store."""
        super().__init__(runtime, store, settings, self.deliver)
        self.face: object = None
        """The client object. Its leases keep it alive through this, because the client handles forks and the exit."""
        self.releases = Releases(self)
        self.release = self.releases.release
        self.local_queues = LocalQueues(self, settings.budget, self.release)
        self.releases.local_queues = self.local_queues
        self.local_waiters = self.local_queues.waiting
        self.notifications = Notifications(self, self.local_queues)
        self.actors = Actors(self)
        self.cells = Cells(self)
        self.reservations = Reservations(runtime, self.mutex)

    def deliver(self, notification: Notification) -> None:
        """Take a notification from the store, which calls this through `Runtime.post`."""
        self.notifications.deliver(notification)

    # -- life ----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Release all leases that are still held, stop the renewer and close the store. Idempotent.

        It goes on while the store answers releases, and ends soon after the store stops answering.
        """
        if self.closed:
            return
        self.closed = True
        until = self.runtime.now() + 2 * self.operation_timeout
        await self.opening.settle(until)
        self.opened = False
        await self._dismiss_waiters(until)
        until = await release_all_kept(self, self.release, until)
        await self.background_releases.end(until)
        await self.late_releases.end(until)
        await self.renewer.stop(until)
        await self.runtime.settle(until)
        await self.store.close()

    async def _dismiss_waiters(self, until: float) -> None:
        """Wake all waiters, so that they see the client closed, and wait until they have left their queues."""
        self.local_queues.dismiss()
        for attempt in list(self.attempts.values()):
            attempt.dismiss()
        while self.attempts and self.runtime.now() < until:
            await self.runtime.sleep(0.002)

    def abandon(self) -> None:
        """Make every lease inert in a forked child, and drop the inherited connections."""
        self.releases.abandoned = True
        self.local_queues.abandon()
        for lease in self.renewer.kept():
            lease.disown()
        self.store.abandon()

    # -- operations ----------------------------------------------------------------------------------------

    def acquire(
        self, spec: LockSpec, timeout: float | None, owned: list[CoreLease] | None = None
    ) -> Coroutine[Any, Any, CoreLease | NotGranted]:
        """Acquire `spec`; return NotGranted, with the holders, after `timeout` seconds (0: ask once; None: for ever).

        Raises StoreError if the store cannot be asked; then nothing is held. A granted lease is in `owned` before it is
        returned, so that a caller that is interrupted in between can `give_back` the lease.
        """
        if owned is None:
            owned = []
        until = None if timeout is None else self.runtime.now() + timeout
        if self.opened and self.events is None and spec.key is not None and not spec.linger:  # the usual case
            return self.local_queues.acquire(spec, spec.key, until, owned, wait=timeout != 0)
        return self._acquire(spec, timeout, until, owned)

    async def _acquire(
        self, spec: LockSpec, timeout: float | None, until: float | None, owned: list[CoreLease]
    ) -> CoreLease | NotGranted:
        if not self.opened:
            await self.open(timeout, spec)
        asked_at = 0.0 if self.events is None else self.runtime.now()
        if spec.linger and not (self.channel or self.store.capabilities.tells):
            raise UsageError(NO_LINGER)
        if spec.key is not None:
            result = await self.local_queues.acquire(spec, spec.key, until, owned, wait=timeout != 0)
        else:
            result = await Attempt(self, spec, until, owned, wait=timeout != 0).run()
        if self.events is not None and isinstance(result, CoreLease):
            self.events.acquired(result, asked_at)
        return result

    async def give_back(self, owned: list[CoreLease]) -> None:
        """Release the leases of an acquisition whose caller was interrupted before it had them."""
        for lease in owned:
            lease.dropped = True  # first, so that no lease is renewed even if this is interrupted, too
        for lease in reversed(owned):
            await self.release(lease)

    def drop(self, owned: list[CoreLease]) -> None:
        """Stop renewing leases, so that they end at their ttl: `give_back` where nothing can be awaited."""
        for lease in owned:
            self.renewer.drop(lease)

    def take_up(self, spec: LockSpec, owned: list[CoreLease]) -> CoreLease | None:
        """Take up a lease that lingers, without a request; None if there is none, or `acquire` must be called."""
        if spec.key is None or self.events is not None:
            return None
        return self.local_queues.take_up(spec, spec.key, owned)

    async def extend(self, lease: CoreLease, ttl: float | None) -> None:
        """Renew a lease now, for `ttl` seconds (None: as before); later renewals are for the same ttl.

        Raises LeaseLost if the lease is lost, StoreError if the store did not answer (the deadline of the lease then
        stays as it was).
        """
        lease.check()
        await self.renew_now([lease], ttl)
        lease.check()

    async def renew_now(self, leases: Sequence[CoreLease], ttl: float | None) -> None:
        """Renew leases in one request, for `ttl` seconds (None: as before). The caller checks which leases are lost.

        Raises StoreError if the store did not answer; then the deadlines stay as they were. Raises UsageError if the
        store grants no lease for this ttl: all extensions come through here.
        """
        if ttl is not None:
            check_ttl(ttl, self.store.capabilities)
        sent = self.runtime.now()
        ttls = [lease.ttl if ttl is None else micros(ttl) for lease in leases]
        renewals = [lease.renewal(each) for lease, each in zip(leases, ttls, strict=True)]
        request_timeout = self.request_timeout(min(renewal.ttl for renewal in renewals))
        last_try = min(sent + ASKED_AGAIN_FOR, *(lease.valid_until for lease in leases))
        replies = await self.insist(lambda until: self.store.renew(renewals, until), sent + request_timeout, last_try)
        for lease, each, renewal, reply in zip(leases, ttls, renewals, replies, strict=True):
            if reply is not None:
                self.renewer.lose(lease, why_refused(reply, renewal))
            elif lease.renewed(sent, renewal.ttl):
                lease.ttl = each
                self.renewer.plan(lease)
                lease.note_contention(renewal)
        if ttl is not None:
            self._tell_what_max_hold_cuts_off(leases[0], ttl)

    def _tell_what_max_hold_cuts_off(self, lease: CoreLease, ttl: float) -> None:
        remaining = lease.remaining()
        if lease.ends_at <= lease.valid_until and 0.0 < remaining < ttl * (1.0 - DRIFT) - EPSILON:
            log.warning("extend(%g) of %r is cut short: max_hold ends the lease in %.1f s", ttl, lease.title, remaining)

    async def adjust(self, lease: CoreLease, *, weight: int = 0, owner: str = "") -> None:
        """Change a lease while it is held: to a smaller `weight` (0: no change) or another `owner` ("": no change).

        Raises LeaseLost if the lease is lost, StoreError if the store did not answer: then the lease may be changed or
        not, and calling again is safe. From the call on the holder must do with the smaller weight, whatever is raised.
        If the store has forgotten the lease, a renewal takes the lease up again as changed.
        """
        lease.check()
        if weight > lease.request.weight:
            raise UsageError(
                f"the lease of {lease.title!r} has weight {lease.request.weight} and cannot get the larger weight "
                f"{weight}: release it and acquire again"
            )
        lease.request = replace(
            lease.request, weight=weight or lease.request.weight, owner=owner or lease.request.owner
        )
        adjust = AdjustRequest(lease.name, lease.request_id, lease.last, weight, owner)
        refused = await self.persist(lambda until: self.store.adjust(adjust, until), self.request_timeout(lease.ttl))
        if refused is not None:  # the store may only have forgotten the lease: then a renewal takes it up as changed
            await self.extend(lease, None)
        lease.check()

    async def explain(self, name: str, not_granted: NotGranted) -> NotGranted:
        """Add to a NotGranted without holders for how long a lock delay still blocks the name, as the store says."""
        if not_granted.holders or not_granted.quarantine:
            return not_granted
        try:
            view = await self.inspect(name)
        except (StoreError, UsageError):
            return not_granted
        return replace(not_granted, blocked=micros(view.blocked_for))

    async def deadlocks(self) -> list[tuple[Wait, ...]]:
        """List the circles of contenders that wait for each other."""
        await self.open()
        return await find_deadlocks(self)

    async def resize(self, name: str, before: int, after: int) -> int:
        """Change the capacity of a name if it is `before` or nobody uses the name; return the capacity afterwards."""
        await self.open()
        request_timeout = self.operation_timeout
        return await self.persist(lambda until: self.store.resize(name, before, after, until), request_timeout)

    async def request_revocation(self, name: str) -> list[HolderView]:
        """Send a revocation request to the holders of a name; return those holders."""
        await self.open()
        asked = await self.store.request_revocation(name, self.runtime.now() + self.operation_timeout)
        for holder in asked:
            holder.read_metadata()
        return asked

    async def revoke(self, name: str, token: int = 0) -> list[HolderView]:
        """Revoke the leases of a name, or only that with the token; return their holders."""
        await self.open()
        victims = await self.store.revoke(name, self.runtime.now() + self.operation_timeout, token)
        for victim in victims:
            victim.read_metadata()
        return victims

    async def end_quarantine(self) -> float:
        """End the quarantine, so that the store grants again at once; return how many seconds of it were left."""
        if not isinstance(self.store, Forgetful):
            raise UsageError(
                "this store has no quarantine to end: only Redis, and a quorum of Redis, may forget leases."
            )
        await self.open()
        return await self.store.end_quarantine(self.runtime.now() + self.operation_timeout)

    def wake_all(self, stop: Stop) -> None:
        """Wake all waiters that were given `stop`, which then see that it is set."""
        self.local_queues.wake_all(stop)
        for attempt in list(self.attempts.values()):
            if attempt.waits_with(stop):
                attempt.dismiss()
