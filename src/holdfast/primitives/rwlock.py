"""The reader/writer lock: a name that many readers share, or one writer has alone.

It is a semaphore of `EVERYBODY` permits, of which a reader takes one and a writer all. Readers and writers stand in
one strict queue, so neither starves the other: a writer waits for the readers before it, readers that come later wait
for the writer, and readers that stand side by side are granted together.

Nothing here is reentrant, and a read lease does not become a write lease: whoever holds one and asks for the other
waits for itself. Where that can be seen, it is refused.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

from holdfast.core.limits import EVERYBODY
from holdfast.errors import UsageError
from holdfast.lease import AsyncLease, Lease
from holdfast.primitives.base import (
    UNSET,
    AsyncLockBase,
    BlockingLockBase,
    Entered,
    L,
    LockBase,
    Sessions,
)
from holdfast.primitives.options import LockOptions
from holdfast.runtimes import aio, threads

S = TypeVar("S", bound=LockBase)

KIND = "a reader/writer lock"

READER = 1
"""The weight of a reader."""

WRITER = EVERYBODY
"""The weight of a writer: all that there is."""


class Side(BlockingLockBase):
    """One side of an `RWLock`, to be used as a `Lock` is."""

    _kind = KIND

    def __init__(
        self,
        client: Sessions,
        name: str,
        options: LockOptions,
        weight: int,
        entered: Entered[Lease],
        *excluded_by: Entered[Lease],
    ) -> None:
        """Make a side; whoever is in a `with` of `excluded_by` would wait for itself."""
        super().__init__(client, name, options, capacity=EVERYBODY, weight=weight)
        self._entered = entered
        self._excluded_by = excluded_by

    def acquire(self, timeout: float | None = UNSET) -> Lease:
        """Acquire, waiting up to `timeout` seconds (0: ask once; None: for ever; default: the lock's own).

        Raises LockTimeout if it was not granted in time, StoreError if the store did not answer, and UsageError if
        this thread is in a `with` of the other side (or of the writers, again), so that it would wait for itself.
        """
        _refuse_to_wait_for_oneself(self._excluded_by, self._name)
        return super().acquire(timeout)


class AsyncSide(AsyncLockBase):
    """One side of an `AsyncRWLock`, to be used as an `AsyncLock` is."""

    _kind = KIND

    def __init__(
        self,
        client: Sessions,
        name: str,
        options: LockOptions,
        weight: int,
        entered: Entered[AsyncLease],
        *excluded_by: Entered[AsyncLease],
    ) -> None:
        """Make a side; whoever is in an `async with` of `excluded_by` would wait for itself."""
        super().__init__(client, name, options, capacity=EVERYBODY, weight=weight)
        self._entered = entered
        self._excluded_by = excluded_by

    async def acquire(self, timeout: float | None = UNSET) -> AsyncLease:
        """Acquire, as `Side.acquire`. Cancelled at any point, it leaves no holder and no waiter behind."""
        _refuse_to_wait_for_oneself(self._excluded_by, self._name)
        return await super().acquire(timeout)


class _Sides(Generic[S]):
    """The two sides of one name."""

    def __init__(self, read: S, write: S) -> None:
        self._read = read
        self._write = write

    @property
    def name(self) -> str:
        """What is locked."""
        return self._read.name

    def read(self) -> S:
        """Return the side of the readers, who hold the name together."""
        return self._read

    def write(self) -> S:
        """Return the side of the writers, of whom one holds the name, alone."""
        return self._write

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class RWLock(_Sides[Side]):
    """A reader/writer lock of a `Client`: `with lock.read():` or `with lock.write():`. Made by `Client.rwlock`."""

    def __init__(self, client: Sessions, name: str, options: LockOptions) -> None:
        """Make a reader/writer lock; nothing is acquired yet."""
        reading, writing = Entered[Lease](threads.here), Entered[Lease](threads.here)
        super().__init__(
            Side(client, name, options, READER, reading, writing),
            Side(client, name, options, WRITER, writing, reading, writing),
        )


class AsyncRWLock(_Sides[AsyncSide]):
    """A reader/writer lock of an `AsyncClient`: `async with lock.read():` or `async with lock.write():`.

    Made by `AsyncClient.rwlock`.
    """

    def __init__(self, client: Sessions, name: str, options: LockOptions) -> None:
        """Make a reader/writer lock; nothing is acquired yet."""
        reading, writing = Entered[AsyncLease](aio.here), Entered[AsyncLease](aio.here)
        super().__init__(
            AsyncSide(client, name, options, READER, reading, writing),
            AsyncSide(client, name, options, WRITER, writing, reading, writing),
        )


def _refuse_to_wait_for_oneself(excluded_by: Iterable[Entered[L]], name: str) -> None:
    if any(entered.holds(name) for entered in excluded_by):
        raise UsageError(
            f"this thread or task is in a `with` of {name!r} already, and would wait for itself: a read lease does not "
            "become a write lease, and neither is reentrant. Leave the `with`, or release its lease, before you enter "
            "the next; or enter write() in the first place."
        )
