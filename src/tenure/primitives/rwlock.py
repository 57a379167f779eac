"""The reader/writer lock: many readers share the name, or one writer has it alone.

It is a semaphore of `EVERYBODY` permits. A reader takes one permit, a writer takes all. Readers and writers stand in
one strict queue, so neither starves the other: a writer waits for the readers before it, readers that come later wait
for the writer, and readers that stand side by side are granted together.

A write lease can become a read lease without a gap: nobody else writes in between. A read lease cannot become a write
lease, and neither is reentrant. A thread or task that holds one lease and requests the other would wait for itself: it
gets SelfDeadlock where the client can detect that.
"""

from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, TypeVar, cast

from tenure.contracts.limits import EVERYBODY
from tenure.core.stop import Stop
from tenure.entering import NeverEntered
from tenure.errors import UsageError
from tenure.lease import Acquiring, AsyncLease, Lease, LeaseBase
from tenure.primitives.base import (
    OF_LEASES,
    UNSET,
    AsyncLockBase,
    BlockingLockBase,
    LockBase,
    Sessions,
    absent,
)
from tenure.primitives.options import Busy_co, LockOptions, refuse_unknown
from tenure.runtimes.threads import drive

B = TypeVar("B", bound=Lease)
A = TypeVar("A", bound=AsyncLease)
R_co = TypeVar("R_co", bound=LockBase[Any], covariant=True)
W_co = TypeVar("W_co", bound=LockBase[Any], covariant=True)

KIND = "a reader/writer lock"

ADVICE = (
    "A read lease cannot become a write lease, and neither is reentrant: leave the `with`, or release its lease, "
    "before you enter the next; or enter write() in the first place, and downgrade() its lease to read on."
)

READER = 1
"""The weight of a reader."""

WRITER = EVERYBODY
"""The weight of a writer: all permits."""


def reported(weight: int) -> str:
    """Return what events call a side."""
    return "rw write" if weight == WRITER else "rw read"


class ReadLease(Lease):
    """The lease of a reader of an `RWLock`, beside other readers."""

    __slots__ = ()

    def upgrade(self) -> NoReturn:
        """Raise UsageError, which says why a read lease cannot become a write lease and what to do instead."""
        raise _no_upgrade(self.name)


class WriteLease(Lease):
    """The lease of the writer of an `RWLock`; `downgrade` makes it the lease of a reader."""

    __slots__ = ()

    def downgrade(self) -> None:
        """Become a read lease without a gap, and let the readers at the head of the queue in, in the same step.

        The token stays. Called again, it changes nothing. Raises LeaseLost if the lease is lost, and StoreError if the
        store did not answer: then only read, for others may read by now, and call again to let them in.
        """
        drive(self._session.adjust(self._core, weight=READER))


class AsyncReadLease(AsyncLease):
    """The lease of a reader of an `AsyncRWLock`, beside other readers."""

    __slots__ = ()

    def upgrade(self) -> NoReturn:
        """Raise UsageError, which says why a read lease cannot become a write lease and what to do instead."""
        raise _no_upgrade(self.name)


class AsyncWriteLease(AsyncLease):
    """The lease of the writer of an `AsyncRWLock`; `downgrade` makes it the lease of a reader."""

    __slots__ = ()

    async def downgrade(self) -> None:
        """Become a read lease without a gap, as `WriteLease.downgrade`. If it is cancelled, it may be done or not."""
        await self._session.adjust(self._core, weight=READER)


class _SideBase(LockBase[Any]):
    _kind = KIND
    _advice = ADVICE

    def __init__(
        self, client: Sessions, name: str, options: LockOptions, face: type[LeaseBase], *, weight: int
    ) -> None:
        self._reported = reported(weight)
        super().__init__(client, name, options, capacity=EVERYBODY, weight=weight)
        self._face = face


