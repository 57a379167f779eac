"""The local queue and the local hand-off: one queue for all contenders of one client for one name.

One contender of the queue, the leader, sends the acquire request to the store; the local waiters stand behind it. When
the holder releases the lease, the lease is handed to the first local waiter, with the next of the tokens that were
reserved with it. The store is not told: it knows one lease. Local hand-offs go on while

*   enough of the ttl is left that the lease is certainly valid, and reserved tokens are left;
*   no guard of the lease was taken (`Lease.guard()` with etcd), because it would be true for the next holder too;
*   no other client waits for the name; or the first local waiter joined before the client's turn began, and there were
    fewer than `fairness_count` local hand-offs in this turn. A turn begins with the grant or, if no other client waits
    then, when this client learns that one does. The store tells the holder in four ways: in the grant, by a
    notification when the first waiter comes, by another whenever a waiter repeats its request, and in the reply to each
    renewal, in case notifications were lost.

A turn has the same bound if another client waited less than 50 ms before it began: clients that take turns are not
always back when the next turn begins. When local hand-offs end, the lease is released, and the first local waiter sends
a new acquire request, which joins the end of the store's queue. So contenders within the process are served in
the order in which they came, processes take turns, and each contender of a process gets one lease in a turn, as the
only contender of another process does.

Only contenders with the same ttl and lock delay share a queue, because other clients rely on both when a holder dies;
and with the same bound of barging, because one request stands for all of them. A hand-off within the process costs no
request, so these contenders are served in their order also if they allow barging.
No local waiter is handed a lease that may be lost. When a lease is lost, the first local waiter becomes the leader.

A lease that *lingers* is kept after its release, while no contender of any client waits for it. It goes on as a
successor without a holder, until a contender of this client takes it up. It is released in the background when another
client waits for the name, its linger time is over, it is lost, or the client is closed.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tenure.contracts.deadlines import MICROS, NEVER, seconds
from tenure.contracts.messages import NotGranted, WaiterView
from tenure.core.access import AttemptPlan, StoreAccess
from tenure.core.attempt import Attempt
from tenure.core.lease import CoreLease
from tenure.core.self_deadlock import WARN_AFTER, refuse_to_wait_for_oneself, warn_of_waiting_for_oneself
from tenure.core.spec import LocalQueueKey, LockSpec
from tenure.core.stop import Stop
from tenure.errors import StoreUnavailable
from tenure.outcome import Outcome

if TYPE_CHECKING:
    from tenure.contracts.runtime import Event

STILL_CONTENDED = 0.05
"""For how many seconds a name counts as contended after a turn began so: other clients come back within milliseconds.

