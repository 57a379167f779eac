"""The reentrant lock: the thread or task that holds it may acquire it again.

Each acquisition returns a lease object of its own, with the same token. The release of a lease object ends that object.
The name is released with the last lease object, whichever that is. If the lease is lost, all its objects are lost, and
the thread or task gets LeaseLost from each acquisition, until all of them are released or dropped.
"""

import logging
import warnings
from collections.abc import Callable
from functools import partial

from tenure.callables import refuse_async_callback
from tenure.core.lease import FORKED, CoreLease, LeaseState
from tenure.core.reservations import Reservation
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.errors import ForkedLeaseError, LeaseLost, UsageError
from tenure.keeping import acquired, line_of
from tenure.lease import AsyncLease, Lease, LeaseBase
from tenure.outcome import Outcome
from tenure.primitives.base import F, LockBase
from tenure.primitives.lock import AsyncLock, Lock
from tenure.primitives.options import Busy_co
from tenure.reentry import is_inside

log = logging.getLogger("tenure")


class _Hold:
    """One hold of a reentrant lease: one of the acquisitions that its reservation counts."""

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self.outcome: Outcome | None = None
        """The outcome of its release; None while it is held."""
        self.done = False
        """Whether its release is complete."""
        self.deferred = False
        """Whether its release runs in the background."""

    def give_back(self) -> bool:
        """Give the hold back; return whether the lease must be released now. Repeated, it returns the same."""
        if self.outcome is None:
            self.outcome = Outcome.EXPIRED if self.reservation.lease.is_lost() else Outcome.RELEASED
        return self.reservation.leave(self)

    def check(self) -> None:
        """Raise LeaseLost if the hold was given back."""
        if self.outcome is not None:
            lease = self.reservation.lease
            raise LeaseLost(
                f"this lease of {lease.grant.name!r} (token {lease.token}) was released: acquire a new one."
            )

    async def release(self, session: Session) -> None:
        """Give the hold back, and release the lease with the last hold."""
        if self.give_back():
            self.outcome = await session.release(self.reservation.lease)
        self.done = True

    def drop(self, session: Session, where: str) -> bool:
        """Give back the hold of a lease object that was dropped; return whether to warn of that.

        `where` is the line that acquired it. The garbage collector may call this at any point, so it takes no mutex:
        the renewer does the rest.
        """
        reservation, lease = self.reservation, self.reservation.lease
        if self.outcome is not None or self.deferred:
            return False
        if lease.over():
            reservation.holds.discard(self)
            return False
        self.outcome = Outcome.EXPIRED

        def leave() -> None:
            if reservation.leave(self):
                session.renewer.give_up((lease,), where)
            else:
                log.warning(
                    "a lease of %r was dropped without release%s; its thread or task holds the name by another lease",
                    lease.grant.title,
                    acquired(where),
                )

        reservation.holds.discard(self)
        session.renewer.soon(leave)
        return True


