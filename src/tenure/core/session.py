"""The session: one client at one store, with all that its locks share and the operations that the public API calls."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any

from tenure.contracts.deadlines import DRIFT, EPSILON, micros
from tenure.contracts.findings import Report, Unseen
from tenure.contracts.limits import check_ttl
from tenure.contracts.messages import AdjustRequest, HolderView, NameView, NotGranted, Notification
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Examinable, Forgetful, Store, renew_together
from tenure.core.access import StoreAccess
from tenure.core.attempt import Attempt
from tenure.core.cells import Cells
from tenure.core.deadlocks import Actors, find_deadlocks
from tenure.core.lease import HANDED_ON, CoreLease, why_refused
from tenure.core.local_queue import LocalQueues
from tenure.core.notifications import Notifications
from tenure.core.release import Releases
from tenure.core.release_all import release_all_kept
from tenure.core.requests import Settings
from tenure.core.reservations import Reservations
from tenure.core.spec import LockSpec
from tenure.core.stop import Stop
from tenure.errors import StoreError, StoreUnavailable, UsageError, Wait
from tenure.explanation import Explanation

log = logging.getLogger("tenure")

EXPLAIN_TIMEOUT = 0.2
"""For how many seconds the store is asked at most, once a wait has timed out, why the name was not granted."""

ASKED_AGAIN_FOR = 0.1
"""For how many seconds an extension is repeated: a connection that the server has closed just now fails at once."""

DRAIN_EVERY = 0.01
"""How often a client that is being drained looks whether all its leases are released, in seconds."""

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
        self.wait_for_release = settings.wait_for_release
        """Whether the end of a `with` waits for the reply to its release, unless the lock says otherwise."""
        self.releases = Releases(self)
        self.release = self.releases.release
        self.local_queues = LocalQueues(self, settings.fairness_count, self.release)
        self.releases.local_queues = self.local_queues
        self.local_waiters = self.local_queues.waiting
        self.notifications = Notifications(self, self.local_queues)
        self.actors = Actors(self)
        self.cells = Cells(self)
        if self.recorder is not None:
            self.recorder.change = self.cells.change
        self.reservations = Reservations(runtime, self.mutex)
        self._closing = False
        """Whether the session is being closed, or was."""

    def deliver(self, notification: Notification) -> None:
        """Take a notification from the store, which calls this through `Runtime.post`."""
        self.notifications.deliver(notification)

    # -- life ----------------------------------------------------------------------------------------------

    async def close(self, by: object = None) -> None:
        """Release all leases that have not ended, also dropped ones, stop the renewer and close the store. Idempotent.

        A body that still runs is told that its lease is lost, unless it is one of `by`, the mark of the thread or task
        that closes the client. At the end of the interpreter or an event loop that is None, and nobody is told.
        It goes on while the store answers releases, and ends soon after the store stops answering. After a
        cancellation, which comes with the end of an event loop, it can be called again.
        """
        if self._closing:
            return
        self._closing = True
        try:
            await self._close(by)
        except BaseException:
            self._closing = False
            raise

    async def _close(self, by: object) -> None:
        self.closed, self.acquires = True, False  # before waiters are woken, so that each of them finds it
        until = self.runtime.now() + 2 * self.requests.operation_timeout
        await self.opening.settle(until)
        was_open, self.opened = self.opened, False  # whatever needs the store from now on is refused by `open`
        await self._dismiss_waiters(until)
        self.renewer.do_chores()
        until = await release_all_kept(self, self.release, until, by)
        await self.releases.end(until)
        await self.background_releases.end(until)
        await self.late_releases.end(until)
        await self.renewer.stop(until)
        if self.recorder is not None:
            await self.recorder.end(until, write=was_open)
        await self.runtime.settle(until)
        await self.store.close()
        if self.events is not None:
            self.events.closed()

    async def drain(self, timeout: float) -> bool:
        """Acquire nothing new, and wait for `timeout` seconds until all leases are released; return whether they are.

        Waiters get Stopped, and leave their queues. Each holder gets a revocation request. The terms of leaders are
        lost here first, and then handed on: at once, or when the `with` that entered a term is left.
        """
        until = self.runtime.now() + timeout
        self.draining, self.acquires = True, False  # before waiters are woken, so that each of them finds it
        await self._dismiss_waiters(until)
        self.local_queues.end_all_lingering()
        terms: list[CoreLease] = []
        while True:
            held = self.renewer.kept()
            for lease in held:
                lease.request_revocation()
                if lease.grant.leads:
                    terms.append(lease)
                    self._hand_leadership_on(lease)
            self.releases.collect(self.runtime.now())
            released = not (held or self.attempts or self.releases.pending()) and all(each.outcome for each in terms)
            if released or self.runtime.now() >= until:
                break
            await self.runtime.sleep(min(DRAIN_EVERY, max(0.001, until - self.runtime.now())))
        return released

    def _hand_leadership_on(self, lease: CoreLease) -> None:
        """End a term: here first, so that its body stops, then in the store. A body that goes on keeps the name."""
        if self.renewer.lose(lease, HANDED_ON) is not None and lease.body is None:
            self.background_releases.add(partial(self.release, lease), lease.grant.name)

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
        self.releases.sent.clear()
        self.local_queues.abandon()
        for lease in self.renewer.unreleased():
            lease.disown()
        self.store.abandon()

    # -- operations ----------------------------------------------------------------------------------------

    def acquire(
        self, spec: LockSpec, timeout: float | None, owned: list[CoreLease] | None = None, *, quiet: bool = False
    ) -> Coroutine[Any, Any, CoreLease | NotGranted]:
        """Acquire `spec`; return NotGranted, with the holders, after `timeout` seconds (0: ask once; None: for ever).

        Raises StoreError if the store cannot be asked; then nothing is held. A granted lease is in `owned` before it is
        returned, so that a caller that is interrupted in between can `give_back` the lease. `quiet` makes no event of a
        name that is not free, because another request follows.
        """
        if owned is None:
            owned = []
        until = None if timeout is None else self.runtime.now() + timeout
        plan = self.plans.get(spec.plan_key)
        if plan is not None and (key := plan.usual_key) is not None and self.opened:
            return self.local_queues.acquire(spec, key, plan, until, owned, timeout != 0)
        acquire = partial(self._acquire, spec, timeout, until, owned)
        if self.events is None:
            return acquire()
        return self.events.follow(spec, acquire, waits=timeout != 0, quiet=quiet)

    async def _acquire(
        self, spec: LockSpec, timeout: float | None, until: float | None, owned: list[CoreLease]
    ) -> CoreLease | NotGranted:
        if not self.opened:
            await self.open_within(timeout, spec)
        if spec.linger and not (self.channel or self.store.capabilities.notifies_contention):
            raise UsageError(NO_LINGER)
        plan = self.plan_of(spec)
        if (key := spec.key) is not None:
            return await self.local_queues.acquire(spec, key, plan, until, owned, timeout != 0)
        return await Attempt(self, spec, plan, until, owned, timeout != 0).run()

    async def give_back(self, owned: list[CoreLease]) -> None:
        """Release the leases of an acquisition whose caller was interrupted before it had them."""
        for lease in owned:
            lease.dropped = True  # first, so that no lease is renewed even if this is interrupted, too
        for lease in reversed(owned):
            await self.release(lease)

    def release_later(self, work: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
        """Run the release of `name` in the background. A signal handler or the garbage collector may call this."""
        self.renewer.soon(partial(self.background_releases.add, work, name))

    def drop(self, owned: list[CoreLease]) -> None:
        """Stop renewing leases, so that they end at their ttl: `give_back` where nothing can be awaited."""
        self.renewer.drop(tuple(owned))

    def take_up(self, spec: LockSpec, owned: list[CoreLease]) -> CoreLease | None:
        """Take up a lease that lingers, without a request; None if there is none, or `acquire` must be called."""
        if self.events is not None or (key := spec.key) is None:
            return None
        return self.local_queues.take_up(spec, key, owned)

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
        request_timeout = self.requests.request_timeout(min(renewal.ttl for renewal in renewals))
        last_try = min(sent + ASKED_AGAIN_FOR, *(lease.valid_until for lease in leases))
        replies = await self.requests.repeat_until(
            partial(renew_together, self.store, renewals), sent + request_timeout, last_try
        )
        for lease, each, renewal, reply in zip(leases, ttls, renewals, replies, strict=True):
            if reply is not None:
                if lease.grant.is_outdated(renewal.token):
                    raise StoreUnavailable(f"the lease of {lease.grant.title!r} was being detached: extend it later")
                self.renewer.lose(lease, why_refused(reply, renewal))
                continue
            at_risk = lease.failures > 0
            if lease.renewed(sent, renewal.ttl, exact=not lease.renews):
                if self.events is not None:
                    self.events.renewed(lease, recovered=at_risk)
                lease.ttl = each
                self.renewer.plan(lease)
                lease.note_contention(renewal)
                if lease.ends_early and not lease.grant.request.lock_delay:  # a lock delay follows the end in the store
                    lease.when_lost(partial(self._release_ended, lease))
        if ttl is not None:
            self._tell_what_max_hold_cuts_off(leases[0], ttl)

    def _release_ended(self, lease: CoreLease, _reason: str) -> None:
        """Release a lease that was shortened and has ended here: the store would keep it for longer."""
        self.release_later(partial(self.release, lease), lease.grant.name)

    def _tell_what_max_hold_cuts_off(self, lease: CoreLease, ttl: float) -> None:
        remaining = lease.remaining()
        if lease.ends_at <= lease.valid_until and 0.0 < remaining < ttl * (1.0 - DRIFT) - EPSILON:
            log.warning(
                "extend(%g) of %r is cut short: max_hold ends the lease in %.1f s", ttl, lease.grant.title, remaining
            )

    async def adjust(self, lease: CoreLease, *, weight: int = 0, owner: str = "") -> None:
        """Change a lease while it is held: to a smaller `weight` (0: no change) or another `owner` ("": no change).

        Raises LeaseLost if the lease is lost, StoreError if the store did not answer: then the lease may be changed or
        not, and calling again is safe. From the call on the holder must do with the smaller weight, whatever is raised.
        If the store has forgotten the lease, a renewal takes the lease up again as changed.
        """
        lease.check()
        grant, request = lease.grant, lease.grant.request
        if weight > request.weight:
            raise UsageError(
                f"the lease of {grant.title!r} has weight {request.weight} and cannot get the larger weight "
                f"{weight}: release it and acquire again"
            )
        grant.request = replace(request, weight=weight or request.weight, owner=owner or request.owner)
        adjust = AdjustRequest(grant.name, grant.request_id, grant.last, weight, owner)
        refused = await self.requests.send_up_to_three_times(
            partial(self.store.adjust, adjust), self.requests.request_timeout(lease.ttl)
        )
        if refused is not None:  # the store may only have forgotten the lease: then a renewal takes it up as changed
            await self.extend(lease, None)
        lease.check()

    async def explain(self, spec: LockSpec, missed: NotGranted, *, look: bool) -> Explanation:
        """Return why a wait for `spec` ended without a lease.

        With `look` the store is asked once, within EXPLAIN_TIMEOUT, for what its last reply did not tell; if that
        fails, the reply has to do.
        """
        from tenure.core.explaining import Around, ExplainedRequest, explain, seen_at_the_end

        view = await self._look_at_the_end(spec.name) if look else None
        seen = seen_at_the_end(spec.name, missed, view, spec.capacity)
        request = ExplainedRequest(spec.weight, missed.ahead, 0 if spec.resizable else spec.capacity)
        return explain(seen, self.store.capabilities, request, Around(self.prefix.removesuffix(":")))

    def entered_at(self, name: str) -> list[tuple[CodeType, int]]:
        """Return the code and the instruction of each `with` of this process that holds the name now."""
        bodies = [lease.body for lease in self.renewer.kept() if lease.grant.name == name and lease.trusted()]
        return [(code, at) for (_, code, at), _ in filter(None, bodies)]

    async def _look_at_the_end(self, name: str) -> NameView | None:
        try:
            self.refuse_if_closed()
            return self.read(
                await self.store.inspect(
                    name, self.runtime.now() + min(EXPLAIN_TIMEOUT, self.requests.operation_timeout)
                )
            )
        except (StoreError, UsageError) as error:
            log.debug("the store did not tell why %r was not granted: %s", name, error)
            return None

    async def deadlocks(self) -> list[tuple[Wait, ...]]:
        """List the circles of contenders that wait for each other."""
        await self.open()
        return await find_deadlocks(self)

    async def resize(self, name: str, before: int, after: int) -> int:
        """Change the capacity of a name if it is `before` or nobody uses the name; return the capacity afterwards."""
        await self.open()
        request_timeout = self.requests.operation_timeout
        return await self.requests.send_up_to_three_times(
            lambda until: self.store.resize(name, before, after, until), request_timeout
        )

    async def request_revocation(self, name: str) -> list[HolderView]:
        """Send a revocation request to the holders of a name; return those holders."""
        await self.open()
        asked = await self.store.request_revocation(name, self.runtime.now() + self.requests.operation_timeout)
        for holder in asked:
            holder.read_metadata()
        return asked

    async def revoke(self, name: str, token: int = 0) -> list[HolderView]:
        """Revoke the leases of a name, or only that with the token; return their holders."""
        await self.open()
        victims = await self.store.revoke(name, self.runtime.now() + self.requests.operation_timeout, token)
        for victim in victims:
            victim.read_metadata()
        return victims

    async def end_quarantine(self) -> float:
        """End the quarantine, so that the store grants again at once; return how many seconds of it were left."""
        if not isinstance(self.store, Forgetful):
            raise UsageError(
                "this store has no quarantine to end: only Redis, a quorum, and tables in PostgreSQL or MySQL have one."
            )
        await self.open()
        return await self.store.end_quarantine(self.runtime.now() + self.requests.operation_timeout)

    async def examine(self, ttl: float) -> Report:
        """Look at the settings of the store, whether or not it is open; each request has the time of one operation."""
        self.refuse_if_closed()
        if not isinstance(self.store, Examinable):
            return Report("", unseen=[Unseen("the store", "its settings", "a store of this kind does not tell them")])
        return await self.store.examine(ttl, self.requests.operation_timeout)

    def wake_all(self, stop: Stop) -> None:
        """Wake all waiters that were given `stop`, which then see that it is set."""
        self.local_queues.wake_all(stop)
        for attempt in list(self.attempts.values()):
            if attempt.waits_with(stop):
                attempt.dismiss()
