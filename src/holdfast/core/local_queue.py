"""Local hand-off: all contenders of one client for one name stand in one queue here, and one of them asks the store.

A lease that is released is passed on to the next contender, who takes the next of the tokens that were reserved with
it, without a word to the store: to the store it is one holding. That goes on for as long as

*   the lease is certainly ours for a while, and tokens are left;
*   nobody outside waits, or the budget of count and time is not used up. The store says with a grant whether somebody
    waits, tells the holder's channel when the first comes, and again whenever a waiter asks again; and it says so in
    the reply to each renewal, in case these were lost.

Then it is released, and at the same time the next contender asks for it again, at the end of the queue outside. So it
is first come, first served within the process, and between processes each has its turn.

Only contenders for the same ttl and lock delay share a queue: what others rely on when a holder dies is the same for
all of them. No contender is ever handed a lease that may be lost; when one is lost, the next contender asks the store.

A lease that is to *linger* is not released when nobody waits for it here or outside. It goes on as its own successor,
which nobody has, until somebody here takes it up, or somebody outside waits, or its time is over, or it is lost, or the
client is closed. Then it is released in the background.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.contracts.deadlines import MICROS, NEVER, seconds
from holdfast.contracts.messages import NotGranted, WaiterView
from holdfast.core.access import FairnessBudget, StoreAccess
from holdfast.core.attempt import Attempt
from holdfast.core.lease import CoreLease
from holdfast.core.self_deadlock import refuse_to_wait_for_oneself
from holdfast.core.spec import LockSpec
from holdfast.core.stop import Stop
from holdfast.errors import StoreUnavailable
from holdfast.outcome import Outcome

if TYPE_CHECKING:
    from holdfast.contracts.runtime import Event

Release = Callable[[CoreLease], Coroutine[Any, Any, Outcome]]

PART = 1 / 4 / MICROS
"""A lease is passed on while at least a fourth of its ttl, in microseconds, is left of it."""


@dataclass(slots=True, eq=False)
class LocalWaiter:
    """One who waits here."""

    spec: LockSpec
    event: "Event"
    since: float
    owned: list[CoreLease]
    """Where its caller finds what it got, if it is interrupted."""
    lease: CoreLease | None = None
    """What was handed to it."""
    place: int = 0
    """How many stood before it when it left."""
    leads: bool = False
    """Whether it is its turn to ask the store."""
    error: StoreUnavailable | None = None
    """Why its turn will not come: the store has not answered those before it for as long as it rides that out."""

    def is_called(self) -> bool:
        """Tell whether it need not wait here any more."""
        return self.leads or self.lease is not None or self.error is not None


class LocalQueue:
    """The local queue in front of one name. There is one while somebody holds, asks or waits."""

    __slots__ = ("called", "contended", "contenders", "key", "lease", "owner", "passed", "since", "unanswered_since")

    def __init__(self, owner: "LocalQueues", key: tuple[str, int, int]) -> None:
        """Begin with somebody who asks the store, and nobody who waits. Short: it is on the way of every lock."""
        self.owner = owner
        self.key = key
        self.contenders: deque[LocalWaiter] | None = None
        """None until there is one."""
        self.lease: CoreLease | None = None
        self.called: LocalWaiter | None = None
        """Whose turn came last."""
        self.contended = False
        """Whether somebody outside waits."""
        self.passed = 0
        self.since = 0.0
        self.unanswered_since = NEVER
        """Since when the store has not answered those who asked."""

    def lost(self, lease: CoreLease) -> None:
        """Let the next contender ask the store, though the holder has not let go, and maybe never will."""
        self.owner.step_aside(self, lease)

    def heard(self, lease: CoreLease) -> None:
        """Note that somebody outside waits for a lease, as the reply to a renewal says."""
        self.owner.contended(lease)

    def lingered(self, lease: CoreLease) -> None:
        """Release a lease that nobody took up in time."""
        self.owner.end_lingering(self, lease)

    def lingering(self) -> CoreLease | None:
        """Return the lease that nobody has, if there is one. With the mutex held."""
        lease = self.lease
        return lease if lease is not None and lease.lingers_until != NEVER else None


class LocalQueues:
    """All local queues of one client."""

    def __init__(self, access: StoreAccess, budget: FairnessBudget, release: Release) -> None:
        """Start without any."""
        self._access = access
        self._release = release
        self._runtime = access.runtime
        self._mutex = access.mutex  # the leases' own: so nobody finds one lost just while it is passed on
        self._budget = budget
        self._dismissed = False
        self._queues: dict[tuple[str, int, int], LocalQueue] = {}

    def acquire(
        self, spec: LockSpec, key: tuple[str, int, int], until: float | None, owned: list[CoreLease], *, wait: bool
    ) -> Coroutine[Any, Any, CoreLease | NotGranted]:
        """Hold `spec`, after those of this process who came before for the same `key`."""
        local_queue = self._queues.get(key)
        if local_queue is None:  # and if it still is then, this one is in front of the name
            return self._lead(LocalQueue(self, key), spec, until, owned, wait=wait)
        return self._stand(local_queue, spec, until, owned, wait=wait)

    def hand_off(self, lease: CoreLease) -> bool:
        """Hand a lease that is released to the next of this process, or have it ask; return whether it has it now."""
        local_queue = lease.local_queue
        if not isinstance(local_queue, LocalQueue):
            return False
        with self._mutex:
            if local_queue.lease is not lease:
                return False
            contender = leader = None
            if local_queue.contenders:
                contender = self._hand_over(local_queue, lease)
            if contender is None:
                leader = self._next_leader(local_queue)
                local_queue.lease = None
        if contender is None or contender.lease is None:
            if leader is not None:
                leader.event.set()
            return False
        self._access.renewer.replaced(contender.lease)
        lease.settle(Outcome.RELEASED)
        try:
            if self._access.events is not None:
                self._access.events.handed_on(lease)
        finally:
            contender.event.set()
        return True

    def _hand_over(self, local_queue: LocalQueue, lease: CoreLease) -> LocalWaiter | None:
        """Give a successor of the lease to the next contender, if there is one and it may. With the mutex held."""
        if not local_queue.contenders or self._dismissed:
            return None
        contender, now = local_queue.contenders[0], self._runtime.now()
        if not self._may_hand_off(local_queue, lease, contender.spec, now):
            return None
        successor = lease.successor(contender.spec.ttl, now + contender.spec.max_hold)
        successor.linger = contender.spec.linger
        if not self._access.renewer.replaceable(lease):
            return None
        contender.lease = successor  # this decides: `mend` makes good what an interrupt prevents from here on
        self._give(local_queue, contender, successor)
        local_queue.passed += 1
        return contender

    def _give(self, local_queue: LocalQueue, contender: LocalWaiter, lease: CoreLease) -> None:
        self._access.renewer.replace(lease)
        local_queue.lease = lease
        local_queue.called = contender
        if local_queue.contenders and local_queue.contenders[0] is contender:
            local_queue.contenders.popleft()

    def mend(self, local_queue: LocalQueue) -> None:
        """Complete a change of the queue that an interrupt left half done.

        It may call one contender more than need be: two may ask the store. It never calls one less.
        """
        with self._mutex:
            called = [local_queue.called]
            first = local_queue.contenders[0] if local_queue.contenders else None
            if first is not None and first.lease is not None:
                self._give(local_queue, first, first.lease)
            lease = local_queue.lease
            if lease is None or lease.over():
                self._next_leader(local_queue)
                local_queue.lease = None
            called.append(local_queue.called)
        for contender in called:
            if contender is not None:
                contender.event.set()

    def step_aside(self, local_queue: LocalQueue, lease: CoreLease) -> None:
        """Note that a lease was lost."""
        with self._mutex:
            leader = None
            if local_queue.lease is lease:
                leader = self._next_leader(local_queue)
                local_queue.lease = None
        if leader is not None:
            leader.event.set()

    def contended(self, lease: CoreLease) -> None:
        """Note that somebody outside waits for a lease; one that lingers is released."""
        lease.contended = True  # before we look for its local queue: who sets that looks at this afterwards
        local_queue = lease.local_queue
        if isinstance(local_queue, LocalQueue):
            local_queue.contended = True
            self.end_lingering(local_queue)

    def waiting(self, name: str) -> list[WaiterView]:
        """Show who waits here for a name: the store does not know of them."""
        now, owner = self._runtime.now(), self._access.owner
        with self._mutex:
            here = [
                each
                for local_queue in self._queues.values()
                if local_queue.key[0] == name
                for each in local_queue.contenders or ()
            ]
        return [WaiterView(owner, each.spec.weight, now - each.since, alive=True) for each in here]

    # -- leases that linger --------------------------------------------------------------------------------

    def keep(self, lease: CoreLease) -> bool:
        """Let a lease go that is to linger, and keep a successor that nobody has; False if it is to be released."""
        local_queue = lease.local_queue
        if not isinstance(local_queue, LocalQueue):
            return False
        with self._mutex:
            now = self._runtime.now()
            if local_queue.lease is not lease or local_queue.contenders or local_queue.contended or self._dismissed:
                return False
            ttl, left = local_queue.key[1], lease.kept_until - now
            if lease.token >= lease.last or now >= lease.valid_until or left < lease.request.ttl * PART:
                return False
            if left * MICROS > ttl or not lease.begin_release():
                return False
            successor = lease.successor(ttl, NEVER)
            successor.lingers_until = now + lease.linger
            self._access.renewer.replace(successor)
            local_queue.lease = successor
        lease.settle(Outcome.RELEASED)
        self._access.renewer.replaced(successor)
        if self._access.events is not None:
            self._access.events.released(lease, Outcome.RELEASED)
        return True

    def take_up(self, spec: LockSpec, key: tuple[str, int, int], owned: list[CoreLease]) -> CoreLease | None:
        """Return the lease that lingers for a key, to be held from now on, if there is one and it is good enough."""
        with self._mutex:
            local_queue = self._queues.get(key)
            if local_queue is None or (lease := local_queue.lease) is None or lease.lingers_until == NEVER:
                return None
            now = self._runtime.now()
            left = lease.kept_until - now
            if now >= lease.lingers_until or left < lease.request.ttl * PART or left > spec.max_hold:
                return None
            if lease.lost_because or self._dismissed:
                return None
            _claim(lease, owned)
            lease.linger = spec.linger
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
        key: tuple[str, int, int],
        until: float | None,
        owned: list[CoreLease],
        *,
        wait: bool,
    ) -> CoreLease | NotGranted:
        """Take up the lease that lingers; if it is not good enough, release it and ask for another."""
        lease = self.take_up(spec, key, owned)
        if lease is not None:
            return lease
        lease = self._end_lingering(local_queue, None, owned)
        if lease is not None:
            await self._release(lease)
            owned.remove(lease)
        return await self.acquire(spec, key, until, owned, wait=wait)

    def end_lingering(self, local_queue: LocalQueue, lease: CoreLease | None = None) -> None:
        """Release the lease that lingers here in the background, if there is one (and it is `lease`)."""
        ended = self._end_lingering(local_queue, lease, [])
        if ended is not None:
            self._access.background_releases.add(partial(self._release, ended), ended.name)

    def idle(self) -> list[CoreLease]:
        """Return all leases that linger."""
        with self._mutex:
            lingering = [local_queue.lingering() for local_queue in self._queues.values()]
        return [lease for lease in lingering if lease is not None]

    def end_all_lingering(self) -> None:
        """Release all leases that linger: somebody may wait for them, and we may not have heard it."""
        for lease in self.idle():
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
        """Hand nothing on any more, and wake all who wait here, to find the client closed."""
        with self._mutex:
            self._dismissed = True
            waiting = [contender for local_queue in self._queues.values() for contender in local_queue.contenders or ()]
        for contender in waiting:
            contender.event.set()

    def wake_all(self, stop: Stop) -> None:
        """Wake all who wait here with `stop`, to find it set."""
        with self._mutex:
            waiting = [contender for local_queue in self._queues.values() for contender in local_queue.contenders or ()]
        for contender in waiting:
            if contender.spec.stop is stop:
                contender.event.set()

    def abandon(self) -> None:
        """In a forked child: hand nothing on, and wait for no thread that is not here."""
        self._dismissed = True
        self._mutex = self._runtime.mutex()

    # -- those who wait ------------------------------------------------------------------------------------

    async def _stand(
        self, local_queue: LocalQueue, spec: LockSpec, until: float | None, owned: list[CoreLease], *, wait: bool
    ) -> CoreLease | NotGranted:
        """Join the queue, and wait there to be handed the lease, or to have to ask for it."""
        contender = LocalWaiter(spec, self._runtime.event(), self._runtime.now(), owned)
        try:
            if not self._join(local_queue, contender, wait=wait):
                return await self._go_on(local_queue, spec, local_queue.key, until, owned, wait=wait)
            if not wait or not await self._is_called(local_queue, contender, until):
                return self._left(local_queue, contender.place)
            if contender.lease is not None:
                owned.append(contender.lease)
                return contender.lease
            if contender.error is None:
                return await self._lead(local_queue, spec, until, owned, wait=True, contender=contender)
        except GeneratorExit:  # nothing can be awaited any more
            self._abandon(local_queue, contender)
            raise
        except BaseException:
            if not self._withdraw(local_queue, contender):
                await self._runtime.finish(self._decline(local_queue, contender))
            raise
        raise StoreUnavailable(str(contender.error)) from contender.error

    def _join(self, local_queue: LocalQueue, contender: LocalWaiter, *, wait: bool) -> bool:
        """Stand in the queue, if it is worth waiting; False if the queue is over, or only a lease lingers there."""
        with self._mutex:
            if self._queues.get(local_queue.key) is not local_queue or local_queue.lingering() is not None:
                return False
            if local_queue.contenders is None:
                local_queue.contenders = deque()
            if wait:
                local_queue.contenders.append(contender)
            else:
                contender.place = len(local_queue.contenders)
            return True

    async def _is_called(self, local_queue: LocalQueue, contender: LocalWaiter, until: float | None) -> bool:
        """Wait for the contender's turn; False if it has left the queue, for its time is over."""
        if self._access.events is not None:
            self._access.events.contended(contender.spec.name)
        lease = local_queue.lease
        if until is None and lease is not None and lease.by is self._runtime.mark():
            refuse_to_wait_for_oneself(self._access, contender.spec)
        while not contender.is_called():
            self._access.refuse_to_wait(contender.spec)
            if not await contender.event.wait(until) and self._withdraw(local_queue, contender):
                return False
        return True

    def _left(self, local_queue: LocalQueue, place: int) -> NotGranted:
        """Say who holds, and how many were before us: here, and the one who asks the store if nobody holds."""
        return NotGranted((self._access.owner,), place) if local_queue.lease else NotGranted((), place + 1)

    def _withdraw(self, local_queue: LocalQueue, contender: LocalWaiter) -> bool:
        """Leave the queue; False if its turn has come."""
        with self._mutex:
            if contender.is_called():
                return False
            if local_queue.contenders and contender in local_queue.contenders:
                contender.place = local_queue.contenders.index(contender)
                del local_queue.contenders[contender.place]
            return True

    def _abandon(self, local_queue: LocalQueue, contender: LocalWaiter) -> None:
        if not self._withdraw(local_queue, contender):
            if contender.lease is not None:
                self._access.renewer.drop(contender.lease)  # it ends at its ttl
            elif contender.leads:
                self._resign(local_queue)

    async def _decline(self, local_queue: LocalQueue, contender: LocalWaiter) -> None:
        """Pass on what came just when it was no longer wanted."""
        if contender.lease is not None:
            await self._release(contender.lease)
        elif contender.leads:
            self._resign(local_queue)

    # -- the one who asks ----------------------------------------------------------------------------------

    async def _lead(
        self,
        local_queue: LocalQueue,
        spec: LockSpec,
        until: float | None,
        owned: list[CoreLease],
        *,
        wait: bool,
        contender: LocalWaiter | None = None,
    ) -> CoreLease | NotGranted:
        """Ask the store; for a range of tokens if we waited here as a `contender`: then others will again.

        Who has not waited brings a new queue, which begins here, where an interrupt of any kind ends it.
        """
        attempt = None
        span = self._access.store.capabilities.span if contender is not None or spec.linger else 1
        try:
            if contender is None:
                with self._mutex:
                    there = self._queues.setdefault(local_queue.key, local_queue)
                if there is not local_queue:
                    return await self.acquire(spec, local_queue.key, until, owned, wait=wait)
                attempt = Attempt(self._access, spec, until, owned, wait=wait, span=span)
            else:
                contender.leads = False  # from here on this is who lets the next one ask
                attempt = Attempt(self._access, spec, until, owned, wait=wait, span=span)
                attempt.unanswered_since = max(local_queue.unanswered_since, contender.since)
            result = await attempt.run()
            local_queue.unanswered_since = attempt.unanswered_since
            if not isinstance(result, CoreLease):
                self._resign(local_queue)
                return result
            result.local_queue = local_queue
            if span > 1:
                result.linger = spec.linger
                local_queue.passed, local_queue.since, local_queue.contended = 0, self._runtime.now(), attempt.contended
                if result.contended or attempt.outrun:  # heard just before it had a local queue, or was a lease
                    local_queue.contended = True
            local_queue.lease = result
            if result.lost_because:
                self.step_aside(local_queue, result)
            return result
        except BaseException as error:
            self._fail(local_queue, attempt, error)
            raise

    def _fail(self, local_queue: LocalQueue, attempt: Attempt | None, error: BaseException) -> None:
        """Let the next one ask, and those who have waited for too long fail, too."""
        if attempt is not None:
            local_queue.unanswered_since = attempt.unanswered_since
        if isinstance(error, StoreUnavailable):
            self._dishearten(local_queue, error)
        self.mend(local_queue)

    def _dishearten(self, local_queue: LocalQueue, error: StoreUnavailable) -> None:
        """Let all fail who have waited through this trouble for as long as they ride it out: not one after another."""
        late = self._runtime.now() - self._access.retry_for
        with self._mutex:
            waiting = local_queue.contenders or deque()
            given_up = [each for each in waiting if max(each.since, local_queue.unanswered_since) <= late]
            for each in given_up:
                waiting.remove(each)
                each.error = error
        for each in given_up:
            each.event.set()

    def _resign(self, local_queue: LocalQueue) -> None:
        """Let the next one ask."""
        with self._mutex:
            leader = self._next_leader(local_queue)
        if leader is not None:
            leader.event.set()

    def _next_leader(self, local_queue: LocalQueue) -> LocalWaiter | None:
        """Return whose turn it is to ask the store; nobody's, and the queue is over. With the mutex held."""
        if local_queue.contenders:
            leader = local_queue.contenders[0]
            leader.leads = True
            local_queue.called = leader
            local_queue.contenders.popleft()
            return leader
        if self._queues.get(local_queue.key) is local_queue:
            del self._queues[local_queue.key]
        return None

    def _may_hand_off(self, local_queue: LocalQueue, lease: CoreLease, spec: LockSpec, now: float) -> bool:
        left = lease.kept_until - now
        if lease.token >= lease.last or left < lease.request.ttl * PART:
            return False
        if left > seconds(spec.ttl) or left > spec.max_hold:  # it would outlive a dead holder for longer than it may
            return False
        if not local_queue.contended:
            return True
        return local_queue.passed < self._budget.count and now - local_queue.since < self._budget.time


def _claim(lease: CoreLease, owned: list[CoreLease]) -> None:
    """Take a lease that lingers, to be held by who gave `owned`; interrupted, it lingers on. With the mutex held."""
    lingers_until = lease.lingers_until
    try:
        lease.lingers_until = NEVER
        owned.append(lease)
    except BaseException:
        if lease in owned:
            owned.remove(lease)
        lease.lingers_until = lingers_until
        raise