class Side(_SideBase, BlockingLockBase[Busy_co], Generic[B, Busy_co]):
    """One side of an `RWLock`: use it like a `Lock`."""

    def acquire(self, timeout: float | None = UNSET, *, stop: Stop | None = None, **unknown: Never) -> B:
        """Acquire this side, waiting up to `timeout` seconds (0: ask once; None: for ever; default: the lock's own).

        Raises LockTimeout if it was not granted in time, StoreError if the store did not answer, SelfDeadlock if this
        thread is in a `with` of the name and would wait for itself for ever, and Stopped if another thread sets `stop`
        meanwhile.
        """
        # No cast(): an interrupt in the call of cast() could lose the lease.
        lease: Any = super().acquire(timeout, stop=stop, **unknown)
        made: B = lease
        return made

    def try_acquire(self) -> B | None:
        """Acquire this side if it is free at once; else return None. Raises StoreError if the store did not answer."""
        lease: Any = super().try_acquire()  # no cast(), as in `acquire`
        made: B | None = lease
        return made

    if TYPE_CHECKING:  # a call of super() would stand between the `with` and what looks for its frame

        def __enter__(self) -> B:
            """Acquire this side; raises as `acquire` does."""
            ...


class AsyncSide(_SideBase, AsyncLockBase[Busy_co], Generic[A, Busy_co]):
    """One side of an `AsyncRWLock`: use it like an `AsyncLock`."""

    def acquire(self, timeout: float | None = UNSET, **unknown: Never) -> Acquiring[A]:
        """Acquire this side, as `Side.acquire`: await the call, or enter it by `async with`.

        A call that is cancelled at any point leaves no holder and no waiter behind.
        """
        return cast("Acquiring[A]", super().acquire(timeout, **unknown))

    async def try_acquire(self) -> A | None:
        """Acquire this side if it is free at once; else return None. Raises StoreError if the store did not answer."""
        lease: Any = await super().try_acquire()  # no cast(), as in `acquire`
        made: A | None = lease
        return made

    if TYPE_CHECKING:

        async def __aenter__(self) -> A:
            """Acquire this side; raises as `acquire` does. The body is cancelled if the lease is lost."""
            ...


class _Sides(NeverEntered, Generic[R_co, W_co]):
    """The two sides of one name."""

    _enter_instead = "read() or its write()"

    def __init__(self, read: R_co, write: W_co) -> None:
        self._read = read
        self._write = write

    @property
    def name(self) -> str:
        """The name of the lock, without the client's namespace."""
        return self._read.name

    if not TYPE_CHECKING:  # a type checker finds these mistakes by itself

        def __getattr__(self, word: str) -> Never:
            """Raise AttributeError, which says where to find an attribute that a lock or a lease has."""
            both = "read() and write() return an object that has it" if hasattr(BlockingLockBase, word) else ""
            message = f"{absent(self, word, OF_LEASES.get(word))}{both and f': {both}'}"
            raise AttributeError(message, name=word, obj=self)

    def read(self, **unknown: Never) -> R_co:
        """Return the side of the readers, which share the name."""
        if unknown:
            refuse_unknown("read", unknown, ())
        return self._read

    def write(self, **unknown: Never) -> W_co:
        """Return the side of the writers, of which one at a time has the name alone."""
        if unknown:
            refuse_unknown("write", unknown, ())
        return self._write

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class RWLock(_Sides[Side[ReadLease, Busy_co], Side[WriteLease, Busy_co]], Generic[Busy_co]):
    """A reader/writer lock of a `Client`: `with lock.read():` or `with lock.write():`. Made by `Client.rwlock`."""

    def __init__(self, client: Sessions, name: str, options: LockOptions) -> None:
        super().__init__(
            Side(client, name, options, ReadLease, weight=READER),
            Side(client, name, options, WriteLease, weight=WRITER),
        )


class AsyncRWLock(_Sides[AsyncSide[AsyncReadLease, Busy_co], AsyncSide[AsyncWriteLease, Busy_co]], Generic[Busy_co]):
    """A reader/writer lock of an `AsyncClient`: `async with lock.read():` or `async with lock.write():`.

    Made by `AsyncClient.rwlock`.
    """

    def __init__(self, client: Sessions, name: str, options: LockOptions) -> None:
        super().__init__(
            AsyncSide(client, name, options, AsyncReadLease, weight=READER),
            AsyncSide(client, name, options, AsyncWriteLease, weight=WRITER),
        )


def _no_upgrade(name: str) -> UsageError:
    return UsageError(
        f"a read lease of {name!r} can't become a write lease: two readers that both upgrade would wait for each other "
        "for ever. Release the lease, acquire write(), and read the data again; or acquire write() in the first place, "
        "and downgrade() its lease when you have written."
    )