Else threads of this client make hundreds of hand-offs before the notification of that reaches a thread that can run.
"""

Release = Callable[[CoreLease], Coroutine[Any, Any, Outcome]]


@dataclass(slots=True, eq=False)
class LocalWaiter:
    """A contender that waits in a local queue."""

    spec: LockSpec
    event: "Event"
    since: float
    owned: list[CoreLease]
    """Where its caller finds the lease if it is interrupted."""
    turn: int = 0
    """The turn of its client in which it joined."""
    lease: CoreLease | None = None
    """The lease that was handed to it."""
    place: int = 0
    """How many local waiters stood before it when it left the queue."""
    leads: bool = False
    """Whether it is the next leader, which sends the request to the store."""
    error: StoreUnavailable | None = None
    """Why it fails: the store has not answered the leaders before it for `retry_for` seconds of its own wait."""

    def is_called(self) -> bool:
        """Return whether its wait in the local queue is over: it has a lease, leads, or fails."""
        return self.leads or self.lease is not None or self.error is not None


class LocalQueue:
    """The local queue in front of one name. It exists while a contender of this client holds, requests or waits."""

    waiters: deque[LocalWaiter] | None = None
    """The local waiters, the first at the left; None until one joins."""
    lease: CoreLease | None = None
    """The lease of the present holder; None while the leader requests it."""
    linger = 0.0
    """For how many seconds the client keeps the lease after its release, in case the client acquires the name again."""
    called: LocalWaiter | None = None
    """The local waiter that was called last."""
    contended = False
    """Whether another client waits for the name."""
    contended_at = -NEVER
    """The beginning of the last turn that began while another client waited, by the local clock."""
    bounded = False
    """Whether the present turn has a bound: another client waits, or did within the last STILL_CONTENDED seconds."""
    turn = 0
    """The number of the client's turn."""
    passed = 0
    """How many local hand-offs there were in this turn."""
    unanswered_since = NEVER
    """Since when the store has not answered the leaders."""

    def __init__(self, owner: "LocalQueues", key: LocalQueueKey) -> None:
        """Begin with a leader and without local waiters. This is short because every acquisition runs it."""
        self.owner = owner
        self.key = key

    def begin_turn(self, now: float, *, contended: bool) -> None:
        """Begin a turn: the local waiters that wait now may be handed the lease though another client waits."""
        self.turn += 1
        self.passed = 0
        self.contended = contended
        if contended:
            self.contended_at = now
        self.bounded = now - self.contended_at < STILL_CONTENDED

    def note_contended(self, now: float) -> None:
        """Note that another client waits, which begins a turn unless the present one is bounded."""
        if not self.bounded:
            self.begin_turn(now, contended=True)
        self.contended = True

    def lost(self, lease: CoreLease) -> None:
        """Make the first local waiter the leader, because the lease is lost. Its holder may never release it."""
        self.owner.drop_lost_lease(self, lease)

    def on_contended(self, lease: CoreLease) -> None:
        """Note that another client waits for the lease, as the reply to a renewal says."""
        self.owner.contended(lease)

    def on_linger_end(self, lease: CoreLease) -> None:
        """Release a lease whose linger time is over."""
        self.owner.end_lingering(self, lease)

    def lingering(self) -> CoreLease | None:
        """Return the lease that lingers, if there is one. Call it with the mutex held."""
        lease = self.lease
        return lease if lease is not None and lease.lingers_until != NEVER else None


