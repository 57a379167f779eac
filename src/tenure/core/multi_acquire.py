"""The multi-acquire: one acquisition of several names, of all or none, and the lease group that it returns.

It obeys these rules, so that contenders for overlapping names never wait for each other, and no name stays held:

*   The names are acquired in one order, that of their bytes, whatever order the caller gave. No contender holds or
    waits for a later name while it waits for an earlier one. So the holder of the last name that has waiters waits for
    nobody.
*   A store that supports it is sent one request for all missing names. It grants them up to the first name that is not
    free, and puts the contender into the queue of that name. Free names cost one request, however many they are.
*   When the request is repeated after a lost reply, earlier leases may have ended, and the store may grant fewer names.
    The names that the first request may have got are then withdrawn before the contender waits.
*   If one of the leases is lost, all are lost. The others are not renewed any more, and the release returns them at
    once.
*   A contender that ends without all names, for whatever reason, withdraws or releases every name that the store may
    know of.

Contenders for a single name stand in the local queue of their process, in front of the store's queue. A multi-acquire
of several names in one request stands in the store's queue directly, like a contender of another process.
"""

import logging
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure.contracts.deadlines import NEVER, valid_until
from tenure.contracts.messages import AcquireRequest, Granted, NotGranted, Reply
from tenure.core.access import StoreAccess
from tenure.core.attempt import Attempt
from tenure.core.lease import OF_GROUP, CoreLease, LeaseState
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.entering import Site
from tenure.errors import ForkedLeaseError, LeaseLost, OutcomeUnknown, StoreUnavailable
from tenure.outcome import Outcome

if TYPE_CHECKING:
    from tenure.contracts.runtime import Event

log = logging.getLogger("tenure")

WORST_FIRST = (Outcome.TAKEN_OVER, Outcome.EXPIRED, Outcome.UNKNOWN, Outcome.RELEASED)


@dataclass(slots=True)
class Missed:
    """The name that was not granted in time. None of the other names is held either."""

    place: int
    """The index of the name."""
    not_granted: NotGranted


async def acquire_all(
    session: Session,
    specs: Sequence[LockSpec],
    timeout: float | None,
    max_hold: float = NEVER,
    owned: list[CoreLease] | None = None,
    *,
    detect_deadlock: bool = False,
) -> list[CoreLease] | Missed:
    """Acquire all of `specs`, which are sorted by name, or none; return the leases, or the name that was not granted.

    Granted leases are in `owned` before they are returned, so that a caller that is interrupted in between can have the
    session give them back.

    The `timeout` in seconds counts for all names together (0: ask once; None: wait for ever), `max_hold` from when all
    are held. Raises StoreError if the store cannot be asked; then nothing is held.
    """
    if owned is None:
        owned = []
    until = None if timeout is None else session.runtime.now() + timeout
    await session.open_within(timeout, specs[0] if specs else None)
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
        log.debug(
            "one of the leases of %s was lost before all were granted; acquiring all again",
            [spec.name for spec in specs],
        )
        await release_all(session, result)
        owned.clear()


