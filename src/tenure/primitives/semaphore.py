"""The semaphore: a name with a number of permits, of which each lease takes one or more.

Waiters are granted in the order in which they came, however many permits they want: a waiter for many permits is not
overtaken by waiters for few. A semaphore of one permit is the same as a lock of that name.

Several leases are valid at once. Their fencing tokens order them, but a larger token does not mean that the earlier
leases have ended: do not raise a `Fence` with the token of a semaphore.
"""

from dataclasses import replace
from typing import Never

from tenure.contracts.limits import EVERYBODY, check_number
from tenure.core.spec import LockSpec
from tenure.core.stop import Stop
from tenure.errors import UsageError
from tenure.lease import Acquiring, AsyncLease, Lease
from tenure.primitives.base import UNSET, AsyncLockBase, BlockingLockBase, LockBase, Sessions
from tenure.primitives.options import LockOptions, refuse_unknown
from tenure.runtimes.threads import drive


class _SemaphoreBase(LockBase):
    """The part of a semaphore that is the same for threads and asyncio."""

    _kind = "a semaphore"
    _advice = "Acquire all permits at once, with weight=, or release some first, or give a timeout."

    def __init__(self, client: Sessions, name: str, permits: int, options: LockOptions) -> None:
        """Make a semaphore; nothing is acquired yet."""
        super().__init__(client, name, options, capacity=check_number(permits, "permits", EVERYBODY - 1))
        self._spec = replace(self._spec, resizable=True)

    @property
    def permits(self) -> int:
        """The number of permits. Every user of the name must give the same number."""
        return self._spec.capacity

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} permits={self.permits} ttl={self._options.ttl:g}>"

    def _resized(self, permits: int, now: int) -> None:
        """Set the number of permits to `permits`; raise UsageError unless the name has that number `now`."""
        if now == EVERYBODY:
            raise UsageError(
                f"{self._name!r} is in use as a reader/writer lock, which can't be resized: use another name."
            )
        if now != permits:
            raise UsageError(
                f"{self._name!r} is in use with {now} permits, so it was not resized from {self.permits} to {permits}. "
                f"Make a semaphore with {now} permits, and resize that."
            )
        self._spec = replace(self._spec, capacity=permits)

    def _weighing(self, weight: int) -> LockSpec:
        return replace(self._spec, weight=check_number(weight, "weight", self.permits))


class Semaphore(_SemaphoreBase, BlockingLockBase):
    """A semaphore of a `Client`: use it with `with`, as a decorator, or by calling `acquire`.

    Made by `Client.semaphore`. Only `acquire` and `try_acquire` take more than one permit.
    """

    _takes = ("timeout", "weight", "stop")

    def resize(self, permits: int) -> None:
        """Change the number of permits to `permits`, from 1 to 1048575, while the name is in use.

        No holder loses its permits. After a change to fewer permits, none is granted until there is room; after a
        change to more, waiters are granted in the same step. Waiters keep their places, but a waiter for more permits
        than there are now gets UsageError. From then on all users must give the new number: a user that gives the old
        number gets UsageError, which says both.

        Raises UsageError if the name has neither this semaphore's number nor the new one, and StoreError if the store
        did not answer: then call again.
        """
        check_number(permits, "permits", EVERYBODY - 1)
        self._resized(permits, drive(self._client.session().resize(self._spec.name, self.permits, permits)))

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


class AsyncSemaphore(_SemaphoreBase, AsyncLockBase):
    """A semaphore of an `AsyncClient`: use it with `async with`, as a decorator, or by calling `acquire`.

    Made by `AsyncClient.semaphore`. Only `acquire` and `try_acquire` take more than one permit.
    """

    async def resize(self, permits: int) -> None:
        """Change the number of permits while the name is in use, as `Semaphore.resize`."""
        check_number(permits, "permits", EVERYBODY - 1)
        self._resized(permits, await self._client.session().resize(self._spec.name, self.permits, permits))

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