class LocalQueues:
    """All local queues of one client."""

    def __init__(self, access: StoreAccess, fairness_count: int, release: Release) -> None:
        """Start without any."""
        self._access = access
        self._release = release
        self._runtime = access.runtime
        self._mutex = access.mutex  # the same as the leases': so no lease is declared lost while it is handed on
        self._fairness_count = fairness_count
        self._dismissed = False
        self._queues: dict[LocalQueueKey, LocalQueue] = {}

    async def acquire(  # noqa: PLR0917 - by position, which is faster
        self,
        spec: LockSpec,
        key: LocalQueueKey,
        plan: AttemptPlan,
        until: float | None,
        owned: list[CoreLease],
        wait: bool,  # noqa: FBT001 - the same
    ) -> CoreLease | NotGranted:
        """Acquire `spec`, behind the earlier contenders of this client for the same `key`.

        Without any, the caller leads a new queue. The queue is added inside the `try`, where an interrupt ends it.
        """
        attempt, local_queue = None, LocalQueue(self, key)
        span = self._access.store.capabilities.span if spec.linger else 1
        try:
            with self._mutex:
                present = self._queues.setdefault(key, local_queue)
            if present is local_queue:
                attempt = Attempt(self._access, spec, plan, until, owned, wait, span)
                return self._enter(local_queue, attempt, await attempt.run())
        except BaseException as error:
            self._fail(local_queue, attempt, error)
            raise
        return await self._wait_in_queue(present, spec, until, owned, wait=wait)

    def leave(self, lease: CoreLease) -> bool:
        """Begin the release of a lease for which no contender of this client waits, and end its queue, in one step.

        Return False if there may be one, or the lease may be lost: then nothing is done, and
        `CoreLease.begin_release` and `hand_off` decide.
        """
        local_queue = lease.local_queue
        if not isinstance(local_queue, LocalQueue):
            return False
        with self._mutex:
            if local_queue.waiters or local_queue.lease is not lease or self._runtime.now() >= lease.valid_until:
                return False
            if not lease.mark_released():
                return False
            local_queue.lease = None
            if self._queues.get(local_queue.key) is local_queue:
                del self._queues[local_queue.key]
            self._access.renewer.discard_released(lease)
        return True

    def hand_off(self, lease: CoreLease) -> bool:
        """Hand a released lease to the first local waiter; return whether that was done.

        If the lease may not be handed on, the first local waiter becomes the leader.
        """
        local_queue = lease.local_queue
        if not isinstance(local_queue, LocalQueue):
            return False
        with self._mutex:
            if local_queue.lease is not lease:
                return False
            waiter = leader = None
            if local_queue.waiters:
                waiter = self._decide_hand_off(local_queue, lease)
            if waiter is None:
                leader = self._next_leader(local_queue)
                local_queue.lease = None
        if waiter is None or waiter.lease is None:
            if leader is not None:
                leader.event.set()
            return False
        self._access.renewer.replaced(waiter.lease)
        lease.settle(Outcome.RELEASED)
        try:
            if self._access.events is not None:
                self._access.events.handed_on(lease)
        finally:
            waiter.event.set()
        return True

    def _decide_hand_off(self, local_queue: LocalQueue, lease: CoreLease) -> LocalWaiter | None:
        """Give a successor of the lease to the first local waiter, if that is allowed. Call it with the mutex held."""
        if not local_queue.waiters or self._dismissed:
            return None
        waiter, now = local_queue.waiters[0], self._runtime.now()
        if not self._may_hand_off(local_queue, lease, waiter, now):
            return None
        successor = lease.successor(waiter.spec.ttl, now + waiter.spec.max_hold)
        if lease.lost_because or lease.void:
            return None
        # The hand-off is decided by this line: after an interrupt from here on, `repair_after_interrupt` completes it.
        waiter.lease = successor
        self._complete_hand_off(local_queue, waiter, successor)
        local_queue.passed += 1
        return waiter

    def _complete_hand_off(self, local_queue: LocalQueue, waiter: LocalWaiter, lease: CoreLease) -> None:
        self._access.renewer.replace(lease)
        local_queue.linger = waiter.spec.linger
        local_queue.lease = lease
        local_queue.called = waiter
        if local_queue.waiters and local_queue.waiters[0] is waiter:
            local_queue.waiters.popleft()

    def repair_after_interrupt(self, local_queue: LocalQueue) -> None:
        """Complete a change of the queue that an interrupt left half done.

        It may call one local waiter too many, so that there are two leaders, but never one too few.
        """
        with self._mutex:
            called = [local_queue.called]
            first = local_queue.waiters[0] if local_queue.waiters else None
            if first is not None and first.lease is not None:
                self._complete_hand_off(local_queue, first, first.lease)
            lease = local_queue.lease
            if lease is None or lease.over():
                self._next_leader(local_queue)
                local_queue.lease = None
            called.append(local_queue.called)
        for waiter in called:
            if waiter is not None:
                waiter.event.set()

    def drop_lost_lease(self, local_queue: LocalQueue, lease: CoreLease) -> None:
        """Take a lost lease out of the queue, and make the first local waiter the leader."""
        with self._mutex:
            leader = None
            if local_queue.lease is lease:
                leader = self._next_leader(local_queue)
                local_queue.lease = None
        if leader is not None:
            leader.event.set()

    def contended(self, lease: CoreLease) -> None:
        """Note that another client waits for the lease; release the lease if it lingers."""
        lease.grant.contended = True  # before `local_queue` is read: `_enter` sets that first and reads this afterwards
        local_queue = lease.local_queue
        if isinstance(local_queue, LocalQueue):
            with self._mutex:
                local_queue.note_contended(self._runtime.now())
            self.end_lingering(local_queue)

    def waiting(self, name: str) -> list[WaiterView]:
        """Return the local waiters of a name, of whom the store does not know."""
        now, owner = self._runtime.now(), self._access.owner
        with self._mutex:
            here = [
                each
                for local_queue in self._queues.values()
                if local_queue.key[0] == name
                for each in local_queue.waiters or ()
            ]
        return [WaiterView(owner, each.spec.weight, now - each.since, alive=True) for each in here]

    # -- leases that linger --------------------------------------------------------------------------------

    def linger_on(self, lease: CoreLease) -> bool:
        """Release a lease by letting it linger as a successor; return False if it must be released in the store."""
        local_queue = lease.local_queue
        if not isinstance(local_queue, LocalQueue):
            return False
        with self._mutex:
            now = self._runtime.now()
            if local_queue.lease is not lease or local_queue.waiters or local_queue.contended or self._dismissed:
                return False
            ttl, remaining = local_queue.key[1], lease.kept_until - now
            if lease.token >= lease.grant.last or now >= lease.valid_until or remaining < lease.grant.enough():
                return False
            if lease.grant.guarded or remaining * MICROS > ttl or not lease.mark_released():
                return False
            successor = lease.successor(ttl, NEVER)
            successor.lingers_until = now + local_queue.linger
            self._access.renewer.replace(successor)
            local_queue.lease = successor
        lease.settle(Outcome.RELEASED)
        self._access.renewer.replaced(successor)
        if self._access.events is not None:
            self._access.events.ended(lease, Outcome.RELEASED)
        return True

    def take_up(self, spec: LockSpec, key: LocalQueueKey, owned: list[CoreLease]) -> CoreLease | None:
        """Take the lease that lingers for a key and return it; None if there is none, or too little of it is left."""
        with self._mutex:
            local_queue = self._queues.get(key)
            if local_queue is None or (lease := local_queue.lease) is None or lease.lingers_until == NEVER:
                return None
            now = self._runtime.now()
            remaining = lease.kept_until - now
            if now >= lease.lingers_until or remaining < lease.grant.enough() or remaining > spec.max_hold:
                return None
            if lease.lost_because or self._dismissed:
                return None
            _claim(lease, owned)
            local_queue.linger = spec.linger
            if spec.max_hold == NEVER:
                return lease
            lease.ends_at = now + spec.max_hold
            lease.valid_until = min(lease.kept_until, lease.ends_at)
        self._access.renewer.replaced(lease)
        return lease

    async def _go_on(
        self,
        local_queue: LocalQueue,
        spec: LockSpec,
        until: float | None,
        owned: list[CoreLease],
        *,
        wait: bool,
    ) -> CoreLease | NotGranted:
        """Take up the lease that lingers; if it cannot be used, release it and acquire another."""
        lease = self.take_up(spec, local_queue.key, owned)
        if lease is not None:
            return lease
        lease = self._end_lingering(local_queue, None, owned)
        if lease is not None:
            await self._release(lease)
            owned.remove(lease)
        return await self.acquire(spec, local_queue.key, self._access.plan_of(spec), until, owned, wait)

    def end_lingering(self, local_queue: LocalQueue, lease: CoreLease | None = None) -> None:
        """Release the lease that lingers in this queue, if there is one (only `lease`, if given), in the background."""
        ended = self._end_lingering(local_queue, lease, [])
        if ended is not None:
            self._access.background_releases.add(partial(self._release, ended), ended.grant.name)

    def lingering_leases(self) -> list[CoreLease]:
        """Return all leases of this client that linger."""
        with self._mutex:
            lingering = [local_queue.lingering() for local_queue in self._queues.values()]
        return [lease for lease in lingering if lease is not None]

    def end_all_lingering(self) -> None:
        """Release all leases that linger: the notification that another client waits for one may have been missed."""
        for lease in self.lingering_leases():
            if isinstance(lease.local_queue, LocalQueue):
                self.end_lingering(lease.local_queue, lease)

    def _end_lingering(
        self, local_queue: LocalQueue, only: CoreLease | None, owned: list[CoreLease]
    ) -> CoreLease | None:
        with self._mutex:
            lease = local_queue.lingering()
            if lease is None or (only is not None and only is not lease):
                return None
            _claim(lease, owned)
            leader = self._next_leader(local_queue)
            local_queue.lease = None
        if leader is not None:
            leader.event.set()
        return lease

    # -- the end -------------------------------------------------------------------------------------------

    def dismiss(self) -> None:
        """End local hand-offs, and wake all local waiters, which then see that the client is closed."""
        with self._mutex:
            self._dismissed = True
            waiting = [waiter for local_queue in self._queues.values() for waiter in local_queue.waiters or ()]
        for waiter in waiting:
            waiter.event.set()

    def wake_all(self, stop: Stop) -> None:
        """Wake all local waiters that were given `stop`, which then see that it is set."""
        with self._mutex:
            waiting = [waiter for local_queue in self._queues.values() for waiter in local_queue.waiters or ()]
        for waiter in waiting:
            if waiter.spec.stop is stop:
                waiter.event.set()

    def abandon(self) -> None:
        """End local hand-offs in a forked child. The mutex is replaced: a thread of the parent may have held it."""
        self._dismissed = True
        self._mutex = self._runtime.mutex()

    # -- local waiters -------------------------------------------------------------------------------------

    async def _wait_in_queue(
        self, local_queue: LocalQueue, spec: LockSpec, until: float | None, owned: list[CoreLease], *, wait: bool
    ) -> CoreLease | NotGranted:
        """Join the local queue, and wait there to be handed the lease or to become the leader."""
        waiter = LocalWaiter(spec, self._runtime.event(), self._runtime.now(), owned)
        try:
            if not self._join(local_queue, waiter, wait=wait):
                return await self._go_on(local_queue, spec, until, owned, wait=wait)
            if not wait or not await self._wait_for_call(local_queue, waiter, until):
                return self._not_granted(local_queue, waiter.place)
            if waiter.lease is not None:
                owned.append(waiter.lease)
                return waiter.lease
            if waiter.error is None:
                return await self._lead(local_queue, waiter, until)
        except GeneratorExit:  # a coroutine that is closed can no longer await
            self._abandon_waiter(local_queue, waiter)
            raise
        except BaseException:
            if not self._leave_queue(local_queue, waiter):
                await self._runtime.finish(self._give_up_grant(local_queue, waiter))
            raise
        raise StoreUnavailable(str(waiter.error)) from waiter.error

    def _join(self, local_queue: LocalQueue, waiter: LocalWaiter, *, wait: bool) -> bool:
        """Join the queue (without `wait`, only note the place); False if the queue is over or a lease lingers."""
        with self._mutex:
            if self._queues.get(local_queue.key) is not local_queue or local_queue.lingering() is not None:
                return False
            if local_queue.waiters is None:
                local_queue.waiters = deque()
            if wait:
                waiter.turn = local_queue.turn
                local_queue.waiters.append(waiter)
            else:
                waiter.place = len(local_queue.waiters)
            return True

    async def _wait_for_call(self, local_queue: LocalQueue, waiter: LocalWaiter, until: float | None) -> bool:
        """Wait until the local waiter is called; return False if its time is up and it has left the queue."""
        if self._access.events is not None:
            self._access.events.contended()
        lease = local_queue.lease
        if until is None and lease is not None and lease.by is self._runtime.mark():
            await refuse_to_wait_for_oneself(self._access, waiter.spec, waiter.since)
            self._access.refuse_to_wait(waiter.spec)
            if not await waiter.event.wait(self._runtime.now() + WARN_AFTER):
                await warn_of_waiting_for_oneself(self._access, waiter.spec, waiter.since)
        while not waiter.is_called():
            self._access.refuse_to_wait(waiter.spec)
            if not await waiter.event.wait(until) and self._leave_queue(local_queue, waiter):
                return False
        return True

    def _not_granted(self, local_queue: LocalQueue, place: int) -> NotGranted:
        """Return who holds the name and how many stood before: local waiters, and the leader if nobody holds it."""
        return NotGranted((self._access.owner,), place) if local_queue.lease else NotGranted((), place + 1)

    def _leave_queue(self, local_queue: LocalQueue, waiter: LocalWaiter) -> bool:
        """Take a local waiter out of the queue; return False if it was called before."""
        with self._mutex:
            if waiter.is_called():
                return False
            if local_queue.waiters and waiter in local_queue.waiters:
                waiter.place = local_queue.waiters.index(waiter)
                del local_queue.waiters[waiter.place]
            return True

    def _abandon_waiter(self, local_queue: LocalQueue, waiter: LocalWaiter) -> None:
        if not self._leave_queue(local_queue, waiter):
            if waiter.lease is not None:
                self._access.renewer.drop((waiter.lease,))  # the lease ends at its ttl
            elif waiter.leads:
                self._call_next_leader(local_queue)

    async def _give_up_grant(self, local_queue: LocalQueue, waiter: LocalWaiter) -> None:
        """Give up the lease or the leadership that the local waiter got just as it was interrupted."""
        if waiter.lease is not None:
            await self._release(waiter.lease)
        elif waiter.leads:
            self._call_next_leader(local_queue)

    # -- the leader ----------------------------------------------------------------------------------------

    async def _lead(self, local_queue: LocalQueue, waiter: LocalWaiter, until: float | None) -> CoreLease | NotGranted:
        """Acquire the lease from the store as the leader, who has waited in the local queue.

        Such a leader reserves a range of tokens, because others are likely to wait again.
        """
        attempt, spec = None, waiter.spec
        try:
            waiter.leads = False  # from here on `_call_next_leader` and `_fail`, below, call the next leader
            plan, span = self._access.plan_of(spec), self._access.store.capabilities.span
            attempt = Attempt(self._access, spec, plan, until, waiter.owned, True, span)  # noqa: FBT003 - as above
            attempt.unanswered_since = max(local_queue.unanswered_since, waiter.since)
            return self._enter(local_queue, attempt, await attempt.run())
        except BaseException as error:
            self._fail(local_queue, attempt, error)
            raise

    def _enter(
        self, local_queue: LocalQueue, attempt: Attempt, result: CoreLease | NotGranted
    ) -> CoreLease | NotGranted:
        """Note and return what the leader has acquired. Without a lease, call the next leader."""
        local_queue.unanswered_since = attempt.unanswered_since
        if not isinstance(result, CoreLease):
            self._call_next_leader(local_queue)
            return result
        result.local_queue = local_queue
        if result.grant.request.span > 1:
            local_queue.linger = attempt.spec.linger
            with self._mutex:  # `grant.contended`: the notification came before the lease had its local queue
                contended = attempt.contended or attempt.contended_before_grant or result.grant.contended
                local_queue.begin_turn(self._runtime.now(), contended=contended)
        local_queue.lease = result
        if result.lost_because:  # a loss that was told before the line above found no lease in the queue
            self.drop_lost_lease(local_queue, result)
        return result

    def _fail(self, local_queue: LocalQueue, attempt: Attempt | None, error: BaseException) -> None:
        """Call the next leader after an error; fail the local waiters that have waited too long for the store."""
        if attempt is not None:
            local_queue.unanswered_since = attempt.unanswered_since
        if isinstance(error, StoreUnavailable):
            self._fail_expired_waiters(local_queue, error)
        self.repair_after_interrupt(local_queue)

    def _fail_expired_waiters(self, local_queue: LocalQueue, error: StoreUnavailable) -> None:
        """Fail at once all local waiters that have waited `retry_for` seconds for a store that does not answer.

        Otherwise each of them would become the leader and fail in turn.
        """
        late = self._runtime.now() - self._access.requests.retry_for
        with self._mutex:
            waiting = local_queue.waiters or deque()
            given_up = [each for each in waiting if max(each.since, local_queue.unanswered_since) <= late]
            for each in given_up:
                waiting.remove(each)
                each.error = error
        for each in given_up:
            each.event.set()

    def _call_next_leader(self, local_queue: LocalQueue) -> None:
        """Make the first local waiter the leader, and wake it."""
        with self._mutex:
            leader = self._next_leader(local_queue)
        if leader is not None:
            leader.event.set()

    def _next_leader(self, local_queue: LocalQueue) -> LocalWaiter | None:
        """Make the first local waiter the leader and return it; without one, end the queue and return None.

        Call it with the mutex held. The caller sets the leader's event.
        """
        if local_queue.waiters:
            leader = local_queue.waiters[0]
            leader.leads = True
            local_queue.called = leader
            local_queue.waiters.popleft()
            return leader
        if self._queues.get(local_queue.key) is local_queue:
            del self._queues[local_queue.key]
        return None

    def _may_hand_off(self, local_queue: LocalQueue, lease: CoreLease, waiter: LocalWaiter, now: float) -> bool:
        remaining, spec = lease.kept_until - now, waiter.spec
        if lease.token >= lease.grant.last or lease.grant.guarded or remaining < lease.grant.enough():
            return False
        if remaining > seconds(spec.ttl) or remaining > spec.max_hold:
            return False  # if the new holder died, the lease would outlive it for longer than its spec allows
        if not local_queue.bounded:
            return True
        return waiter.turn < local_queue.turn and local_queue.passed < self._fairness_count


def _claim(lease: CoreLease, owned: list[CoreLease]) -> None:
    """Move a lease that lingers into `owned`; after an interrupt it goes on to linger. Call it with the mutex held."""
    lingers_until = lease.lingers_until
    try:
        lease.lingers_until = NEVER
        owned.append(lease)
    except BaseException:
        if lease in owned:
            owned.remove(lease)
        lease.lingers_until = lingers_until
        raise
