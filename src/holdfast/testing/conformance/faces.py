"""One shape for both colours, so that a guarantee is written once.

The shape is that of the asyncio API. `AsyncClient` has it already; `BlockingClient` puts it over `Client`, by methods
that block in place and never suspend. A check which awaits nothing else can be driven by a thread as it is.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, Unpack

from holdfast.client import DEFAULT_TTL, Client
from holdfast.core.held import LeaseState
from holdfast.core.messages import HolderView, NameView
from holdfast.errors import Wait
from holdfast.lease import Lease
from holdfast.outcome import Outcome
from holdfast.primitives.base import UNSET, BlockingLockBase
from holdfast.primitives.options import Options, PlainOptions
from holdfast.primitives.rwlock import RWLock, Side, WriteLease
from holdfast.primitives.semaphore import Semaphore
from holdfast.testing.conformance.faces_loss import AnyLoss, BlockingLoss
from holdfast.testing.conformance.faces_many import AnyElection, AnyMultiLock, BlockingElection, BlockingMultiLock


class AnyLease(Protocol):
    """One holding of a lock."""

    @property
    def token(self) -> int:
        """The fencing token."""
        ...

    @property
    def state(self) -> LeaseState:
        """What may be believed of the lease."""
        ...

    @property
    def lost(self) -> AnyLoss:
        """The event of its loss."""
        ...

    def remaining(self) -> float:
        """Return for how many seconds the lease is certainly ours."""
        ...

    @property
    def revoking(self) -> bool:
        """Whether somebody asked for it."""
        ...

    def check(self) -> None:
        """Raise LeaseLost unless the lease is ours."""

    def on_revoke(self, callback: Callable[[Any], object]) -> None:
        """Have it called when somebody asks for it."""

    async def release(self) -> Outcome:
        """Let go."""
        ...

    async def extend(self, ttl: float | None = None) -> float:
        """Renew now."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class AnyWriteLease(AnyLease, Protocol):
    """One holding of the writers' side of a reader/writer lock."""

    async def downgrade(self) -> None:
        """Become a reader's."""


class AnyLock(Protocol):
    """What leases are acquired from."""

    async def acquire(self, timeout: float | None = UNSET) -> AnyLease:
        """Acquire, or raise LockTimeout."""
        ...

    async def try_acquire(self) -> AnyLease | None:
        """Acquire, or return None."""
        ...

    async def __aenter__(self) -> AnyLease: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class AnyWriteSide(AnyLock, Protocol):
    """What leases that can become a reader's are acquired from."""

    async def acquire(self, timeout: float | None = UNSET) -> AnyWriteLease:
        """Acquire, or raise LockTimeout."""
        ...


class AnySemaphore(AnyLock, Protocol):
    """What leases of several permits are acquired from."""

    async def resize(self, permits: int) -> None:
        """Change the number of permits."""

    async def acquire(self, timeout: float | None = UNSET, weight: int = 1) -> AnyLease:
        """Acquire, or raise LockTimeout."""
        ...

    async def try_acquire(self, weight: int = 1) -> AnyLease | None:
        """Acquire, or return None."""
        ...


class AnyRWLock(Protocol):
    """What readers share and writers have alone."""

    def read(self) -> AnyLock:
        """Return the side of the readers."""
        ...

    def write(self) -> AnyWriteSide:
        """Return the side of the writers."""
        ...