class _ReentrantBase(LeaseBase):
    """The part of a reentrant lease object that is the same for threads and asyncio."""

    __slots__ = ()

    _hold: _Hold

    @property
    def state(self) -> LeaseState:
        """HELD, AT_RISK (the last renewal failed), LOST or RELEASED."""
        return self._core.state() if self._hold.outcome is None else LeaseState.RELEASED

    def remaining(self) -> float:
        """Return for how many seconds the lease is certainly still held without another renewal; 0.0 once it is not."""
        return self._core.remaining() if self._hold.outcome is None else 0.0

    def check(self) -> None:
        """Raise LeaseLost unless the lease is certainly still held (ForkedLeaseError in a forked child)."""
        self._hold.check()
        self._core.check()

    def _refuse_given_up(self) -> None:
        self._hold.check()
        super()._refuse_given_up()

    async def _detach(self, ttl: float | None, reason: str) -> str:  # noqa: ARG002 - as of any lease
        raise UsageError(
            f"the lease of {self._name!r} is reentrant, and belongs to its thread or task: make the lock without "
            "reentrant=True to detach its lease."
        )

    def on_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        """Call `callback(error)` once if the lease is lost before this object is released. See `Lease.on_lost`."""
        refuse_async_callback(callback, "on_lost")
        hold = self._hold
        super().on_lost(lambda error: callback(error) if hold.outcome is None else None)

    def _leave_lost(self) -> None:
        hold = self._hold
        if not hold.done and hold.give_back():
            super()._leave_lost()
        hold.done = True

    def __del__(self) -> None:
        if not hasattr(self, "_core"):  # its making was interrupted
            return
        where = line_of(self._origin)
        if self._hold.drop(self._session, where):
            warnings.warn(
                f"a lease of {self._name!r} was dropped without release{acquired(where)}; when the last of them is "
                "gone it is no longer renewed and ends at its ttl. Keep the lease object for as long as you need the "
                "lock.",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


class ReentrantLease(_ReentrantBase, Lease):
    """One of the lease objects that a thread has of one name."""

    __slots__ = ("_hold",)

    def __init__(self, session: Session, lease: CoreLease, name: str, hold: _Hold) -> None:
        self._hold = hold
        super().__init__(session, lease, name)

    def _release_later(self) -> Outcome:
        hold, held = self._hold, self._core
        if held.lost_because == FORKED:
            raise held.loss()
        if not hold.deferred:
            self._session.release_later(partial(hold.release, self._session), held.grant.name)
            hold.deferred = True
        return hold.outcome or Outcome.UNKNOWN

    def extend(self, ttl: float | None = None) -> float:
        """Renew now, for all lease objects of the name. See `Lease.extend`."""
        self._hold.check()
        return super().extend(ttl)

    def release(self) -> Outcome:
        """Release this lease object; with the last one, hand the name to the next waiter. See `Lease.release`."""
        hold = self._hold
        if hold.done:
            return hold.outcome or Outcome.UNKNOWN
        try:
            if is_inside(self._session.mutex):
                return self._release_later()
            if self._core.lost_because == FORKED or hold.give_back():
                hold.outcome = super().release()
            hold.done = True
        except ForkedLeaseError:
            raise
        except BaseException:  # an interrupt: repeating the release completes it
            if hold.give_back():
                super().release()
            raise
        return hold.outcome or Outcome.UNKNOWN


class AsyncReentrantLease(_ReentrantBase, AsyncLease):
    """One of the lease objects that a task has of one name."""

    __slots__ = ("_hold",)

    def __init__(self, session: Session, lease: CoreLease, name: str, hold: _Hold) -> None:
        self._hold = hold
        super().__init__(session, lease, name)

    async def extend(self, ttl: float | None = None) -> float:
        """Renew now, for all lease objects of the name. See `Lease.extend`."""
        self._hold.check()
        return await super().extend(ttl)

    async def release(self) -> Outcome:
        """Release this lease object; with the last one, hand the name to the next waiter. See `AsyncLease.release`."""
        hold = self._hold
        if hold.done:
            return hold.outcome or Outcome.UNKNOWN
        try:
            if self._core.lost_because == FORKED or hold.give_back():
                hold.outcome = await super().release()
            hold.done = True
        except ForkedLeaseError:
            raise
        except GeneratorExit:
            raise
        except BaseException:  # an interrupt or a cancellation: repeating the release completes it
            if hold.give_back():
                await super().release()
            raise
        return hold.outcome or Outcome.UNKNOWN


class _ReentrantLockBase(LockBase[F]):
    """The part of a reentrant lock that is the same for threads and asyncio."""

    _if_held = "is entered again only by the thread or task that acquired it"
    _wait_for_release = True
    _holding: Callable[[Session, CoreLease, str, _Hold], F]
    """Makes a lease object of a hold."""

    async def _obtain(self, session: Session, spec: LockSpec, timeout: float | None) -> F:
        return self._again(session, spec) or await super()._obtain(session, spec, timeout)

    async def _obtain_if_free(self, session: Session, spec: LockSpec, owned: list[CoreLease]) -> F | None:
        return self._again(session, spec) or await super()._obtain_if_free(session, spec, owned)

    def _again(self, session: Session, spec: LockSpec) -> F | None:
        reservation = session.reservations.find(spec.name)
        if reservation is None:
            return None
        hold = _Hold(reservation)
        try:
            if reservation.enter(hold):
                return self._prepared(self._holding(session, reservation.lease, self._name, hold))
        except BaseException:
            if hold.give_back():
                session.renewer.drop((reservation.lease,))
            raise
        return None

    def _face(self, session: Session, core: CoreLease, name: str) -> F:
        hold = _Hold(session.reservations.begin(core))
        hold.reservation.holds.add(hold)
        return self._holding(session, core, name, hold)


class ReentrantLock(_ReentrantLockBase[Lease], Lock[Busy_co]):
    """A `Lock` that a thread which holds it may acquire again. Made by `Client.lock(..., reentrant=True)`."""

    _holding = ReentrantLease


class AsyncReentrantLock(_ReentrantLockBase[AsyncLease], AsyncLock[Busy_co]):
    """An `AsyncLock` that a task which holds it may acquire again. Made by `AsyncClient.lock(..., reentrant=True)`."""

    _holding = AsyncReentrantLease
