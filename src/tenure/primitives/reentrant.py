"""The reentrant lock: the thread or task that holds it may acquire it again.

Each acquisition returns a lease object of its own, with the same token. The release of a lease object ends that object.
The name is released with the last lease object, whichever that is. If the lease is lost, all its objects are lost.
"""

import warnings
from collections.abc import Callable

from tenure.core.lease import FORKED, CoreLease, LeaseState
from tenure.core.reservations import Reservation
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.errors import ForkedLeaseError, LeaseLost
from tenure.lease import AsyncLease, Lease, LeaseBase
from tenure.outcome import Outcome
from tenure.primitives.base import L
from tenure.primitives.lock import AsyncLock, Lock
from tenure.primitives.options import LockOptions
from tenure.runtimes import threads

IF_HELD = "is entered again only by the thread or task that acquired it"


class _Hold:
    """One hold of a reentrant lease: one of the acquisitions that its reservation counts."""

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self.outcome: Outcome | None = None
        """The outcome of its release; None while it is held."""
        self.done = False
        """Whether its release is complete."""

    def give_back(self) -> bool:
        """Give the hold back; return whether the lease must be released now. Repeated, it returns the same."""
        if self.outcome is None:
            self.outcome = Outcome.RELEASED if self.reservation.lease.trusted() else Outcome.EXPIRED
        return self.reservation.leave(self)

    def check(self) -> None:
        """Raise LeaseLost if the hold was given back."""
        if self.outcome is not None:
            lease = self.reservation.lease
            raise LeaseLost(f"this lease of {lease.name!r} (token {lease.token}) was released: acquire a new one.")

    def drop(self, session: Session) -> bool:
        """Give back the hold of a lease object that was dropped; return whether to warn of that.

        The garbage collector may call this at any point, so it takes no mutex: the renewer does the rest.
        """
        reservation, lease = self.reservation, self.reservation.lease
        if self.outcome is not None or lease.over():
            return False
        self.outcome = Outcome.EXPIRED

        def leave() -> None:
            if reservation.leave(self):
                session.renewer.drop(lease)

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

    def on_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        """Call `callback(error)` once if the lease is lost before this object is released. See `Lease.on_lost`."""
        hold = self._hold
        super().on_lost(lambda error: callback(error) if hold.outcome is None else None)

    def _leave_lost(self) -> None:
        hold = self._hold
        if not hold.done and hold.give_back():
            super()._leave_lost()
        hold.done = True

    def __del__(self) -> None:
        if hasattr(self, "_core") and self._hold.drop(self._session):  # else its making was interrupted
            warnings.warn(
                f"a lease of {self._name!r} was dropped without release; when the last of them is gone it is no longer "
                "renewed and ends at its ttl. Keep the lease object for as long as you need the lock.",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


class ReentrantLease(_ReentrantBase, Lease):
    """One of the lease objects that a thread has of one name."""

    __slots__ = ("_hold",)

    def __init__(self, session: Session, lease: CoreLease, name: str, hold: _Hold) -> None:
        """Wrap a hold of a lease."""
        self._hold = hold
        super().__init__(session, lease, name)

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
        """Wrap a hold of a lease."""
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


def _told(lease: L, options: LockOptions) -> L:
    """Give a lease the callbacks of its lock, and return the lease."""
    if options.on_lost is not None:
        lease.on_lost(options.on_lost)
    if options.on_revoke is not None:
        lease.on_revoke(options.on_revoke)
    return lease


class ReentrantLock(Lock):
    """A `Lock` that a thread which holds it may acquire again. Made by `Client.lock(..., reentrant=True)`."""

    _if_held = IF_HELD

    def _acquire(self, spec: LockSpec, timeout: float | None) -> Lease:
        return self._again(spec) or super()._acquire(spec, timeout)

    def _try_acquire(self, spec: LockSpec) -> Lease | None:
        return self._again(spec) or super()._try_acquire(spec)

    def _again(self, spec: LockSpec) -> Lease | None:
        session = self._client.session()
        reservation = session.reservations.find(spec.name)
        if reservation is None:
            return None
        hold = _Hold(reservation)
        try:
            if reservation.enter(hold):
                return _told(ReentrantLease(session, reservation.lease, self._name, hold), self._options)
        except BaseException:
            if hold.give_back():
                session.renewer.drop(reservation.lease)
            raise
        return None

    def _lease(self, session: Session, core: CoreLease) -> Lease:
        core.by = threads.mark()
        hold = _Hold(session.reservations.begin(core))
        hold.reservation.holds.add(hold)
        return _told(ReentrantLease(session, core, self._name, hold), self._options)


class AsyncReentrantLock(AsyncLock):
    """An `AsyncLock` that a task which holds it may acquire again. Made by `AsyncClient.lock(..., reentrant=True)`."""

    _if_held = IF_HELD

    async def _acquire(self, spec: LockSpec, timeout: float | None) -> AsyncLease:
        return self._again(spec) or await super()._acquire(spec, timeout)

    async def _try_acquire(self, spec: LockSpec) -> AsyncLease | None:
        return self._again(spec) or await super()._try_acquire(spec)

    def _again(self, spec: LockSpec) -> AsyncLease | None:
        session = self._client.session()
        reservation = session.reservations.find(spec.name)
        if reservation is None:
            return None
        hold = _Hold(reservation)
        try:
            if reservation.enter(hold):
                return _told(AsyncReentrantLease(session, reservation.lease, self._name, hold), self._options)
        except BaseException:
            if hold.give_back():
                session.renewer.drop(reservation.lease)
            raise
        return None

    def _lease(self, session: Session, core: CoreLease) -> AsyncLease:
        core.by = core.runtime.mark()
        hold = _Hold(session.reservations.begin(core))
        hold.reservation.holds.add(hold)
        return _told(AsyncReentrantLease(session, core, self._name, hold), self._options)
