"""One client at one store: what all its locks share, and the operations that faces offer."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from holdfast.contracts.deadlines import DRIFT, EPSILON, micros
from holdfast.contracts.limits import check_ttl
from holdfast.contracts.messages import AdjustRequest, HolderView, NotGranted, Notification
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import Forgetful, Store
from holdfast.core.access import Settings, StoreAccess
from holdfast.core.attempt import Attempt
from holdfast.core.closing import release_all_kept
from holdfast.core.deadlocks import Actors, find_deadlocks
from holdfast.core.lease import CoreLease, why_refused
from holdfast.core.local_queue import LocalQueues
from holdfast.core.notifications import Notifications
from holdfast.core.release import Releases
from holdfast.core.reservations import Reservations
from holdfast.core.spec import LockSpec
from holdfast.core.stop import Stop
from holdfast.errors import StoreError, UsageError, Wait

log = logging.getLogger("holdfast")

NO_LINGER = (
    "linger is not to be had here: this store cannot tell this client that somebody else waits. Make the lock without "
    "linger, or use another store, such as redis://host."
)

NO_TOKENS = (
    "linger is not to be had here: in this store each holding has a fencing token of its own, and none can be put by "
    "for the next. Make the lock without linger, or use another store, such as redis://host."
)


class Session(StoreAccess):
    """One client at one store: its access, its local queues, and the operations of its locks."""

    def __init__(self, runtime: Runtime, store: Store, settings: Settings) -> None:
        """Prepare; nothing is opened yet."""
        super().__init__(runtime, store, settings, self.deliver)
        self.face: object = None
        """The client: kept alive by its leases, for it is the client that hears of a fork and of the end."""
        self.releases = Releases(self)
        self.release = self.releases.release
        self.local_queues = LocalQueues(self, settings.budget, self.release)
        self.releases.local_queues = self.local_queues
        self.local_waiters = self.local_queues.waiting
        self.notifications = Notifications(self, self.local_queues)
        self.actors = Actors(self)
        self.reservations = Reservations(runtime, self.mutex)

    def deliver(self, notification: Notification) -> None:
        """Take a notification from the store. Called where the runtime runs its code."""
        self.notifications.deliver(notification)

    # -- life ----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Release what is still held, stop the renewer, leave the store. Idempotent.

        It takes as long as the store goes on to release leases, and ends soon after that does so no more.
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
        await self.renewer.stop(until)
        await self.runtime.settle(until)
        await self.store.close()

    async def _dismiss_waiters(self, until: float) -> None:
        """Wake who waits, to find the client closed, and let them leave their queues."""
        self.local_queues.dismiss()
        for attempt in list(self.attempts.values()):
            attempt.dismiss()
        while self.attempts and self.runtime.now() < until:
            await self.runtime.sleep(0.002)

    def abandon(self) -> None:
        """In a forked child: make every lease inert, and drop what was inherited."""
        self.releases.abandoned = True
        self.local_queues.abandon()
        for lease in self.renewer.kept():
            lease.disown()
        self.store.abandon()

    # -- operations ----------------------------------------------------------------------------------------

    async def acquire(
        self, spec: LockSpec, timeout: float | None, owned: list[CoreLease] | None = None
    ) -> CoreLease | NotGranted:
        """Hold `spec`, or say who does after `timeout` seconds (0: ask once; None: wait for ever).

        Raises StoreError if the store cannot be asked; then nothing is held. What is granted is in `owned` before it is
        returned, so that a caller who is interrupted in between can `give_back` that.
        """
        if owned is None:
            owned = []
        until = None if timeout is None else self.runtime.now() + timeout
        if not self.opened:
            await self.open(timeout, spec)
        asked_at = 0.0 if self.events is None else self.runtime.now()
        if spec.linger and not self.channel:
            raise UsageError(NO_LINGER)
        if spec.key is not None:
            result = await self.local_queues.acquire(spec, spec.key, until, owned, wait=timeout != 0)
        else:
            result = await Attempt(self, spec, until, owned, wait=timeout != 0).run()
        if self.events is not None and isinstance(result, CoreLease):
            self.events.acquired(result, asked_at)
        return result

    async def give_back(self, owned: list[CoreLease]) -> None:
        """Release what was granted to an acquisition whose caller was interrupted before it had the lease."""
        for lease in owned:
            lease.dropped = True  # at once, and whatever comes: it is renewed no more
        for lease in reversed(owned):
            await self.release(lease)

    def drop(self, owned: list[CoreLease]) -> None:
        """Do so where nothing can be awaited any more: they are renewed no more, and end at their ttl."""
        for lease in owned:
            self.renewer.drop(lease)

    def take_up(self, spec: LockSpec, owned: list[CoreLease]) -> CoreLease | None:
        """Return a lease that lingers, at no cost; None if there is none, or it is better to ask in the usual way."""
        if spec.key is None or self.events is not None:
            return None
        return self.local_queues.take_up(spec, spec.key, owned)

    async def extend(self, lease: CoreLease, ttl: float | None) -> None:
        """Renew now, for `ttl` seconds (None: as before), from now on.

        Raises LeaseLost if the lease is lost, StoreError if the store did not answer (the lease then lives as long
        as it did before).
        """
        lease.check()
        await self.renew_now([lease], ttl)
        lease.check()

    async def renew_now(self, leases: Sequence[CoreLease], ttl: float | None) -> None:
        """Renew leases in one request, for `ttl` seconds (None: as before). Whoever asks looks which of them are lost.

        Raises StoreError if the store did not answer; then they live as long as before. UsageError if the store grants
        no lease for this ttl: every way to a longer lease comes through here.
        """
        if ttl is not None:
            check_ttl(ttl, self.store.capabilities)
        sent = self.runtime.now()
        contended = [lease.ttl if ttl is None else micros(ttl) for lease in leases]
        renewals = [lease.renewal(each) for lease, each in zip(leases, contended, strict=True)]
        request_timeout = self.request_timeout(min(renewal.ttl for renewal in renewals))
        replies = await self.store.renew(renewals, sent + request_timeout)
        for lease, each, renewal, reply in zip(leases, contended, renewals, replies, strict=True):
            if reply is not None:
                self.renewer.lose(lease, why_refused(reply, renewal))
            elif lease.renewed(sent, renewal.ttl):
                lease.ttl = each
                self.renewer.plan(lease)
                lease.note_contention(renewal)
        if ttl is not None:
            self._tell_what_max_hold_cuts_off(leases[0], ttl)

    def _tell_what_max_hold_cuts_off(self, lease: CoreLease, ttl: float) -> None:
        left = lease.remaining()
        if lease.ends_at <= lease.valid_until and 0.0 < left < ttl * (1.0 - DRIFT) - EPSILON:
            log.warning(
                "extend(%g) of %r: max_hold ends the lease in %.1f s, whatever is renewed", ttl, lease.title, left
            )

    async def adjust(self, lease: CoreLease, *, weight: int = 0, owner: str = "") -> None:
        """Change a lease that goes on: to a smaller `weight` (0: as it is), or to another `owner` ("": as it is).

        Raises LeaseLost if the lease is lost, StoreError if the store did not answer: then it may be changed or not,
        and asking again is safe. From the call on the holder must do with the smaller weight, whatever is raised; and
        so the lease is taken up again, should the store have forgotten it.
        """
        lease.check()
        if weight > lease.request.weight:
            raise UsageError(
                f"a lease of weight {lease.request.weight} can't become one of {weight}: it may only get lighter"
            )
        lease.request = replace(
            lease.request, weight=weight or lease.request.weight, owner=owner or lease.request.owner
        )
        adjust = AdjustRequest(lease.name, lease.request_id, lease.last, weight, owner)
        refused = await self.persist(lambda until: self.store.adjust(adjust, until), self.request_timeout(lease.ttl))
        if refused is not None:  # unless the store has only forgotten it, and takes it as it is now
            await self.extend(lease, None)
        lease.check()

    async def explain(self, name: str, left: NotGranted) -> NotGranted:
        """Return what is known of why a name was not granted in time: it is asked for if nobody holds the name."""
        if left.holders or left.quarantine:
            return left
        try:
            view = await self.inspect(name)
        except (StoreError, UsageError):
            return left
        return replace(left, blocked=micros(view.blocked_for))

    async def deadlocks(self) -> list[tuple[Wait, ...]]:
        """List who waits for each other in a circle."""
        await self.open()
        return await find_deadlocks(self)

    async def resize(self, name: str, before: int, after: int) -> int:
        """Change the capacity of a name if it is `before`, or if nobody uses it; return what it is now."""
        await self.open()
        request_timeout = self.operation_timeout
        return await self.persist(lambda until: self.store.resize(name, before, after, until), request_timeout)

    async def request_revocation(self, name: str) -> list[HolderView]:
        """Ask those who hold a name to let go; return who was asked."""
        await self.open()
        asked = await self.store.request_revocation(name, self.runtime.now() + self.operation_timeout)
        for holder in asked:
            holder.read_metadata()
        return asked

    async def revoke(self, name: str, token: int = 0) -> list[HolderView]:
        """Take a name by force, from all its holders or from that of a token."""
        await self.open()
        victims = await self.store.revoke(name, self.runtime.now() + self.operation_timeout, token)
        for victim in victims:
            victim.read_metadata()
        return victims

    async def end_quarantine(self) -> float:
        """Have the store grant again at once."""
        if not isinstance(self.store, Forgetful):
            raise UsageError(
                "this store is never quarantined: only Redis, and a quorum of it, may forget who holds what."
            )
        await self.open()
        return await self.store.end_quarantine(self.runtime.now() + self.operation_timeout)

    def wake_all(self, stop: Stop) -> None:
        """Have all that wait with `stop` look at it."""
        self.local_queues.wake_all(stop)
        for attempt in list(self.attempts.values()):
            if attempt.waits_with(stop):
                attempt.dismiss()

    # -- for the protocol ----------------------------------------------------------------------------------
