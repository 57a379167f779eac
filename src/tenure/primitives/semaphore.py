"""The semaphore: a name with a number of permits, of which each lease takes one or more.

Waiters are granted in the order in which they came, however many permits they want: a waiter for many permits is not
overtaken by waiters for few. A semaphore of one permit is the same as a lock of that name.

Several leases are valid at once. Their fencing tokens order them, but a larger token does not mean that the earlier
leases have ended: do not raise a `Fence` with the token of a semaphore.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Never, TypeVar

from tenure.contracts.cells import Change, cell_name
from tenure.contracts.limits import EVERYBODY, check_number
from tenure.contracts.messages import NotGranted
from tenure.core.attempt import InUse
from tenure.core.lease import CoreLease
from tenure.core.session import Session
from tenure.core.spec import LockSpec
from tenure.core.stop import Stop
from tenure.errors import UsageError
from tenure.lease import Acquiring, AsyncLease, Lease
from tenure.primitives.base import UNSET, AsyncLockBase, BlockingLockBase, F, LockBase, Sessions
from tenure.primitives.options import Busy_co, LockOptions, refuse_unknown
from tenure.runtimes.threads import drive

T = TypeVar("T")

REMEMBERED = 16
"""How many of its earlier numbers a semaphore remembers."""

TRIES = 10
"""How often a request or a resize is sent at most, if the number of permits changes meanwhile."""


class _SemaphoreBase(LockBase[F]):
    """The part of a semaphore that is the same for threads and asyncio."""

    _kind = "a semaphore"
    _reported = "semaphore"
    _resizable = True
    _advice = "Acquire all permits at once, with weight=, or release some first, or give a timeout."

    def __init__(self, client: Sessions, name: str, permits: int | None, options: LockOptions) -> None:
        given = check_number(permits, "permits", EVERYBODY - 1) if permits is not None else 0
        super().__init__(client, name, options, capacity=given)
        self._plain = False
        self._earlier: deque[int] = deque(maxlen=REMEMBERED)
        """The numbers that this object had before."""

    @property
    def permits(self) -> int | None:
        """The number of permits; None if the semaphore takes the number that the store has."""
        return self._spec.capacity or None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} permits={self.permits} ttl={self._options.ttl:g}>"

    # -- the number of permits -----------------------------------------------------------------------------

    async def _request(
        self, session: Session, spec: LockSpec, timeout: float | None, owned: list[CoreLease]
    ) -> CoreLease | NotGranted:
        acquire = super()._request
        return await self._with_number(
            session, spec, timeout, lambda numbered, left: acquire(session, numbered, left, owned)
        )

    async def _obtain_at_once(
        self, session: Session, spec: LockSpec, owned: list[CoreLease], *, quiet: bool = False
    ) -> CoreLease | None:
        acquire = super()._obtain_at_once
        return await self._with_number(
            session, spec, 0, lambda numbered, _left: acquire(session, numbered, owned, quiet=quiet)
        )

    async def _with_number(
        self,
        session: Session,
        spec: LockSpec,
        timeout: float | None,
        acquire: Callable[[LockSpec, float | None], Coroutine[Any, Any, T]],
    ) -> T:
        """Acquire with the present number of permits, and again if that changes meanwhile, at most TRIES times."""
        until = None if timeout is None else session.runtime.now() + timeout
        tries, left = TRIES, timeout
        while True:
            number = self._spec.capacity or await self._kept_number(session, left)
            check_number(spec.weight, "weight", number)
            if until is not None and not (tries == TRIES and self._spec.capacity):
                left = max(0.0, until - session.runtime.now())
            try:
                return await acquire(spec if spec.capacity == number else replace(spec, capacity=number), left)
            except InUse as refusal:
                tries -= 1
                if not tries or not await self._correct(session, refusal.capacity):
                    raise

    async def _correct(self, session: Session, in_use: int) -> bool:
        """Give the name its number if it is in use with another one; return False if that belongs to somebody else.

        A request with an earlier number may have come first while the name was free, or a resize is under way.
        """
        number = self._spec.capacity
        if in_use == EVERYBODY or (number and in_use != number and in_use not in self._earlier):
            return False
        number = number or await self._read_number(session) or in_use
        if number != in_use:
            await session.resize(self._spec.name, in_use, number)
        return True

    async def _read_number(self, session: Session, timeout: float | None = 0.0) -> int:
        """Return the number that the store keeps for the name; 0 if it keeps none."""
        return await session.cells.read(self._cell(), lambda kept, _: int(kept or 0), timeout)

    async def _kept_number(self, session: Session, timeout: float | None) -> int:
        """Return the number that the store keeps for the name, or the one that it is in use with."""
        if kept := await self._read_number(session, timeout):
            return kept
        view = await session.inspect(self._spec.name)
        if view.holders or view.waiters:
            return view.capacity
        raise UsageError(
            f"the store has no number of permits for the semaphore {self._name!r}: set it once by resize(n), or give "
            "permits=."
        )

    def _cell(self) -> str:
        """Return the name of the cell that keeps the number."""
        return cell_name("permits", "", self._spec.name)

    async def _resize(self, permits: int) -> None:
        check_number(permits, "permits", EVERYBODY - 1)
        session, before = self._client.session(), self._spec.capacity
        if before:
            # From now on this is the number of this object: until the store has it, `_correct` sets it as well.
            self._earlier.append(before)
            self._spec = replace(self._spec, capacity=permits)
        now = await session.resize(self._spec.name, before or permits, permits)
        for _ in range(TRIES):
            if now in {permits, EVERYBODY} or (before and now not in self._earlier):
                break
            now = await session.resize(self._spec.name, now, permits)
        if now != permits:
            if before:
                self._spec = replace(self._spec, capacity=before)
            raise self._not_resized(before, permits, now)
        if session.store.capabilities.cells:
            await session.cells.change(self._cell(), lambda kept, _: Change(permits, None, changed=kept != permits))

    def _not_resized(self, before: int, permits: int, now: int) -> UsageError:
        if now == EVERYBODY:
            return UsageError(
                f"{self._name!r} is in use as a reader/writer lock, which can't be resized: use another name."
            )
        return UsageError(
            f"{self._name!r} is in use with {now} permits, so it was not resized from {before} to {permits}. "
            f"Make a semaphore with {now} permits, and resize that."
        )

    def _weighing(self, weight: int) -> LockSpec:
        return replace(self._spec, weight=check_number(weight, "weight", self._spec.capacity or EVERYBODY - 1))


class Semaphore(_SemaphoreBase[Lease], BlockingLockBase[Busy_co]):
    """A semaphore of a `Client`: use it with `with`, as a decorator, or by calling `acquire`.

    Made by `Client.semaphore`. Only `acquire` and `try_acquire` take more than one permit.
    """

    _takes = ("timeout", "weight", "stop")

    def resize(self, permits: int) -> None:
        """Change the number of permits to `permits`, from 1 to 1048575, while the name is in use.

        No holder loses its permits. After a change to fewer permits, none is granted until there is room; after a
        change to more, waiters are granted in the same step. Waiters keep their places, but a waiter for more permits
        than there are now gets UsageError. The store keeps the new number until the next `resize`: semaphores made
        with `permits=None` take it from their next acquisition on, also after nobody has used the name for a while.
        Users that give a number must give the new one: a user that gives the old number gets UsageError, which says
        both. This object, in all its threads, goes on with the new number.

        Raises UsageError if the name has neither this semaphore's number nor the new one, and StoreError if the store
        did not answer: then call again.
        """
        drive(self._resize(permits))

    def acquire(
        self, timeout: float | None = UNSET, weight: int = 1, *, stop: Stop | None = None, **unknown: Never
    ) -> Lease:
        """Acquire `weight` permits, waiting up to `timeout` seconds (0: ask once; None: for ever).

        Raises LockTimeout if they were not granted in time, StoreError if the store did not answer, UsageError if the
        weight is above the number of permits or the name is in use with another number, and Stopped if another thread
        sets `stop` meanwhile.
        """
        spec = self._weighing(weight)
        return self._acquire_or_stop(spec, timeout, stop, unknown) if stop or unknown else self._acquire(spec, timeout)

    def try_acquire(self, weight: int = 1) -> Lease | None:
        """Acquire `weight` permits if they are free at once; else return None. Raises as `acquire` does."""
        return self._try_acquire(self._weighing(weight))


class AsyncSemaphore(_SemaphoreBase[AsyncLease], AsyncLockBase[Busy_co]):
    """A semaphore of an `AsyncClient`: use it with `async with`, as a decorator, or by calling `acquire`.

    Made by `AsyncClient.semaphore`. Only `acquire` and `try_acquire` take more than one permit.
    """

    async def resize(self, permits: int) -> None:
        """Change the number of permits while the name is in use, as `Semaphore.resize`."""
        await self._resize(permits)

    def acquire(self, timeout: float | None = UNSET, weight: int = 1, **unknown: Never) -> Acquiring[AsyncLease]:
        """Acquire `weight` permits, as `Semaphore.acquire`: await the call, or enter it by `async with`.

        A call that is cancelled at any point leaves no holder and no waiter behind.
        """
        if unknown:
            refuse_unknown("acquire", unknown, ("timeout", "weight"))
        return Acquiring(self._acquire(self._weighing(weight), timeout))

    async def try_acquire(self, weight: int = 1) -> AsyncLease | None:
        """Acquire `weight` permits if they are free at once; else return None. Raises as `acquire` does."""
        return await self._try_acquire(self._weighing(weight))
