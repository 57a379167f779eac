"""One client at one store: what all its locks share, and the operations that faces offer."""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from holdfast.contracts.deadlines import DRIFT, EPSILON, micros, seconds
from holdfast.contracts.limits import check_ttl
from holdfast.contracts.messages import (
    AdjustRequest,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    NotificationKind,
    Page,
    ReleaseRequest,
)
from holdfast.contracts.runtime import Runtime, Task
from holdfast.contracts.store import Forgetful, Store
from holdfast.core.attempt import BRIEF, Attempt, LockSpec
from holdfast.core.background_releases import BackgroundReleases
from holdfast.core.deadlocks import Actors, find_deadlocks
from holdfast.core.events import Events, LockEvent
from holdfast.core.lease import NEVER, REVOKED, CoreLease, report_loss, why_refused
from holdfast.core.local_queue import FairnessBudget, LocalQueues
from holdfast.core.renewer import Renewer
from holdfast.core.reservations import Reservations
from holdfast.core.stop import Stop
from holdfast.errors import SelfDeadlock, StoreError, StoreUnavailable, UsageError, Wait
from holdfast.escaping import told
from holdfast.outcome import Outcome
from holdfast.runtimes.single import SingleFlight

T = TypeVar("T")

log = logging.getLogger("holdfast")

OPENING = 3
"""How many times as long as one request a try to open the store may take: it is several, when a program has no time."""

NO_LINGER = (
    "linger is not to be had here: this store cannot tell this client that somebody else waits. Make the lock without "
    "linger, or use another store, such as redis://host."
)

NO_TOKENS = (
    "linger is not to be had here: in this store each holding has a fencing token of its own, and none can be put by "
    "for the next. Make the lock without linger, or use another store, such as redis://host."
)

RIDDEN_OUT = 1.0
"""For how many seconds a store may not answer before that is logged."""

GAP_SPREAD = 0.05
"""Within how many seconds all waiters of a client ask again after its channel was cut off."""


@dataclass(slots=True)
class Settings:
    """What a client can be told about itself. Times in seconds."""

    owner: str
    """Who this client is, for people to read."""
    operation_timeout: float = 1.0
    """The longest that one request to the store may take."""
    retry_for: float = 10.0
    """How long an acquisition rides out a store that does not answer."""
    prefix: str = ""
    """What all names of this client begin with."""
    on_event: Callable[[LockEvent], object] | None = None
    budget: FairnessBudget = field(default_factory=FairnessBudget)
    """How long this process may keep a name to itself while others wait."""


LOST_TIMEOUT = 0.5
"""For how many seconds from its beginning a release of what is lost is tried again: its holder is to stop."""

HELPERS = 7
"""How many tasks or threads help to release the leases of a client that is closed."""

ENOUGH = 100
"""For how many leases each is worth it."""


@dataclass(slots=True)
class _Closing:
    """What is left to release while a client is closed."""

    leases: deque[CoreLease]
    until: float
    """When to give up, unless the store answers once more."""


