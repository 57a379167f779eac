"""The semaphore: a name with a number of permits, of which each lease takes one or more.

Whoever waits is served in the order in which it came, however many permits it wants: one that wants many is not passed
by others that want few. A semaphore of one permit is a lock, and is the same as a lock of that name.

Several leases are valid at once, so a fencing token orders them, but does not say which of them is the only one: do
not raise a fence with it.
"""

from dataclasses import replace
from typing import Never

from holdfast.contracts.limits import EVERYBODY, check_number
from holdfast.core.spec import LockSpec
from holdfast.core.stop import Stop
from holdfast.errors import UsageError
from holdfast.lease import Acquiring, AsyncLease, Lease
from holdfast.primitives.base import UNSET, AsyncLockBase, BlockingLockBase, LockBase, Sessions
from holdfast.primitives.options import LockOptions, refuse_unknown
from holdfast.runtimes.threads import drive


class _SemaphoreBase(LockBase):
    """All of a semaphore that needs no store."""

    _kind = "a semaphore"
    _advice = "Acquire all permits that it needs at once, with weight=, or release some first, or give a timeout."

    def __init__(self, client: Sessions, name: str, permits: int, options: LockOptions) -> None:
        """Make a semaphore; nothing is acquired yet."""
        super().__init__(client, name, options, capacity=check_number(permits, "permits", EVERYBODY - 1))
        self._spec = replace(self._spec, resizable=True)

    @property
    def permits(self) -> int:
        """How many permits there are. Every user of the name must give the same number."""
        return self._spec.capacity

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r} permits={self.permits} ttl={self._options.ttl:g}>"

    def _resized(self, permits: int, now: int) -> None:
        """Take the new number, which the name has `now`, or raise UsageError if it has another."""
        if now == EVERYBODY:
            raise UsageError(f"{self._name!r} is in use as a reader/writer lock, which can't be resized.")
        if now != permits:
            raise UsageError(
                f"{self._name!r} is in use with {now} permits, and was to be resized from {self.permits} to {permits}. "
                "Make a semaphore with the number that it has, and resize that."
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

        Nobody loses what it holds: of fewer permits, none is granted until there is room. Of more, waiters are granted
        in the same step. Waiters keep their places, but one that wants more than there are now gets UsageError. From
        then on all must give the new number: whoever gives the old one gets UsageError that says both.

        Raises UsageError if the name has another number than this semaphore (or the new one), and StoreError if the
        store did not answer: then ask again.
        """
        check_number(permits, "permits", EVERYBODY - 1)
        self._resized(permits, drive(self._client.session().resize(self._spec.name, self.permits, permits)))

    def acquire(
        self, timeout: float | None = UNSET, weight: int = 1, *, stop: Stop | None = None, **unknown: Never
    ) -> Lease:
        """Acquire `weight` permits, waiting up to `timeout` seconds (0: ask once; None: for ever).

        Raises LockTimeout if they were not granted in time, StoreError if the store did not answer, UsageError if the
        weight is above the number of permits or the name is in use with another number, and Stopped if `stop` is set
        meanwhile, by another thread.
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
        """Acquire `weight` permits, as `Semaphore.acquire`: await it, or enter it by `async with`.

        Cancelled at any point, it leaves nothing behind.
        """
        if unknown:
            refuse_unknown("acquire", unknown, ("timeout", "weight"))
        return Acquiring(self._acquire(self._weighing(weight), timeout))

    async def try_acquire(self, weight: int = 1) -> AsyncLease | None:
        """Acquire `weight` permits if they are free at once; else return None. Raises as `acquire` does."""
        return await self._try_acquire(self._weighing(weight))