class AnyClient(Protocol):
    """A client of either colour."""

    def lock(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[PlainOptions],
    ) -> AnyLock:
        """Make a lock."""
        ...

    def semaphore(
        self,
        name: str,
        permits: int,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> AnySemaphore:
        """Make a semaphore."""
        ...

    def rwlock(
        self, name: str, ttl: float = DEFAULT_TTL, timeout: float | None = None, **options: Unpack[Options]
    ) -> AnyRWLock:
        """Make a reader/writer lock."""
        ...

    def multilock(
        self,
        names: Sequence[str],
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        *,
        max_hold: float | None = None,
    ) -> AnyMultiLock:
        """Make a multilock."""
        ...

    def election(
        self, name: str, ttl: float = DEFAULT_TTL, timeout: float | None = None, *, max_hold: float | None = None
    ) -> AnyElection:
        """Make an election."""
        ...

    async def inspect(self, name: str) -> NameView:
        """Show one name."""
        ...

    async def names(self) -> list[str]:
        """List the names in use."""
        ...

    async def deadlocks(self) -> list[tuple[Wait, ...]]:
        """List who waits in a circle."""
        ...

    async def revoke(self, name: str, *, force: bool = False) -> list[HolderView]:
        """Ask for a name, or take it by force."""
        ...

    async def close(self) -> None:
        """Release what is held, and stop."""


class BlockingLease:
    """`Lease` in the shape of `AsyncLease`."""

    def __init__(self, lease: Lease) -> None:
        """Wrap it."""
        self._lease = lease
        self.remaining = lease.remaining
        self.check = lease.check
        self.on_revoke = lease.on_revoke

    @property
    def revoking(self) -> bool:
        """Whether somebody asked for it."""
        return self._lease.revoking

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._lease.token

    @property
    def state(self) -> LeaseState:
        """What may be believed of the lease."""
        return self._lease.state

    @property
    def lost(self) -> BlockingLoss:
        """The event of its loss."""
        return BlockingLoss(self._lease.lost)

    async def release(self) -> Outcome:
        """Let go."""
        return self._lease.release()

    async def extend(self, ttl: float | None = None) -> float:
        """Renew now."""
        return self._lease.extend(ttl)

    async def __aenter__(self) -> Self:
        self._lease.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._lease.__exit__(kind, error, trace)


class BlockingWriteLease(BlockingLease):
    """`WriteLease` in the shape of `AsyncWriteLease`."""

    def __init__(self, lease: WriteLease) -> None:
        """Wrap it."""
        super().__init__(lease)
        self._writing = lease

    async def downgrade(self) -> None:
        """Become a reader's."""
        self._writing.downgrade()


class BlockingLock:
    """`Lock`, or a side of an `RWLock`, in the shape of its async twin."""

    def __init__(self, lock: BlockingLockBase) -> None:
        """Wrap it."""
        self._lock = lock

    async def acquire(self, timeout: float | None = UNSET) -> BlockingLease:
        """Acquire, or raise LockTimeout."""
        return BlockingLease(self._lock.acquire(timeout))

    async def try_acquire(self) -> BlockingLease | None:
        """Acquire, or return None."""
        lease = self._lock.try_acquire()
        return None if lease is None else BlockingLease(lease)

    async def __aenter__(self) -> BlockingLease:
        return BlockingLease(self._lock.__enter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._lock.__exit__(kind, error, trace)


class BlockingWriteSide(BlockingLock):
    """The writers' side of an `RWLock` in the shape of its async twin."""

    def __init__(self, side: Side[WriteLease]) -> None:
        """Wrap it."""
        super().__init__(side)
        self._side = side

    async def acquire(self, timeout: float | None = UNSET) -> BlockingWriteLease:
        """Acquire, or raise LockTimeout."""
        return BlockingWriteLease(self._side.acquire(timeout))


class BlockingSemaphore(BlockingLock):
    """`Semaphore` in the shape of `AsyncSemaphore`."""

    def __init__(self, semaphore: Semaphore) -> None:
        """Wrap it."""
        super().__init__(semaphore)
        self._semaphore = semaphore

    async def resize(self, permits: int) -> None:
        """Change the number of permits."""
        self._semaphore.resize(permits)

    async def acquire(self, timeout: float | None = UNSET, weight: int = 1) -> BlockingLease:
        """Acquire, or raise LockTimeout."""
        return BlockingLease(self._semaphore.acquire(timeout, weight))

    async def try_acquire(self, weight: int = 1) -> BlockingLease | None:
        """Acquire, or return None."""
        lease = self._semaphore.try_acquire(weight)
        return None if lease is None else BlockingLease(lease)


class BlockingRWLock:
    """`RWLock` in the shape of `AsyncRWLock`."""

    def __init__(self, lock: RWLock) -> None:
        """Wrap it."""
        self._lock = lock

    def read(self) -> BlockingLock:
        """Return the side of the readers."""
        return BlockingLock(self._lock.read())

    def write(self) -> BlockingWriteSide:
        """Return the side of the writers."""
        return BlockingWriteSide(self._lock.write())


class BlockingClient:
    """`Client` in the shape of `AsyncClient`."""

    def __init__(self, client: Client) -> None:
        """Wrap it."""
        self._client = client

    def lock(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[PlainOptions],
    ) -> BlockingLock:
        """Make a lock."""
        return BlockingLock(self._client.lock(name, ttl, timeout, **options))

    def semaphore(
        self,
        name: str,
        permits: int,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> BlockingSemaphore:
        """Make a semaphore."""
        return BlockingSemaphore(self._client.semaphore(name, permits, ttl, timeout, **options))

    def rwlock(
        self, name: str, ttl: float = DEFAULT_TTL, timeout: float | None = None, **options: Unpack[Options]
    ) -> BlockingRWLock:
        """Make a reader/writer lock."""
        return BlockingRWLock(self._client.rwlock(name, ttl, timeout, **options))

    def multilock(
        self,
        names: Sequence[str],
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        *,
        max_hold: float | None = None,
    ) -> BlockingMultiLock:
        """Make a multilock."""
        return BlockingMultiLock(self._client.multilock(names, ttl, timeout, max_hold=max_hold))

    def election(
        self, name: str, ttl: float = DEFAULT_TTL, timeout: float | None = None, *, max_hold: float | None = None
    ) -> BlockingElection:
        """Make an election."""
        return BlockingElection(self._client.election(name, ttl, timeout, max_hold=max_hold))

    async def inspect(self, name: str) -> NameView:
        """Show one name."""
        return self._client.inspect(name)

    async def names(self) -> list[str]:
        """List the names in use."""
        return self._client.names()

    async def deadlocks(self) -> list[tuple[Wait, ...]]:
        """List who waits in a circle."""
        return self._client.deadlocks()

    async def revoke(self, name: str, *, force: bool = False) -> list[HolderView]:
        """Ask for a name, or take it by force."""
        return self._client.revoke(name, force=force)

    async def close(self) -> None:
        """Release what is held, and stop."""
        self._client.close()


class KeepingLock:
    """A lock that keeps every lease which is acquired from it.

    A lease that is dropped warns, and is renewed no more; a check may drop one, as its client releases them all.
    """

    def __init__(self, lock: AnyLock, kept: list[AnyLease]) -> None:
        """Put leases of `lock` into `kept`."""
        self._lock = lock
        self._kept = kept

    async def acquire(self, timeout: float | None = UNSET) -> AnyLease:
        """Acquire, or raise LockTimeout."""
        lease = await self._lock.acquire(timeout)
        self._kept.append(lease)
        return lease

    async def try_acquire(self) -> AnyLease | None:
        """Acquire, or return None."""
        lease = await self._lock.try_acquire()
        if lease is not None:
            self._kept.append(lease)
        return lease

    async def __aenter__(self) -> AnyLease:
        return await self._lock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._lock.__aexit__(kind, error, trace)


class KeepingWriteSide(KeepingLock):
    """The writers' side, which keeps every lease that is acquired from it."""

    def __init__(self, side: AnyWriteSide, kept: list[AnyLease]) -> None:
        """Put leases of `side` into `kept`."""
        super().__init__(side, kept)
        self._side = side

    async def acquire(self, timeout: float | None = UNSET) -> AnyWriteLease:
        """Acquire, or raise LockTimeout."""
        lease = await self._side.acquire(timeout)
        self._kept.append(lease)
        return lease


class KeepingSemaphore(KeepingLock):
    """A semaphore that keeps every lease which is acquired from it."""

    def __init__(self, semaphore: AnySemaphore, kept: list[AnyLease]) -> None:
        """Put leases of `semaphore` into `kept`."""
        super().__init__(semaphore, kept)
        self._semaphore = semaphore

    async def resize(self, permits: int) -> None:
        """Change the number of permits."""
        await self._semaphore.resize(permits)

    async def acquire(self, timeout: float | None = UNSET, weight: int = 1) -> AnyLease:
        """Acquire, or raise LockTimeout."""
        lease = await self._semaphore.acquire(timeout, weight)
        self._kept.append(lease)
        return lease

    async def try_acquire(self, weight: int = 1) -> AnyLease | None:
        """Acquire, or return None."""
        lease = await self._semaphore.try_acquire(weight)
        if lease is not None:
            self._kept.append(lease)
        return lease


class KeepingRWLock:
    """A reader/writer lock that keeps every lease which is acquired from it."""

    def __init__(self, lock: AnyRWLock, kept: list[AnyLease]) -> None:
        """Put leases of `lock` into `kept`."""
        self._lock = lock
        self._kept = kept

    def read(self) -> KeepingLock:
        """Return the side of the readers."""
        return KeepingLock(self._lock.read(), self._kept)

    def write(self) -> KeepingWriteSide:
        """Return the side of the writers."""
        return KeepingWriteSide(self._lock.write(), self._kept)


class KeepingClient:
    """A client that keeps its leases."""

    def __init__(self, client: AnyClient, kept: list[AnyLease]) -> None:
        """Put leases of `client` into `kept`."""
        self._client = client
        self._kept = kept
        self.inspect = client.inspect
        self.multilock = client.multilock
        self.election = client.election
        self.names = client.names
        self.deadlocks = client.deadlocks
        self.revoke = client.revoke
        self.close = client.close

    def lock(
        self,
        name: str,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[PlainOptions],
    ) -> KeepingLock:
        """Make a lock."""
        return KeepingLock(self._client.lock(name, ttl, timeout, **options), self._kept)

    def semaphore(
        self,
        name: str,
        permits: int,
        ttl: float = DEFAULT_TTL,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> KeepingSemaphore:
        """Make a semaphore."""
        return KeepingSemaphore(self._client.semaphore(name, permits, ttl, timeout, **options), self._kept)

    def rwlock(
        self, name: str, ttl: float = DEFAULT_TTL, timeout: float | None = None, **options: Unpack[Options]
    ) -> KeepingRWLock:
        """Make a reader/writer lock."""
        return KeepingRWLock(self._client.rwlock(name, ttl, timeout, **options), self._kept)
