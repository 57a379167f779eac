"""Local hand-off: all contenders of one client for one name stand in one queue here, and one of them asks the store.

A lease that is released is passed on to the next contender, who takes the next of the tokens that were reserved with
it, without a word to the store: to the store it is one holding. That goes on for as long as

*   the lease is certainly ours for a while, and tokens are left;
*   nobody outside waits, or the budget of count and time is not used up. The store says with a grant whether somebody
    waits, tells the holder's inbox when the first comes, and again whenever a waiter asks again; and it says so in the
    reply to each renewal, in case these were lost.

Then it is released, and at the same time the next contender asks for it again, at the end of the queue outside. So it
is first come, first served within the process, and between processes each has its turn.

Only contenders for the same ttl and lock delay share a queue: what others rely on when a holder dies is the same for
all of them. No contender is ever handed a lease that may be lost; when one is lost, the next contender asks the store.

A lease that is to *linger* is not released when nobody waits for it here or outside. It goes on as its own successor,
which nobody has, until somebody here takes it up, or somebody outside waits, or its time is over, or it is lost, or the
client is closed. Then it is released in the background.
"""

from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.contracts.deadlines import MICROS, seconds
from holdfast.contracts.messages import Left, WaiterView
from holdfast.core.attempt import Attempt, Want
from holdfast.core.lease import NEVER, HeldLease
from holdfast.core.stop import Stop
from holdfast.errors import StoreUnavailable
from holdfast.outcome import Outcome

if TYPE_CHECKING:
    from holdfast.contracts.runtime import Event
    from holdfast.core.session import Session

PART = 1 / 4 / MICROS
"""A lease is passed on while at least a fourth of its ttl, in microseconds, is left of it."""


@dataclass(slots=True, frozen=True)
class Budget:
    """For how long a process may keep a name to itself while somebody outside waits."""

    count: int = 32
    """How often it hands the name on."""
    time: float = 0.05
    """For how many seconds it does."""


@dataclass(slots=True, eq=False)
class Contender:
    """One who waits here."""

    want: Want
    event: "Event"
    since: float
    owned: list[HeldLease]
    """Where its caller finds what it got, if it is interrupted."""
    lease: HeldLease | None = None
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


class Stile:
    """The local queue in front of one name. There is one while somebody holds, asks or waits."""

    __slots__ = ("called", "contenders", "held", "key", "owner", "passed", "since", "troubled_since", "wanted")

    def __init__(self, owner: "Turnstile", key: tuple[str, int, int]) -> None:
        """Begin with somebody who asks the store, and nobody who waits. Short: it is on the way of every lock."""
        self.owner = owner
        self.key = key
        self.contenders: deque[Contender] | None = None
        """None until there is one."""
        self.held: HeldLease | None = None
        self.called: Contender | None = None
        """Whose turn came last."""
        self.wanted = False
        """Whether somebody outside waits."""
        self.passed = 0
        self.since = 0.0
        self.troubled_since = NEVER
        """Since when the store has not answered those who asked."""

    def lost(self, held: HeldLease) -> None:
        """Let the next contender ask the store, though the holder has not let go, and maybe never will."""
        self.owner.step_aside(self, held)

    def heard(self, held: HeldLease) -> None:
        """Note that somebody outside waits for a lease, as the reply to a renewal says."""
        self.owner.wanted(held)

    def lingered(self, held: HeldLease) -> None:
        """Release a lease that nobody took up in time."""
        self.owner.end_lingering(self, held)

    def lingering(self) -> HeldLease | None:
        """Return the lease that nobody has, if there is one. With the mutex held."""
        held = self.held
        return held if held is not None and held.lingers_until != NEVER else None


