"""The reentrant lock: whoever holds it may acquire it again.

Each acquisition gives a lease of its own, all with one token. Releasing one of them ends that one; the name is released
with the last, whichever that is. If the lease is lost, all of them are.
"""

import warnings
from collections.abc import Callable

from holdfast.core.attempt import Want
from holdfast.core.lease import FORKED, HeldLease, LeaseState
from holdfast.core.reservations import Nest
from holdfast.core.session import Session
from holdfast.errors import ForkedLeaseError, LeaseLost
from holdfast.lease import AsyncLease, Lease, LeaseBase
from holdfast.outcome import Outcome
from holdfast.primitives.base import L
from holdfast.primitives.lock import AsyncLock, Lock
from holdfast.primitives.options import LockOptions
from holdfast.runtimes import aio, threads

IF_HELD = "is entered again only by the thread or task that acquired it"


class _Share:
    """One share of a lease: what it is by itself."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.outcome: Outcome | None = None
        """What became of it; None while it is held."""
        self.done = False
        """Whether all is done that giving it back takes."""

    def give_back(self) -> bool:
        """Give it back; return whether the lease is to be released now. Repeated, it answers the same."""
        if self.outcome is None:
            self.outcome = Outcome.RELEASED if self.nest.held.trusted() else Outcome.EXPIRED
        return self.nest.leave(self)

    def check(self) -> None:
        """Raise LeaseLost if it was given back."""
        if self.outcome is not None:
            held = self.nest.held
            raise LeaseLost(f"this lease of {held.name!r} (token {held.token}) was released; acquire a new one.")

    def drop(self, session: Session) -> bool:
        """Give back a share whose lease was dropped; return whether that deserves a warning.

        Called by the garbage collector in the middle of anything, so it takes no mutex: the keeper does the rest.
        """
        nest, held = self.nest, self.nest.held
        if self.outcome is not None or held.let_go or held.lost_because:
            return False
        self.outcome = Outcome.EXPIRED

        def leave() -> None:
            if nest.leave(self):
                session.keeper.drop(held)

        nest.shares.discard(self)
        session.keeper.soon(leave)
        return True


class _ReentrantBase(LeaseBase):
    """All of a share that needs no store."""

    __slots__ = ()

    _share: _Share

    @property
    def state(self) -> LeaseState:
        """HELD, AT_RISK (the last renewal failed), LOST or RELEASED."""
        return self._held.state() if self._share.outcome is None else LeaseState.RELEASED

    def remaining(self) -> float:
        """Return for how many seconds the lease is certainly still ours, renewals aside; 0.0 once it is not."""
        return self._held.remaining() if self._share.outcome is None else 0.0

    def check(self) -> None:
        """Raise LeaseLost unless the lease is certainly still ours (ForkedLeaseError in a forked child)."""
        self._share.check()
        self._held.check()

    def on_lost(self, callback: Callable[[LeaseLost], object]) -> None:
        """Have `callback(error)` called once when the lease is lost before it is released. See `Lease.on_lost`."""
        share = self._share
        super().on_lost(lambda error: callback(error) if share.outcome is None else None)

    def _leave_lost(self) -> None:
        share = self._share
        if not share.done and share.give_back():
            super()._leave_lost()
        share.done = True

    def __del__(self) -> None:
        if hasattr(self, "_held") and self._share.drop(self._session):  # else it was interrupted when it was made
            warnings.warn(
                f"a lease of {self._name!r} was dropped without release; when the last of them is gone it is no longer "
                "renewed and ends at its ttl. Keep the lease object for as long as you need the lock.",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


class ReentrantLease(_ReentrantBase, Lease):
    """One of the leases that a thread has of one name."""

    __slots__ = ("_share",)

    def __init__(self, session: Session, held: HeldLease, name: str, share: _Share) -> None:
        """Wrap a share of a lease."""
        self._share = share
        super().__init__(session, held, name)

    def extend(self, ttl: float | None = None) -> float:
        """Renew now, for all that hold it. See `Lease.extend`."""
        self._share.check()
        return super().extend(ttl)

    def release(self) -> Outcome:
        """Let go; with the last lease of the name, hand it to the next waiter. See `Lease.release`."""
        share = self._share
        if share.done:
            return share.outcome or Outcome.UNKNOWN
        try:
            if self._held.lost_because == FORKED or share.give_back():
                share.outcome = super().release()
            share.done = True
        except ForkedLeaseError:
            raise
        except BaseException:  # an interrupt: repeating it completes it
            if share.give_back():
                super().release()
            raise
        return share.outcome or Outcome.UNKNOWN


class AsyncReentrantLease(_ReentrantBase, AsyncLease):
    """One of the leases that a task has of one name."""

    __slots__ = ("_share",)

    def __init__(self, session: Session, held: HeldLease, name: str, share: _Share) -> None:
        """Wrap a share of a lease."""
        self._share = share
        super().__init__(session, held, name)

    async def extend(self, ttl: float | None = None) -> float:
        """Renew now, for all that hold it. See `Lease.extend`."""
        self._share.check()
        return await super().extend(ttl)

    async def release(self) -> Outcome:
        """Let go; with the last lease of the name, hand it to the next waiter. See `AsyncLease.release`."""
        share = self._share
        if share.done:
            return share.outcome or Outcome.UNKNOWN
        try:
            if self._held.lost_because == FORKED or share.give_back():
                share.outcome = await super().release()
            share.done = True
        except ForkedLeaseError:
            raise
        except GeneratorExit:
            raise
        except BaseException:  # an interrupt or a cancellation: repeating it completes it
            if share.give_back():
                await super().release()
            raise
        return share.outcome or Outcome.UNKNOWN


def _told(lease: L, options: LockOptions) -> L:
    """Have a lease tell whom its lock says."""
    if options.on_lost is not None:
        lease.on_lost(options.on_lost)
    if options.on_revoke is not None:
        lease.on_revoke(options.on_revoke)
    return lease


class ReentrantLock(Lock):
    """A `Lock` that a thread which holds it may acquire again. Made by `Client.lock(..., reentrant=True)`."""

    _if_held = IF_HELD

    def _acquire(self, want: Want, timeout: float | None) -> Lease:
        return self._again(want) or super()._acquire(want, timeout)

    def _try_acquire(self, want: Want) -> Lease | None:
        return self._again(want) or super()._try_acquire(want)

    def _again(self, want: Want) -> Lease | None:
        session = self._client.session()
        nest = session.nests.find(want.name)
        if nest is None:
            return None
        share = _Share(nest)
        try:
            if nest.enter(share):
                return _told(ReentrantLease(session, nest.held, self._name, share), self._options)
        except BaseException:
            if share.give_back():
                session.keeper.drop(nest.held)
            raise
        return None

    def _lease(self, session: Session, held: HeldLease) -> Lease:
        held.by = threads.mark()
        share = _Share(session.nests.begin(held))
        share.nest.shares.add(share)
        return _told(ReentrantLease(session, held, self._name, share), self._options)


class AsyncReentrantLock(AsyncLock):
    """An `AsyncLock` that a task which holds it may acquire again. Made by `AsyncClient.lock(..., reentrant=True)`."""

    _if_held = IF_HELD

    async def _acquire(self, want: Want, timeout: float | None) -> AsyncLease:
        return self._again(want) or await super()._acquire(want, timeout)

    async def _try_acquire(self, want: Want) -> AsyncLease | None:
        return self._again(want) or await super()._try_acquire(want)

    def _again(self, want: Want) -> AsyncLease | None:
        session = self._client.session()
        nest = session.nests.find(want.name)
        if nest is None:
            return None
        share = _Share(nest)
        try:
            if nest.enter(share):
                return _told(AsyncReentrantLease(session, nest.held, self._name, share), self._options)
        except BaseException:
            if share.give_back():
                session.keeper.drop(nest.held)
            raise
        return None

    def _lease(self, session: Session, held: HeldLease) -> AsyncLease:
        held.by = aio.mark()
        share = _Share(session.nests.begin(held))
        share.nest.shares.add(share)
        return _told(AsyncReentrantLease(session, held, self._name, share), self._options)
