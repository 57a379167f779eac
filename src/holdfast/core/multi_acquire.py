"""Several names at once: all of them or none.

The rules, each of which keeps contenders for overlapping names from waiting for each other, or a name from being left
behind:

*   The names are taken in one order, that of their bytes, whatever order was given. Nobody holds or waits for a later
    one while it waits for an earlier one; so whoever holds the last name that anybody waits for waits for nobody.
*   A store that can is asked for all that are left in one step. It grants them up to the first that is not free, and
    in the queue of that one we then wait. Free names cost one request, however many they are.
*   Asked again after a lost reply, the step may find earlier names lost and grant fewer: those that an earlier request
    may have got are left before anybody waits.
*   If one of the leases is lost, the others are worth nothing, and are lost with it. They are renewed no more; letting
    go gives them back at once.
*   Whoever gets out without all of them, by whatever way, leaves or releases every name that the store may know of.

Those who want a single name stand in the local queue of their process, in front of the store's. Whoever wants several
in one step stands in the store's queue by itself, as if it were of another process.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.contracts.deadlines import NEVER, valid_until
from holdfast.contracts.messages import AcquireRequest, Granted, NotGranted, Reply
from holdfast.core.access import StoreAccess
from holdfast.core.attempt import Attempt
from holdfast.core.lease import CoreLease, LeaseState
from holdfast.core.session import Session
from holdfast.core.spec import LockSpec
from holdfast.errors import ForkedLeaseError, LeaseLost, OutcomeUnknown, StoreUnavailable
from holdfast.outcome import Outcome

if TYPE_CHECKING:
    from holdfast.contracts.runtime import Event

log = logging.getLogger("holdfast")

WORST_FIRST = (Outcome.TAKEN_OVER, Outcome.EXPIRED, Outcome.UNKNOWN, Outcome.RELEASED)


@dataclass(slots=True)
class Missed:
    """What was not to be had in time. Nothing is held of the others either."""

    place: int
    """Which of the wanted names."""
    left: NotGranted


async def acquire_all(
    session: Session,
    specs: Sequence[LockSpec],
    timeout: float | None,
    max_hold: float = NEVER,
    owned: list[CoreLease] | None = None,
    *,
    detect_deadlock: bool = False,
) -> list[CoreLease] | Missed:
    """Hold all of `specs`, which are sorted by name, or none, and say which of them was not to be had.

    What is granted is in `owned` before it is returned, so that a caller who is interrupted in between can have the
    session give that back.

    The `timeout` in seconds counts for all of them together (0: ask once; None: wait for ever), `max_hold` from when
    all are held. Raises StoreError if the store cannot be asked; then nothing is held.
    """
    if owned is None:
        owned = []
    until = None if timeout is None else session.runtime.now() + timeout
    await session.open(timeout, specs[0] if specs else None)
    while True:
        result = await _MultiAcquire(
            session, specs, until, owned, wait=timeout != 0, detect_deadlock=detect_deadlock
        ).run()
        if isinstance(result, Missed):
            return result
        if all(lease.trusted() for lease in result):
            ends_at, mark = session.runtime.now() + max_hold, session.runtime.mark()
            for lease in result:
                lease.by = mark
                _limit(session, lease, ends_at)
            return result
        log.debug("one of %s was lost while the others were waited for; beginning again", [spec.name for spec in specs])
        await release_all(session, result)
        owned.clear()


def _limit(session: Session, lease: CoreLease, ends_at: float) -> None:
    """Have a lease end at a local instant."""
    if ends_at == NEVER:
        return
    with lease.mutex:
        lease.ends_at = ends_at
        lease.valid_until = min(lease.kept_until, ends_at)
    session.renewer.plan(lease)


class _MultiAcquire:
    """One acquisition of several names. Used once."""

    def __init__(
        self,
        session: Session,
        specs: Sequence[LockSpec],
        until: float | None,
        owned: list[CoreLease],
        *,
        wait: bool,
        detect_deadlock: bool,
    ) -> None:
        self._session = session
        self._detect_deadlock = detect_deadlock
        self._runtime = session.runtime
        self._specs = specs
        self._until = until
        self._wait = wait
        self._held = owned
        """Whatever is granted, in the order of the names; each puts itself here when it becomes a lease."""
        self._requested_at = session.runtime.now()
        self._parts: list[_Part] = []
        """What was asked for along with another in this step."""

    async def run(self) -> list[CoreLease] | Missed:
        """Acquire all, or nothing."""
        try:
            while len(self._held) < len(self._specs):
                left = await (self._in_one_step() if self._session.store.capabilities.multi_acquire else self._next())
                if left is not None:
                    missed = Missed(len(self._held), left)
                    await self._runtime.finish(self._undo())
                    return missed
        except GeneratorExit:  # nothing can be awaited any more: they end at their ttl
            for lease in self._held:
                self._session.renewer.drop(lease)
            for each in self._parts:
                each.forget()
            raise
        except BaseException:
            await self._runtime.finish(self._undo())
            raise
        return self._held

    async def _next(self) -> NotGranted | None:
        """Acquire the next name, by itself."""
        timeout: float | None = 0
        if self._wait:
            timeout = None if self._until is None else max(0.0, self._until - self._runtime.now())
        result = await self._session.acquire(self._missing()[0], timeout, self._held)
        return result if isinstance(result, NotGranted) else None

    async def _in_one_step(self) -> NotGranted | None:
        """Acquire the next name, and with it those after it that are free, up to one that has to be waited for."""
        specs = self._missing()
        followers = [_Part(self._session, spec, self._until, self._held, wait=self._wait) for spec in specs[1:]]
        self._parts = list(followers)
        leader = _Leader(self._session, specs[0], self._until, self._held, followers, wait=self._wait)
        result = await leader.run()
        if isinstance(result, NotGranted):
            return result
        self._tell(result)
        for each in [each for each in followers if each.is_engaged()]:
            if each.came_late():
                break
            result = await each.run()
            if isinstance(result, NotGranted):
                return result
            self._tell(result)
        await self._runtime.finish(self._withdraw_parts())
        return None

    def _tell(self, result: CoreLease) -> None:
        if self._session.events is not None:
            self._session.events.acquired(result, self._requested_at)

    def _missing(self) -> list[LockSpec]:
        """Return what is not held yet, and have it say what is, if that is looked at."""
        specs = list(self._specs[len(self._held) :])
        return [self._session.actors.speak_for(spec) for spec in specs] if self._detect_deadlock else specs

    async def _withdraw_parts(self) -> None:
        """Leave what the store may know of, and is no lease."""
        for each in self._parts:
            if each.is_engaged():
                await each.give_up()

    async def _undo(self) -> None:
        await self._withdraw_parts()
        await release_all(self._session, self._held)
        self._held.clear()


class _Part(Attempt):
    """The acquisition of one of several names, which is asked for along with one before it."""

    __slots__ = ("_answer", "_before")

    def __init__(
        self, access: StoreAccess, spec: LockSpec, until: float | None, owned: list[CoreLease], *, wait: bool
    ) -> None:
        super().__init__(access, spec, until, owned, wait=wait)
        self._answer: Reply | None = None
        self._before = False

    def go_along(self, sent: float) -> AcquireRequest:
        """Note that the request is sent along with another, and return it."""
        self._access.attempts[self._request.request_id] = self  # a push may be heard before the reply
        self._sent, self._answer = sent, None
        self._before, self._engaged = self._engaged, True
        return self._request

    def is_answered(self, reply: Reply) -> None:
        """Take the answer, to go on with when it is run."""
        self._answer = reply

    def is_passed_over(self) -> bool:
        """Note that the store did not look at it this time; return whether it may have at another time."""
        self._engaged = self._before
        if not self._engaged:
            self.forget()
        return self._engaged

    def is_unanswered(self, *, unknown: bool) -> None:
        """Note that no answer came; if `unknown`, the store may have carried it out, or do so yet."""
        self._unsure = self._unsure or unknown
        if not unknown:
            self.is_passed_over()

    def is_engaged(self) -> bool:
        """Tell whether the store may know of it."""
        return self._engaged

    def came_late(self) -> bool:
        """Tell whether it was granted so long ago that it is over."""
        answer = self._answer
        return isinstance(answer, Granted) and valid_until(self._sent, answer.ttl) <= self._runtime.now()

    async def give_up(self) -> None:
        """Leave whatever the store may know of it."""
        await self._withdraw()
        self.forget()

    def forget(self) -> None:
        """Hear no more of it."""
        self._access.attempts.pop(self._request.request_id, None)

    async def _send(self) -> Reply:
        answer, self._answer = self._answer, None
        return await super()._send() if answer is None else answer


class _Leader(Attempt):
    """The acquisition of the first of several names, along with which the others are asked for."""

    __slots__ = ("_followers",)

    def __init__(
        self,
        access: StoreAccess,
        spec: LockSpec,
        until: float | None,
        owned: list[CoreLease],
        followers: list[_Part],
        *,
        wait: bool,
    ) -> None:
        super().__init__(access, spec, until, owned, wait=wait)
        self._followers = followers
        """What became of them is for whoever made them to find out. May be replaced by new ones."""

    async def _put(self, until: float) -> Reply:
        followers = self._followers
        if not followers:
            return await super()._put(until)
        requests = [self._request, *(each.go_along(self._sent) for each in followers)]
        try:
            replies = await self._access.store.acquire_many(requests, until)
        except StoreUnavailable as error:
            for each in followers:
                each.is_unanswered(unknown=isinstance(error, OutcomeUnknown))
            raise
        answered = len(replies) - 1
        for each, reply in zip(followers, replies[1:], strict=False):
            each.is_answered(reply)
        doubtful = [each for each in followers[answered:] if each.is_passed_over()]
        if doubtful:
            await self._runtime.finish(self._do_without(doubtful))
        return replies[0]

    async def _do_without(self, doubtful: list[_Part]) -> None:
        """Leave what an earlier request may have got, before anybody waits; it is asked for anew later."""
        for each in doubtful:
            await each.give_up()
        gone = {id(each) for each in doubtful}
        self._followers[:] = [each for each in self._followers if id(each) not in gone]


async def release_all(session: Session, leases: Sequence[CoreLease]) -> list[Outcome]:
    """Let go of all leases, the last first; one that the store does not answer about does not keep the others.

    Cancelled, it is carried out all the same. Raises ForkedLeaseError in a child of the process that acquired them.
    """
    rest = list(leases)
    outcomes: list[Outcome] = []
    while rest:
        lease = rest.pop()
        try:
            outcomes.append(await session.release(lease))
        except (GeneratorExit, ForkedLeaseError):
            raise
        except BaseException:
            if rest:
                await session.runtime.finish(_release_quietly(session, rest))
            raise
    return outcomes[::-1]


async def _release_quietly(session: Session, leases: Sequence[CoreLease]) -> None:
    await release_all(session, leases)


class LeaseGroup:
    """The leases of several names, as their holder sees them: one."""

    def __init__(self, session: Session, leases: Sequence[CoreLease]) -> None:
        """Hold `leases` together."""
        self.session = session
        self.runtime = session.runtime
        self.leases = tuple(leases)
        self.let_go = False
        self._mutex = session.runtime.mutex()
        self._first: CoreLease | None = None
        """The one that was lost first."""
        self._callbacks: tuple[Callable[[LeaseLost], object], ...] = ()
        self._signal: Event = session.runtime.event()
        for each in self.leases:
            each.when_lost(self._teller(each))

    def trusted(self) -> bool:
        """Tell whether all are certainly still ours."""
        return all(each.trusted() for each in self.leases)

    def lost(self) -> CoreLease | None:
        """Return the lease whose loss makes all of them lost."""
        if self.trusted():
            return None
        return self._first or next((each for each in self.leases if each.lost_because), None)

    def is_lost(self) -> bool:
        """Tell whether any is lost, and so all are."""
        return self.lost() is not None

    def remaining(self) -> float:
        """Return for how many seconds all are certainly still ours."""
        return min(each.remaining() for each in self.leases)

    def check(self) -> None:
        """Raise LeaseLost unless all are certainly still ours."""
        if not self.trusted():
            raise self.loss()

    def loss(self) -> LeaseLost | ForkedLeaseError:
        """Make the error that tells why they are not ours."""
        return (self.lost() or self.leases[0]).loss()

    def state(self) -> LeaseState:
        """Tell HELD, AT_RISK, LOST and RELEASED apart: the worst of them."""
        states = {each.state() for each in self.leases}
        order = (LeaseState.LOST, LeaseState.RELEASED, LeaseState.AT_RISK)
        return next((each for each in order if each in states), LeaseState.HELD)

    def when_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        """Have `callback(error)` called once, when the first of them is lost; at once if one is."""
        with self._mutex:
            first = self._first
            if first is None:
                self._callbacks += (callback,)
        if first is not None:
            first.when_lost(_call_with(first, callback))

    async def wait_lost(self, until: float | None) -> bool:
        """Wait until one is lost or all are let go, or until a local instant; return whether one is lost."""
        while self.trusted() and not (until is not None and self.runtime.now() >= until):
            wake_at = min(each.valid_until for each in self.leases)
            await self._signal.wait(wake_at if until is None else min(until, wake_at))
        return self.is_lost()

    async def release(self) -> Outcome:
        """Let go of all; return the worst of the outcomes. Asked again, it answers the same."""
        self.let_go = True
        outcomes = await release_all(self.session, self.leases)
        self._signal.set()
        return next(each for each in WORST_FIRST if each in outcomes)

    async def extend(self, ttl: float | None) -> None:
        """Renew all now, for `ttl` seconds (None: as before), in one request.

        Raises LeaseLost if one is lost, StoreError if the store did not answer (then they live as long as before).
        """
        self.check()
        await self.session.renew_now(self.leases, ttl)
        self.check()

    def _teller(self, lease: CoreLease) -> Callable[[str], None]:
        def tell(_reason: str) -> None:
            self._lose_all(lease)

        return tell

    def _lose_all(self, first: CoreLease) -> None:
        with self._mutex:
            if self._first is not None:
                return
            self._first = first
            callbacks = self._callbacks
        for each in self.leases:
            if each is not first:
                self.session.renewer.lose(each, f"it is held together with {first.name!r}, which is lost")
        self._signal.set()
        for callback in callbacks:
            first.when_lost(_call_with(first, callback))


def _call_with(lease: CoreLease, callback: Callable[[LeaseLost], object]) -> Callable[[str], None]:
    """Return what calls back with the error; the lease sees to errors of the callback."""

    def tell(_reason: str) -> None:
        error = lease.loss()
        if isinstance(error, LeaseLost):
            callback(error)

    return tell