def _worst(outcomes: Collection[Outcome | None]) -> Outcome:
    return next(each for each in WORST_FIRST if each in outcomes)


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
        """The granted leases, in the order of the names. Each acquisition appends its own lease."""
        self._requested_at = session.runtime.now()
        self._parts: list[_Part] = []
        """The acquisitions whose requests went along with the leader's in this step."""

    async def run(self) -> list[CoreLease] | Missed:
        """Acquire all names, or nothing."""
        try:
            while len(self._held) < len(self._specs):
                can_batch = self._session.store.capabilities.multi_acquire
                not_granted = await (self._in_one_step() if can_batch else self._next())
                if not_granted is not None:
                    missed = Missed(len(self._held), not_granted)
                    await self._runtime.finish(self._undo())
                    return missed
        except GeneratorExit:  # a coroutine that is closed can no longer await: the leases end at their ttl
            for lease in self._held:
                self._session.renewer.drop((lease,))
            for each in self._parts:
                each.forget()
            raise
        except BaseException:
            await self._runtime.finish(self._undo())
            raise
        return self._held

    async def _next(self) -> NotGranted | None:
        """Acquire the next name with a request of its own."""
        timeout: float | None = 0
        if self._wait:
            timeout = None if self._until is None else max(0.0, self._until - self._runtime.now())
        result = await self._session.acquire(self._missing()[0], timeout, self._held)
        return result if isinstance(result, NotGranted) else None

    async def _in_one_step(self) -> NotGranted | None:
        """Acquire the next name, and in the same request the names after it, up to the first that is not free."""
        specs = self._missing()
        followers = [_Part(self._session, spec, self._until, self._held, wait=self._wait) for spec in specs[1:]]
        self._parts = list(followers)
        leader = _Leader(self._session, specs[0], self._until, self._held, followers, wait=self._wait)
        result = await self._run(leader, specs[0])
        if isinstance(result, NotGranted):
            return result
        specs_of = dict(zip(map(id, self._parts), specs[1:], strict=True))
        for each in [each for each in followers if each.is_engaged()]:
            if each.came_late():
                break
            result = await self._run(each, specs_of[id(each)])
            if isinstance(result, NotGranted):
                return result
        await self._runtime.finish(self._withdraw_parts())
        return None

    async def _run(self, attempt: Attempt, spec: LockSpec) -> CoreLease | NotGranted:
        events = self._session.events
        if events is None:
            return await attempt.run()
        return await events.follow(spec, attempt.run, waits=self._wait, since=self._requested_at)

    def _missing(self) -> list[LockSpec]:
        """Return the specs of the names that are not held yet; for deadlock detection, with those that are held."""
        specs = list(self._specs[len(self._held) :])
        return [self._session.actors.with_actor(spec) for spec in specs] if self._detect_deadlock else specs

    async def _withdraw_parts(self) -> None:
        """Withdraw the requests that the store may know of and that have not become leases."""
        for each in self._parts:
            if each.is_engaged():
                await each.give_up()

    async def _undo(self) -> None:
        await self._withdraw_parts()
        await release_all(self._session, self._held)
        self._held.clear()


class _Part(Attempt):
    """The acquisition of one of several names, whose request goes along with the leader's."""

    def __init__(
        self, access: StoreAccess, spec: LockSpec, until: float | None, owned: list[CoreLease], *, wait: bool
    ) -> None:
        super().__init__(access, spec, access.plan_of(spec), until, owned, wait)
        self._before = False

    def go_along(self, sent: float) -> AcquireRequest:
        """Note that the request is sent along with the leader's, and return the request."""
        self._access.attempts[self._request.request_id] = self  # a push may come before the reply
        self._sent, self._answer = sent, None
        self._before, self._engaged = self._engaged, True
        return self._request

    def is_answered(self, reply: Reply) -> None:
        """Keep the reply for `run`, which begins with it."""
        self._answer = reply

    def is_passed_over(self) -> bool:
        """Note that the store ignored the request this time; return whether it may know an earlier copy."""
        self._engaged = self._before
        if not self._engaged:
            self.forget()
        return self._engaged

    def is_unanswered(self, *, unknown: bool) -> None:
        """Note that no reply came; if `unknown`, the store may have carried out the request, or may do so later."""
        self._unsure = self._unsure or unknown
        if not unknown:
            self.is_passed_over()

    def is_engaged(self) -> bool:
        """Return whether the store may know this request."""
        return self._engaged

    def came_late(self) -> bool:
        """Return whether the request was granted so long ago that the lease is over."""
        answer = self._answer
        return isinstance(answer, Granted) and valid_until(self._sent, answer.ttl) <= self._runtime.now()

    async def give_up(self) -> None:
        """Withdraw the request."""
        await self._withdraw()
        self.forget()

    def forget(self) -> None:
        """Stop hearing notifications for the request."""
        self._access.attempts.pop(self._request.request_id, None)


class _Leader(Attempt):
    """The acquisition of the first of several names, which sends the requests for the others along."""

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
        super().__init__(access, spec, access.plan_of(spec), until, owned, wait)
        self._followers = followers
        """The parts whose requests go along. The multi-acquire that made them runs them afterwards."""

    async def _send_once(self, until: float) -> Reply:
        followers = self._followers
        if not followers:
            return await super()._send_once(until)
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
        """Withdraw the names that an earlier request may have got, before the contender waits; request them later."""
        for each in doubtful:
            await each.give_up()
        gone = {id(each) for each in doubtful}
        self._followers[:] = [each for each in self._followers if id(each) not in gone]