class Turnstile:
    """All local queues of one client."""

    def __init__(self, session: "Session", budget: Budget) -> None:
        """Start without any."""
        self._session = session
        self._runtime = session.runtime
        self._mutex = session.mutex  # the leases' own: so nobody finds one lost just while it is passed on
        self._budget = budget
        self._dismissed = False
        self._stiles: dict[tuple[str, int, int], Stile] = {}

    def acquire(
        self, want: Want, key: tuple[str, int, int], until: float | None, owned: list[HeldLease], *, wait: bool
    ) -> Coroutine[Any, Any, HeldLease | Left]:
        """Hold `want`, after those of this process who came before for the same `key`."""
        stile = self._stiles.get(key)
        if stile is None:  # and if it still is then, this one is in front of the name
            return self._lead(Stile(self, key), want, until, owned, wait=wait)
        return self._stand(stile, want, until, owned, wait=wait)

    def pass_on(self, held: HeldLease) -> bool:
        """Hand a lease that is released to the next of this process, or have it ask; return whether it has it now."""
        stile = held.stile
        if stile is None:
            return False
        with self._mutex:
            if stile.held is not held:
                return False
            contender = self._hand_over(stile, held)
            leader = None
            if contender is None:
                leader = self._next_leader(stile)
                stile.held = None
        if contender is None or contender.lease is None:
            if leader is not None:
                leader.event.set()
            return False
        self._session.keeper.replaced(contender.lease)
        held.settle(Outcome.RELEASED)
        try:
            if self._session.events is not None:
                self._session.events.handed_on(held)
        finally:
            contender.event.set()
        return True

    def _hand_over(self, stile: Stile, held: HeldLease) -> Contender | None:
        """Give a successor of the lease to the next contender, if there is one and it may. With the mutex held."""
        if not stile.contenders or self._dismissed:
            return None
        contender, now = stile.contenders[0], self._runtime.now()
        if not self._may_pass(stile, held, contender.want, now):
            return None
        lease = held.successor(contender.want.ttl, now + contender.want.max_hold)
        lease.linger = contender.want.linger
        if not self._session.keeper.replaceable(held):
            return None
        contender.lease = lease  # this decides: `mend` makes good what an interrupt prevents from here on
        self._give(stile, contender, lease)
        stile.passed += 1
        return contender

    def _give(self, stile: Stile, contender: Contender, lease: HeldLease) -> None:
        self._session.keeper.replace(lease)
        stile.held = lease
        stile.called = contender
        if stile.contenders and stile.contenders[0] is contender:
            stile.contenders.popleft()

    def mend(self, stile: Stile) -> None:
        """Complete a change of the queue that an interrupt left half done.

        It may call one contender more than need be: two may ask the store. It never calls one less.
        """
        with self._mutex:
            called = [stile.called]
            first = stile.contenders[0] if stile.contenders else None
            if first is not None and first.lease is not None:
                self._give(stile, first, first.lease)
            held = stile.held
            if held is None or held.let_go or held.lost_because:
                self._next_leader(stile)
                stile.held = None
            called.append(stile.called)
        for contender in called:
            if contender is not None:
                contender.event.set()

    def step_aside(self, stile: Stile, held: HeldLease) -> None:
        """Note that a lease was lost."""
        with self._mutex:
            leader = None
            if stile.held is held:
                leader = self._next_leader(stile)
                stile.held = None
        if leader is not None:
            leader.event.set()

    def wanted(self, held: HeldLease) -> None:
        """Note that somebody outside waits for a lease; one that lingers is released."""
        held.wanted = True  # before we look for its stile: who sets that looks at this afterwards
        stile = held.stile
        if stile is not None:
            stile.wanted = True
            self.end_lingering(stile)

    def waiting(self, name: str) -> list[WaiterView]:
        """Show who waits here for a name: the store does not know of them."""
        now, owner = self._runtime.now(), self._session.owner
        with self._mutex:
            here = [each for stile in self._stiles.values() if stile.key[0] == name for each in stile.contenders or ()]
        return [WaiterView(owner, each.want.weight, now - each.since, alive=True) for each in here]

    # -- leases that linger --------------------------------------------------------------------------------

    def keep(self, held: HeldLease) -> bool:
        """Let a lease go that is to linger, and keep a successor that nobody has; False if it is to be released."""
        stile = held.stile
        if stile is None:
            return False
        with self._mutex:
            now = self._runtime.now()
            if stile.held is not held or stile.contenders or stile.wanted or self._dismissed:
                return False
            ttl, left = stile.key[1], held.kept_until - now
            if held.token >= held.last or now >= held.valid_until or left < held.ask.ttl * PART:
                return False
            if left * MICROS > ttl or held.let_go or held.lost_because:
                return False
            held.let_go = True
            lease = held.successor(ttl, NEVER)
            lease.lingers_until = now + held.linger
            self._session.keeper.replace(lease)
            stile.held = lease
        held.settle(Outcome.RELEASED)
        self._session.keeper.replaced(lease)
        if self._session.events is not None:
            self._session.events.released(held, Outcome.RELEASED)
        return True

    def take_up(self, want: Want, key: tuple[str, int, int], owned: list[HeldLease]) -> HeldLease | None:
        """Return the lease that lingers for a key, to be held from now on, if there is one and it is good enough."""
        with self._mutex:
            stile = self._stiles.get(key)
            if stile is None or (held := stile.held) is None or held.lingers_until == NEVER:
                return None
            now = self._runtime.now()
            left = held.kept_until - now
            if now >= held.lingers_until or left < held.ask.ttl * PART or left > want.max_hold:
                return None
            if held.lost_because or self._dismissed:
                return None
            _claim(held, owned)
            held.linger = want.linger
            if want.max_hold == NEVER:
                return held
            held.ends_at = now + want.max_hold
            held.valid_until = min(held.kept_until, held.ends_at)
        self._session.keeper.replaced(held)
        return held

    async def _go_on(
        self,
        stile: Stile,
        want: Want,
        key: tuple[str, int, int],
        until: float | None,
        owned: list[HeldLease],
        *,
        wait: bool,
    ) -> HeldLease | Left:
        """Take up the lease that lingers; if it is not good enough, release it and ask for another."""
        held = self.take_up(want, key, owned)
        if held is not None:
            return held
        held = self._end_lingering(stile, None, owned)
        if held is not None:
            await self._session.release(held)
            owned.remove(held)
        return await self.acquire(want, key, until, owned, wait=wait)

    def end_lingering(self, stile: Stile, held: HeldLease | None = None) -> None:
        """Release the lease that lingers here in the background, if there is one (and it is `held`)."""
        ended = self._end_lingering(stile, held, [])
        if ended is not None:
            self._session.departures.add(partial(self._session.release, ended), ended.name)

    def idle(self) -> list[HeldLease]:
        """Return all leases that linger."""
        with self._mutex:
            lingering = [stile.lingering() for stile in self._stiles.values()]
        return [held for held in lingering if held is not None]

    def end_all_lingering(self) -> None:
        """Release all leases that linger: somebody may wait for them, and we may not have heard it."""
        for held in self.idle():
            if held.stile is not None:
                self.end_lingering(held.stile, held)

    def _end_lingering(self, stile: Stile, only: HeldLease | None, owned: list[HeldLease]) -> HeldLease | None:
        with self._mutex:
            held = stile.lingering()
            if held is None or (only is not None and only is not held):
                return None
            _claim(held, owned)
            leader = self._next_leader(stile)
            stile.held = None
        if leader is not None:
            leader.event.set()
        return held

    # -- the end -------------------------------------------------------------------------------------------

    def dismiss(self) -> None:
        """Hand nothing on any more, and wake all who wait here, to find the client closed."""
        with self._mutex:
            self._dismissed = True
            waiting = [contender for stile in self._stiles.values() for contender in stile.contenders or ()]
        for contender in waiting:
            contender.event.set()

    def wake_all(self, stop: Stop) -> None:
        """Wake all who wait here with `stop`, to find it set."""
        with self._mutex:
            waiting = [contender for stile in self._stiles.values() for contender in stile.contenders or ()]
        for contender in waiting:
            if contender.want.stop is stop:
                contender.event.set()

    def abandon(self) -> None:
        """In a forked child: hand nothing on, and wait for no thread that is not here."""
        self._dismissed = True
        self._mutex = self._runtime.mutex()

    # -- those who wait ------------------------------------------------------------------------------------

    async def _stand(
        self, stile: Stile, want: Want, until: float | None, owned: list[HeldLease], *, wait: bool
    ) -> HeldLease | Left:
        """Join the queue, and wait there to be handed the lease, or to have to ask for it."""
        contender = Contender(want, self._runtime.event(), self._runtime.now(), owned)
        try:
            if not self._join(stile, contender, wait=wait):
                return await self._go_on(stile, want, stile.key, until, owned, wait=wait)
            if not wait or not await self._is_called(stile, contender, until):
                return self._left(stile, contender.place)
            if contender.lease is not None:
                owned.append(contender.lease)
                return contender.lease
            if contender.error is None:
                return await self._lead(stile, want, until, owned, wait=True, contender=contender)
        except GeneratorExit:  # nothing can be awaited any more
            self._abandon(stile, contender)
            raise
        except BaseException:
            if not self._withdraw(stile, contender):
                await self._runtime.finish(self._decline(stile, contender))
            raise
        raise StoreUnavailable(str(contender.error)) from contender.error

    def _join(self, stile: Stile, contender: Contender, *, wait: bool) -> bool:
        """Stand in the queue, if it is worth waiting; False if the queue is over, or only a lease lingers there."""
        with self._mutex:
            if self._stiles.get(stile.key) is not stile or stile.lingering() is not None:
                return False
            if stile.contenders is None:
                stile.contenders = deque()
            if wait:
                stile.contenders.append(contender)
            else:
                contender.place = len(stile.contenders)
            return True

    async def _is_called(self, stile: Stile, contender: Contender, until: float | None) -> bool:
        """Wait for the contender's turn; False if it has left the queue, for its time is over."""
        if self._session.events is not None:
            self._session.events.contended(contender.want.name)
        held = stile.held
        if until is None and held is not None and held.by is self._runtime.mark():
            self._session.refuse_to_wait_for_oneself(contender.want)
        while not contender.is_called():
            self._session.refuse_to_wait(contender.want)
            if not await contender.event.wait(until) and self._withdraw(stile, contender):
                return False
        return True

    def _left(self, stile: Stile, place: int) -> Left:
        """Say who holds, and how many were before us: here, and the one who asks the store if nobody holds."""
        return Left((self._session.owner,), place) if stile.held else Left((), place + 1)

    def _withdraw(self, stile: Stile, contender: Contender) -> bool:
        """Leave the queue; False if its turn has come."""
        with self._mutex:
            if contender.is_called():
                return False
            if stile.contenders and contender in stile.contenders:
                contender.place = stile.contenders.index(contender)
                del stile.contenders[contender.place]
            return True

    def _abandon(self, stile: Stile, contender: Contender) -> None:
        if not self._withdraw(stile, contender):
            if contender.lease is not None:
                self._session.keeper.drop(contender.lease)  # it ends at its ttl
            elif contender.leads:
                self._resign(stile)

    async def _decline(self, stile: Stile, contender: Contender) -> None:
        """Pass on what came just when it was no longer wanted."""
        if contender.lease is not None:
            await self._session.release(contender.lease)
        elif contender.leads:
            self._resign(stile)

    # -- the one who asks ----------------------------------------------------------------------------------

    async def _lead(
        self,
        stile: Stile,
        want: Want,
        until: float | None,
        owned: list[HeldLease],
        *,
        wait: bool,
        contender: Contender | None = None,
    ) -> HeldLease | Left:
        """Ask the store; for a range of tokens if we waited here as a `contender`: then others will again.

        Who has not waited brings a new queue, which begins here, where an interrupt of any kind ends it.
        """
        attempt = None
        span = self._session.store.capabilities.span if contender is not None or want.linger else 1
        try:
            if contender is None:
                with self._mutex:
                    there = self._stiles.setdefault(stile.key, stile)
                if there is not stile:
                    return await self.acquire(want, stile.key, until, owned, wait=wait)
                attempt = Attempt(self._session, want, until, owned, wait=wait, span=span)
            else:
                contender.leads = False  # from here on this is who lets the next one ask
                attempt = Attempt(self._session, want, until, owned, wait=wait, span=span)
                attempt.troubled_since = max(stile.troubled_since, contender.since)
            won = await attempt.run()
            stile.troubled_since = attempt.troubled_since
            if not isinstance(won, HeldLease):
                self._resign(stile)
                return won
            won.stile = stile
            if span > 1:
                won.linger = want.linger
                stile.passed, stile.since, stile.wanted = 0, self._runtime.now(), attempt.wanted
                if won.wanted or attempt.outrun:  # heard just before it had a stile, or was a lease
                    stile.wanted = True
            stile.held = won
            if won.lost_because:
                self.step_aside(stile, won)
            return won
        except BaseException as error:
            self._fail(stile, attempt, error)
            raise

    def _fail(self, stile: Stile, attempt: Attempt | None, error: BaseException) -> None:
        """Let the next one ask, and those who have waited for too long fail, too."""
        if attempt is not None:
            stile.troubled_since = attempt.troubled_since
        if isinstance(error, StoreUnavailable):
            self._dishearten(stile, error)
        self.mend(stile)

    def _dishearten(self, stile: Stile, error: StoreUnavailable) -> None:
        """Let all fail who have waited through this trouble for as long as they ride it out: not one after another."""
        late = self._runtime.now() - self._session.retry_for
        with self._mutex:
            waiting = stile.contenders or deque()
            given_up = [each for each in waiting if max(each.since, stile.troubled_since) <= late]
            for each in given_up:
                waiting.remove(each)
                each.error = error
        for each in given_up:
            each.event.set()

    def _resign(self, stile: Stile) -> None:
        """Let the next one ask."""
        with self._mutex:
            leader = self._next_leader(stile)
        if leader is not None:
            leader.event.set()

    def _next_leader(self, stile: Stile) -> Contender | None:
        """Return whose turn it is to ask the store; nobody's, and the queue is over. With the mutex held."""
        if stile.contenders:
            leader = stile.contenders[0]
            leader.leads = True
            stile.called = leader
            stile.contenders.popleft()
            return leader
        if self._stiles.get(stile.key) is stile:
            del self._stiles[stile.key]
        return None

    def _may_pass(self, stile: Stile, held: HeldLease, want: Want, now: float) -> bool:
        left = held.kept_until - now
        if held.token >= held.last or left < held.ask.ttl * PART:
            return False
        if left > seconds(want.ttl) or left > want.max_hold:  # it would outlive a dead holder for longer than it may
            return False
        if not stile.wanted:
            return True
        return stile.passed < self._budget.count and now - stile.since < self._budget.time


def _claim(held: HeldLease, owned: list[HeldLease]) -> None:
    """Take a lease that lingers, to be held by who gave `owned`; interrupted, it lingers on. With the mutex held."""
    lingers_until = held.lingers_until
    try:
        held.lingers_until = NEVER
        owned.append(held)
    except BaseException:
        if held in owned:
            owned.remove(held)
        held.lingers_until = lingers_until
        raise