class Session:
    """One client at one store. Opened by the first operation."""

    def __init__(self, runtime: Runtime, store: Store, settings: Settings) -> None:
        """Prepare; nothing is opened yet."""
        self.runtime = runtime
        self.store = store
        self.owner = settings.owner
        self.prefix = settings.prefix
        self.retry_for = settings.retry_for
        self.mutex = runtime.mutex()
        self.face: object = None
        """The client: kept alive by its leases, for it is the client that hears of a fork and of the end."""
        self.channel = ""
        self.attempts: dict[str, Attempt] = {}
        self.renewer = Renewer(runtime, store, self.request_timeout)
        self.background_releases = BackgroundReleases(runtime)
        self.local_queues = LocalQueues(self, settings.budget)
        self.actors = Actors(self)
        self.reservations = Reservations(runtime, self.mutex)
        self.events: Events | None = None
        """Who is told what happens, if anybody."""
        if settings.on_event is not None:
            self.events = Events(settings.on_event, runtime.now, self.owner, self.prefix)
            self.renewer.events = self.events
        self._operation_timeout = settings.operation_timeout
        self._ample_ttl = micros(settings.operation_timeout * 5)
        self._local = store.capabilities.local
        self._highest = 0
        self._quarantined_until = 0.0
        self._opened = False
        self._opening = SingleFlight(runtime)
        self._closed = False
        self._abandoned = False
        self._unanswered = False
        """Whether it was logged that the store does not answer acquisitions, and none was answered since."""

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, timeout: float | None = 0.0, spec: LockSpec | None = None) -> None:
        """Open the store once, whoever comes first; the others wait for it, each within its own time.

        `timeout` is that of an acquisition, of `spec`: errors are ridden out for `retry_for`, but not beyond it (None:
        it has no end). With 0, as of what is no acquisition, there is one try. Raises StoreUnavailable if the store is
        not open by then.
        """
        began = self.runtime.now()
        wait = timeout != 0
        end = NEVER if timeout is None else began + (timeout or OPENING * self._operation_timeout)
        give_up_at = min(end, began + self.retry_for)
        delay, troubled = 0.02, False
        while not self._opened:
            self.refuse_if_closed() if spec is None else self.refuse_to_wait(spec)
            try:
                await self._try_to_open(end, give_up_at)
            except StoreUnavailable as error:
                pause = delay * (0.5 + self.runtime.random())
                if not wait or self.runtime.now() + pause >= give_up_at:
                    raise
                if spec is not None:
                    self.note_unanswered(spec.name, error, began, give_up_at)
                    troubled = True
                await self.runtime.sleep(pause)
                delay = min(delay * 2, 0.5)
        if troubled:
            self.note_answer(began)

    async def _try_to_open(self, end: float, give_up_at: float) -> None:
        """Try once: within the caller's own time, and for as long as one request may take though it is the last try."""
        now, request_time = self.runtime.now(), self._operation_timeout
        until = max(now + BRIEF, min(end, now + OPENING * request_time, max(give_up_at, now + request_time)))
        if not await self._opening.fly(lambda: not self._opened, partial(self._open, until), until):
            raise StoreUnavailable("the store was not opened in time; raise `timeout` or `operation_timeout`")

    async def _open(self, until: float) -> None:
        self.channel = await self.store.open(self.deliver, until)
        self._opened = True

    async def close(self) -> None:
        """Release what is still held, stop the renewer, leave the store. Idempotent.

        It takes as long as the store goes on to release leases, and ends soon after that does so no more.
        """
        if self._closed:
            return
        self._closed = True
        until = self.runtime.now() + 2 * self._operation_timeout
        await self._opening.settle(until)
        self._opened = False
        await self._dismiss_waiters(until)
        until = await self._release_all(until)
        await self.background_releases.end(until)
        await self.renewer.stop(until)
        await self.runtime.settle(until)
        await self.store.close()

    async def _release_all(self, until: float) -> float:
        """Release all leases, and return by when to end the rest: `until`, or later if the store went on to answer."""
        kept = self.renewer.kept()
        closing = _Closing(deque(kept), until)
        helpers: list[Task] = []
        with contextlib.suppress(RuntimeError):  # nothing can be started any more: then this does it alone
            while len(helpers) < min(HELPERS, len(closing.leases) // ENOUGH):
                helpers.append(self.runtime.spawn(partial(self._release_some, closing), "release"))
        await self._release_some(closing)
        for helper in helpers:
            await helper.join(closing.until + OPENING * self._operation_timeout)
        if left := [lease for lease in kept if lease.outcome in {None, Outcome.UNKNOWN}]:
            log.warning(
                "closed while the store does not answer: the lease of %r %s",
                left[0].name,
                f"and {len(left) - 1} more end at their ttl" if len(left) > 1 else "ends at its ttl",
            )
        return closing.until

    async def _release_some(self, closing: "_Closing") -> None:
        """Release one lease after another, for as long as the store answers."""
        while closing.leases:
            try:
                lease = closing.leases.popleft()
            except IndexError:  # another thread took the last one
                return
            outcome = await self.release(lease)
            now = self.runtime.now()
            if outcome is Outcome.UNKNOWN and now >= closing.until:
                return
            if outcome is not Outcome.UNKNOWN:
                with self.mutex:  # one that stood still since it read the time must not take back what others gained
                    closing.until = max(closing.until, now + 2 * self._operation_timeout)

    async def _dismiss_waiters(self, until: float) -> None:
        """Wake who waits, to find the client closed, and let them leave their queues."""
        self.local_queues.dismiss()
        for attempt in list(self.attempts.values()):
            attempt.dismiss()
        while self.attempts and self.runtime.now() < until:
            await self.runtime.sleep(0.002)

    def abandon(self) -> None:
        """In a forked child: make every lease inert, and drop what was inherited."""
        self._abandoned = True
        self.local_queues.abandon()
        for lease in self.renewer.kept():
            lease.disown()
        self.store.abandon()

    def refuse_if_closed(self) -> None:
        """Raise UsageError once the client is closed."""
        if self._closed:
            message = "this client is closed; make a new one"
            raise UsageError(message)

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
        if not self._opened:
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

    async def release(self, lease: CoreLease) -> Outcome:
        """Let go of a lease. Asked again, it answers the same.

        Raises ForkedLeaseError in a child of the process that acquired it.
        """
        if lease.outcome is not None:
            return lease.outcome
        if self._abandoned:
            lease.disown()  # one that was lost before the fork is not kept, and may have a mutex that nobody frees
            raise lease.loss()
        queue_told = False
        try:
            if lease.linger and self.local_queues.keep(lease):
                return Outcome.RELEASED
            if lease.let_it_go():
                if lease.local_queue is not None and self.local_queues.hand_off(lease):
                    return Outcome.RELEASED
                queue_told = True
                self.renewer.discard(lease)
                began = self.runtime.now()
                try:
                    outcome = await self.store.release(self._to_release(lease), began + self.request_timeout(lease.ttl))
                except StoreError as error:
                    return await self.runtime.finish(self._release_again(lease, error, began))
                return self._settle(lease, outcome)
        except GeneratorExit:
            raise
        except BaseException as error:
            await self.runtime.finish(self.complete_release(lease, error, queue_told=queue_told))
            raise
        return await self._released_by_another(lease)

    async def complete_release(self, lease: CoreLease, interrupt: BaseException, *, queue_told: bool = False) -> None:
        """Carry out what an interrupt prevented of a release, which may have been handed on in this process already.

        Repeating what was done already does no harm.
        """
        began = self.runtime.now()
        lease.let_it_go()
        if lease.local_queue is not None and not queue_told:
            self.local_queues.mend(lease.local_queue)
            successor = lease.local_queue.lease
            if successor is not None and successor is not lease and successor.request_id == lease.request_id:
                self.renewer.replace(successor)
                self.renewer.replaced(successor)
                lease.settle(Outcome.RELEASED)
                return
        self.renewer.discard(lease)
        if lease.outcome is None:
            await self._release_again(lease, interrupt, began)

    def _to_release(self, lease: CoreLease) -> ReleaseRequest:
        return ReleaseRequest(lease.name, lease.request_id, lease.last, lease.unsure, lease.to_keep())

    def _settle(self, lease: CoreLease, outcome: Outcome) -> Outcome:
        if outcome is Outcome.EXPIRED and not lease.lost_because and self.runtime.now() < lease.valid_until:
            outcome = Outcome.RELEASED  # the store has forgotten it, as in a failover: it was ours, and nobody's since
        lease.settle(outcome)
        if self.events is not None:
            self.events.released(lease, outcome)
        return outcome

    async def _released_by_another(self, lease: CoreLease) -> Outcome:
        """Wait for the answer to a release that another thread or task is making: two could get two answers."""
        until = self.runtime.now() + 4 * self.request_timeout(lease.ttl) + 1.0
        while lease.outcome is None and self.runtime.now() < until:
            await self.runtime.sleep(0.002)
        return lease.outcome or Outcome.UNKNOWN

    async def _release_again(self, lease: CoreLease, first: BaseException, began: float) -> Outcome:
        """Release when nobody knows whether the first attempt was carried out."""
        release = self._to_release(lease)
        try:
            if isinstance(first, StoreError) and not isinstance(first, StoreUnavailable):
                raise first
            if lease.lost_because:
                outcome = await self._release_lost(release, first, began + LOST_TIMEOUT)
            else:
                outcome = await self.persist(
                    lambda until: self.store.release(release, until), self.request_timeout(lease.ttl)
                )
        except StoreError as error:
            level = logging.DEBUG if lease.lost_because or self._closed else logging.WARNING
            log.log(level, "%r could not be released (%s); it ends at its ttl at the latest", lease.name, told(error))
            outcome = Outcome.UNKNOWN
        if not outcome.kept and not lease.lost_because and self.runtime.now() < lease.valid_until:
            outcome = Outcome.RELEASED  # it cannot have run out yet: the first attempt did it, and its reply was lost
        return self._settle(lease, outcome)

    async def _release_lost(self, release: ReleaseRequest, first: BaseException, give_up_at: float) -> Outcome:
        """Ask what became of a lost lease, again and again, but not for long."""
        now = self.runtime.now()
        if now >= give_up_at and isinstance(first, StoreError):
            raise first
        until = max(give_up_at, now + BRIEF)
        return await self._insist(lambda until: self.store.release(release, until), until, give_up_at)

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
            name = lease.name.removeprefix(self.prefix)
            log.warning("extend(%g) of %r: max_hold ends the lease in %.1f s, whatever is renewed", ttl, name, left)

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

    async def inspect(self, name: str) -> NameView:
        """Show who holds a name and who waits for it; of those who wait in a local queue, only this client's own."""
        await self.open()
        view = await self._look(lambda until: self.store.inspect(name, until))
        for holder in view.holders:
            holder.read_metadata()
        for waiter in view.waiters:
            waiter.read_metadata()
        view.waiters += self.local_queues.waiting(name)
        return view

    async def explain(self, name: str, left: NotGranted) -> NotGranted:
        """Return what is known of why a name was not granted in time: it is asked for if nobody holds the name."""
        if left.holders or left.quarantine:
            return left
        try:
            view = await self.inspect(name)
        except (StoreError, UsageError):
            return left
        return replace(left, blocked=micros(view.blocked_for))

    async def page(self, prefix: str, rest: object = None) -> Page:
        """Return a page of the names in use, which has the time of one operation: the first, or the one after."""
        await self.open()
        return await self._look(lambda until: self.store.names(prefix, until, rest))

    async def names(self, prefix: str) -> list[str]:
        """List the names in use, sorted."""
        page = await self.page(prefix)
        found = page.names
        while page.rest is not None:
            page = await self.page(prefix, page.rest)
            found += page.names
        return sorted(found)

    async def _look(self, operation: Callable[[float], Coroutine[Any, Any, T]]) -> T:
        """Ask what changes nothing, again if the connection breaks, within the time of one operation.

        The last try has half of that at least, or its error would be that there was no time.
        """
        now = self.runtime.now()
        return await self._insist(operation, now + self._operation_timeout, now + self._operation_timeout / 2)

    async def _insist(self, operation: Callable[[float], Coroutine[Any, Any, T]], until: float, last_try: float) -> T:
        """Ask by `until`, again and again while the store does not answer; nothing is begun after `last_try`."""
        delay = 0.01
        while True:
            try:
                return await operation(until)
            except StoreUnavailable:
                if self.runtime.now() + delay >= last_try:
                    raise
            await self.runtime.sleep(delay * (0.5 + self.runtime.random()))
            delay *= 2

    async def deadlocks(self) -> list[tuple[Wait, ...]]:
        """List who waits for each other in a circle."""
        await self.open()
        return await find_deadlocks(self)

    async def resize(self, name: str, before: int, after: int) -> int:
        """Change the capacity of a name if it is `before`, or if nobody uses it; return what it is now."""
        await self.open()
        request_timeout = self._operation_timeout
        return await self.persist(lambda until: self.store.resize(name, before, after, until), request_timeout)

    async def request_revocation(self, name: str) -> list[HolderView]:
        """Ask those who hold a name to let go; return who was asked."""
        await self.open()
        asked = await self.store.request_revocation(name, self.runtime.now() + self._operation_timeout)
        for holder in asked:
            holder.read_metadata()
        return asked

    async def revoke(self, name: str, token: int = 0) -> list[HolderView]:
        """Take a name by force, from all its holders or from that of a token."""
        await self.open()
        victims = await self.store.revoke(name, self.runtime.now() + self._operation_timeout, token)
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
        return await self.store.end_quarantine(self.runtime.now() + self._operation_timeout)

    def refuse_to_wait(self, spec: LockSpec) -> None:
        """Raise UsageError once the client is closed, and Stopped once this wait is to stop."""
        self.refuse_if_closed()
        if spec.stop is not None:
            spec.stop.check(spec.name.removeprefix(self.prefix))

    def wake_all(self, stop: Stop) -> None:
        """Have all that wait with `stop` look at it."""
        self.local_queues.wake_all(stop)
        for attempt in list(self.attempts.values()):
            if attempt.waits_with(stop):
                attempt.dismiss()

    def refuse_to_wait_for_oneself(self, spec: LockSpec) -> None:
        """Raise SelfDeadlock if the calling thread or task is about to wait for ever for what it holds itself."""
        mine = self._held_by_caller(spec)
        if mine and sum(lease.request.weight for lease in mine) + spec.weight > spec.capacity:
            raise self._self_deadlock(spec, mine, spec.advice)

    async def refuse_to_wait_behind_oneself(self, spec: LockSpec, since: float) -> None:
        """Raise it too if one who waits before us can't be let in while it holds that: a writer, before a reader.

        We wait since a steady instant. Who came just before that may be missed; nobody who comes later is taken for it.
        """
        mine = self._held_by_caller(spec)
        if not mine:
            return
        try:
            view = await self.inspect(spec.name)
        except StoreError as error:
            log.debug("could not look who waits: %s", error)
            return
        lease, waited = sum(each.request.weight for each in mine), self.runtime.now() - since
        for waiter in view.waiters:
            if (waiter.owner, waiter.weight) == (self.owner, spec.weight) and waiter.waited_for <= waited:
                return  # it is us
            if waiter.alive and waiter.weight + lease > view.capacity:
                raise self._self_deadlock(spec, mine, f"Who waits before it needs that lease to end. {spec.advice}")

    def _held_by_caller(self, spec: LockSpec) -> list[CoreLease]:
        """Return what the calling thread or task holds of a name, unless it looks for deadlocks, which finds it too."""
        mark = self.runtime.mark()
        if mark is None or spec.actor is not None:
            return []
        return [
            lease for lease in self.renewer.kept() if lease.by is mark and lease.name == spec.name and lease.trusted()
        ]

    def _self_deadlock(self, spec: LockSpec, mine: list[CoreLease], advice: str) -> SelfDeadlock:
        return SelfDeadlock(spec.name.removeprefix(self.prefix), mine[-1].token, advice)

    # -- for the protocol ----------------------------------------------------------------------------------

    def deliver(self, notification: Notification) -> None:
        """Take a push from the store. Called where the runtime runs its code."""
        if notification.kind is NotificationKind.REVOKED:
            self._revoked(notification)
            return
        if notification.kind is NotificationKind.CONTENDED:
            self._wanted(notification.request_id)
            return
        if notification.kind is NotificationKind.REVOCATION_REQUESTED:
            self._revocation_requested(notification)
            return
        if notification.kind is NotificationKind.GAP:
            self._retry_all()
            return
        attempt = self.attempts.get(notification.request_id)
        if attempt is not None:
            attempt.hear(notification)

    def _wanted(self, request_id: str) -> None:
        attempt = self.attempts.get(request_id)
        if attempt is not None:  # it has not heard of its grant yet, or is just about to enter
            attempt.outrun = True
        lease = self.renewer.find(request_id)
        if lease is not None:
            self.local_queues.contended(lease)

    def _retry_all(self) -> None:
        """Have every waiter ask and every lease renewed, not all at once: the connection to the store was lost.

        Pushes may have been missed; and if the store restarted, it had better hear soon who was there before.
        """
        self.local_queues.end_all_lingering()
        self.renewer.hurry(GAP_SPREAD)
        for attempt in list(self.attempts.values()):
            after = micros(self.runtime.random() * GAP_SPREAD)
            attempt.hear(Notification(self.channel, NotificationKind.GAP, "", after=after))

    def _revocation_requested(self, notification: Notification) -> None:
        lease = self.renewer.find(notification.request_id)
        if lease is not None and lease.last == notification.token:
            lease.request_revocation()
            self.local_queues.contended(lease)  # whoever asks wants it: others here must not keep it for long

    def _revoked(self, notification: Notification) -> None:
        lease = self.renewer.find(notification.request_id)
        if (
            lease is not None
            and lease.last == notification.token
            and (lost := self.renewer.lose(lease, REVOKED)) is not None
        ):
            report_loss(lost)

    def request_timeout(self, ttl: int) -> float:
        """Return how many seconds one request about a lease of `ttl` microseconds may take: far below the ttl."""
        if ttl >= self._ample_ttl:
            return self._operation_timeout
        return min(self._operation_timeout, max(BRIEF, seconds(ttl) / 5))

    async def persist(self, operation: Callable[[float], Coroutine[Any, Any, T]], request_timeout: float) -> T:
        """Carry out what is safe to repeat: ask up to three times while the store does not answer."""
        for attempt in range(3):
            try:
                return await operation(self.runtime.now() + request_timeout)
            except StoreUnavailable:
                if attempt == 2:  # noqa: PLR2004 - the third time
                    raise
            await self.runtime.sleep(0.02 * 4**attempt * (0.5 + self.runtime.random()))
        raise AssertionError  # pragma: no cover - the loop returns or raises

    def note_quarantine(self, seconds: float) -> None:
        """Log that the store grants nothing for a while; once a quarantine."""
        ends_at = self.runtime.now() + seconds
        if ends_at > self._quarantined_until + 1.0:
            self._quarantined_until = ends_at
            log.warning(
                "the store restarted or failed over, and may have forgotten grants: it grants nothing for %.1f s, "
                "until the oldest of them has run out",
                seconds,
            )

    def note_unanswered(self, name: str, error: StoreUnavailable, since: float, give_up_at: float) -> None:
        """Log that an acquisition rides out a store that does not answer: once a trouble, after a second."""
        now = self.runtime.now()
        if self._unanswered or now < since + RIDDEN_OUT:
            return
        self._unanswered = True
        log.warning(
            "the store has not answered for %.1f s (%s); asking for %r again for another %.1f s",
            now - since,
            told(error),
            name,
            max(0.0, give_up_at - now),
        )

    def note_answer(self, since: float) -> None:
        """Log that a trouble which was logged has ended."""
        if self._unanswered:
            self._unanswered = False
            log.warning("the store answers again, after %.1f s", self.runtime.now() - since)

    def note_token(self, token: int) -> None:
        """Remember the highest token seen, so that a store that lost its state is told of it."""
        if token > self._highest:  # noqa: PLR1730 - max() costs more, and this is on the way of every acquisition
            self._highest = token

    def proposal(self) -> int:
        """Return the token that this client would like to be surpassed."""
        if self._local:
            return self._highest  # the store reads the same wall clock itself
        wall, highest = self.runtime.wall(), self._highest
        return wall if wall > highest else highest  # noqa: FURB136 - max() costs more
