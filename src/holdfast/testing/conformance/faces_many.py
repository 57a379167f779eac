"""The shape of multilocks and elections, for both colours; see `faces.py`."""

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, Self

from holdfast.core.held import LeaseState
from holdfast.outcome import Outcome
from holdfast.primitives.base import UNSET
from holdfast.primitives.election import INTERVAL, Election, Leader, Leadership, Observation
from holdfast.primitives.multilock import MultiLease, MultiLock
from holdfast.testing.conformance.faces_loss import AnyLoss, BlockingLoss


class AnyMultiLease(Protocol):
    """One holding of several names."""

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing tokens."""
        ...

    @property
    def state(self) -> LeaseState:
        """What may be believed of it."""
        ...

    @property
    def lost(self) -> AnyLoss:
        """The event of its loss."""
        ...

    def remaining(self) -> float:
        """Return for how many seconds all are certainly ours."""
        ...

    def check(self) -> None:
        """Raise LeaseLost unless all are ours."""

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


class AnyMultiLock(Protocol):
    """What several names are acquired from."""

    async def acquire(self, timeout: float | None = UNSET) -> AnyMultiLease:
        """Acquire, or raise LockTimeout."""
        ...

    async def try_acquire(self) -> AnyMultiLease | None:
        """Acquire, or return None."""
        ...

    async def __aenter__(self) -> AnyMultiLease: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class AnyTerm(Protocol):
    """One term of a leader."""

    @property
    def token(self) -> int:
        """The number of the term."""
        ...

    @property
    def value(self) -> str:
        """What is published."""
        ...

    def check(self) -> None:
        """Raise LeaseLost unless it goes on."""

    async def publish(self, value: str) -> None:
        """Publish something else."""

    async def release(self) -> Outcome:
        """Resign."""
        ...


class AnyObservation(Protocol):
    """The changes of the leader."""

    def stop(self) -> None:
        """End it."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Leader | None: ...


class AnyElection(Protocol):
    """What leaders are elected by."""

    @property
    def is_leader(self) -> bool:
        """Whether we lead."""
        ...

    def campaign(self, value: str = "", timeout: float | None = UNSET) -> Coroutine[Any, Any, AnyTerm]:
        """Become the leader, or raise LockTimeout."""
        ...

    async def resign(self) -> Outcome | None:
        """Lead no more."""
        ...

    async def leader(self) -> Leader | None:
        """Tell who leads."""
        ...

    def observe(self, timeout: float | None = None, *, interval: float = INTERVAL) -> AnyObservation:
        """Iterate over the leaders."""
        ...


class BlockingMultiLease:
    """`MultiLease` in the shape of `AsyncMultiLease`."""

    def __init__(self, lease: MultiLease) -> None:
        """Wrap it."""
        self._lease = lease
        self.remaining = lease.remaining
        self.check = lease.check

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing tokens."""
        return self._lease.tokens

    @property
    def state(self) -> LeaseState:
        """What may be believed of it."""
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


class BlockingMultiLock:
    """`MultiLock` in the shape of `AsyncMultiLock`."""

    def __init__(self, lock: MultiLock) -> None:
        """Wrap it."""
        self._lock = lock

    async def acquire(self, timeout: float | None = UNSET) -> BlockingMultiLease:
        """Acquire, or raise LockTimeout."""
        return BlockingMultiLease(self._lock.acquire(timeout))

    async def try_acquire(self) -> BlockingMultiLease | None:
        """Acquire, or return None."""
        lease = self._lock.try_acquire()
        return None if lease is None else BlockingMultiLease(lease)

    async def __aenter__(self) -> BlockingMultiLease:
        return BlockingMultiLease(self._lock.__enter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._lock.__exit__(kind, error, trace)


class BlockingTerm:
    """`Leadership` in the shape of `AsyncLeadership`."""

    def __init__(self, term: Leadership) -> None:
        """Wrap it."""
        self._term = term
        self.check = term.check

    @property
    def token(self) -> int:
        """The number of the term."""
        return self._term.token

    @property
    def value(self) -> str:
        """What is published."""
        return self._term.value

    async def publish(self, value: str) -> None:
        """Publish something else."""
        self._term.publish(value)

    async def release(self) -> Outcome:
        """Resign."""
        return self._term.release()


class BlockingObservation:
    """`Observation` in the shape of `AsyncObservation`."""

    def __init__(self, observation: Observation) -> None:
        """Wrap it."""
        self._observation = observation
        self.stop = observation.stop

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Leader | None:
        """Block until the next change."""
        for leader in self._observation:
            return leader
        raise StopAsyncIteration


class BlockingElection:
    """`Election` in the shape of `AsyncElection`."""

    def __init__(self, election: Election) -> None:
        """Wrap it."""
        self._election = election

    @property
    def is_leader(self) -> bool:
        """Whether we lead."""
        return self._election.is_leader

    async def campaign(self, value: str = "", timeout: float | None = UNSET) -> BlockingTerm:
        """Become the leader, or raise LockTimeout."""
        return BlockingTerm(self._election.campaign(value, timeout))

    async def resign(self) -> Outcome | None:
        """Lead no more."""
        return self._election.resign()

    async def leader(self) -> Leader | None:
        """Tell who leads."""
        return self._election.leader()

    def observe(self, timeout: float | None = None, *, interval: float = INTERVAL) -> BlockingObservation:
        """Iterate over the leaders."""
        return BlockingObservation(self._election.observe(timeout, interval=interval))