async def release_all(session: Session, leases: Sequence[CoreLease]) -> list[Outcome]:
    """Release all leases, the last first; if the store does not answer for one, the others are released all the same.

    If it is cancelled, it is carried out all the same. Raises ForkedLeaseError in a child of the process that acquired
    the leases.
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
    """The leases of several names, which their holder uses as one."""

    def __init__(self, session: Session, leases: Sequence[CoreLease]) -> None:
        """Make a group of `leases`."""
        self.session = session
        self.runtime = session.runtime
        self.leases = tuple(leases)
        self.release_begun = False
        self._mutex = session.runtime.mutex()
        self._first: CoreLease | None = None
        """The lease that was lost first."""
        self._callbacks: tuple[Callable[[LeaseLost], object], ...] = ()
        self._signal: Event = session.runtime.event()
        for each in self.leases:
            each.when_lost(self._teller(each))

    def enter_at(self, where: Site, lease: object) -> None:
        """Note where a `with` entered the leases, and their lease object."""
        by, body = self.runtime.mark(), (where, weakref.ref(lease))
        for each in self.leases:
            each.by, each.body = by, body

    def trusted(self) -> bool:
        """Return whether all leases are certainly still held."""
        return all(each.trusted() for each in self.leases)

    def lost(self) -> CoreLease | None:
        """Return the lease whose loss makes the group lost, None if the group is not lost."""
        if self.trusted():
            return None
        return self._first or next((each for each in self.leases if each.lost_because), None)

    def is_lost(self) -> bool:
        """Return whether any lease is lost, and with it the group."""
        return self.lost() is not None

    def remaining(self) -> float:
        """Return for how many seconds all leases are certainly still held."""
        return min(each.remaining() for each in self.leases)

    def check(self) -> None:
        """Raise LeaseLost unless all leases are certainly still held."""
        if not self.trusted():
            raise self.loss()

    def loss(self) -> LeaseLost | ForkedLeaseError:
        """Make the error that says why the group is not held."""
        return (self.lost() or self.leases[0]).loss()

    def state(self) -> LeaseState:
        """Return the worst state of the leases: LOST, then RELEASED, AT_RISK and HELD."""
        states = {each.state() for each in self.leases}
        order = (LeaseState.LOST, LeaseState.RELEASED, LeaseState.AT_RISK)
        return next((each for each in order if each in states), LeaseState.HELD)

    def when_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        """Call `callback(error)` once, when the first of the leases is lost; at once if one is lost already."""
        with self._mutex:
            first = self._first
            if first is None:
                self._callbacks += (callback,)
        if first is not None:
            first.when_lost(_call_with(first, callback))

    async def wait_lost(self, until: float | None) -> bool:
        """Wait until a lease is lost or all are released, or until a local instant; return whether one is lost."""
        while self.trusted() and not (until is not None and self.runtime.now() >= until):
            wake_at = min(each.valid_until for each in self.leases)
            await self._signal.wait(wake_at if until is None else min(until, wake_at))
        return self.is_lost()

    async def release(self) -> Outcome:
        """Release all leases; return the worst of the outcomes. Called again, it returns the same."""
        self.release_begun = True
        for each in self.leases:
            each.body = None  # a client that is closed while some are released tells nobody of the others
        outcomes = await release_all(self.session, self.leases)
        self._signal.set()
        return _worst(outcomes)

    def outcome(self) -> Outcome | None:
        """Return the worst of the outcomes; None if a lease was not released yet."""
        outcomes = {each.outcome for each in self.leases}
        return None if None in outcomes else _worst(outcomes)

    async def extend(self, ttl: float | None) -> None:
        """Renew all leases now, for `ttl` seconds (None: as before), in one request.

        Raises LeaseLost if one is lost, StoreError if the store did not answer (then the deadlines stay as they were).
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
                self.session.renewer.lose(each, f"{first.grant.name!r}{OF_GROUP}")
        self._signal.set()
        for callback in callbacks:
            first.when_lost(_call_with(first, callback))


def _call_with(lease: CoreLease, callback: Callable[[LeaseLost], object]) -> Callable[[str], None]:
    """Return a function for `CoreLease.when_lost` that passes the error to `callback`; errors of that are logged."""

    def tell(_reason: str) -> None:
        error = lease.loss()
        if isinstance(error, LeaseLost):
            callback(error)

    return tell
