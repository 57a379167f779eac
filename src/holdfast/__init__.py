"""Holdfast: distributed locks that you can trust."""

from holdfast.client import AsyncClient, Client
from holdfast.contracts.messages import HolderView, NameView, WaiterView
from holdfast.core.events import EventKind, LockEvent
from holdfast.core.lease import LeaseState
from holdfast.core.stop import Stop
from holdfast.errors import (
    BlockedEventLoop,
    DeadlockDetected,
    ForkedLeaseError,
    HoldfastError,
    JobNotDone,
    LeaseLost,
    LockTimeout,
    OutcomeUnknown,
    SelfDeadlock,
    StaleTokenError,
    Stopped,
    StoreError,
    StoreUnavailable,
    UnknownArgument,
    UsageError,
    Vote,
    Wait,
)
from holdfast.fence import Fence
from holdfast.guard import Guard
from holdfast.jobs.record import JobStatus
from holdfast.lease import AsyncLease, AsyncLoss, Lease, Loss
from holdfast.outcome import Outcome
from holdfast.primitives.counter import AsyncCounter, Counter
from holdfast.primitives.election import AsyncElection, AsyncLeadership, Election, Leader, Leadership
from holdfast.primitives.jobs import AsyncJob, Job, JobRun, JobView
from holdfast.primitives.limit import AsyncLimit, Limit
from holdfast.primitives.lock import AsyncLock, Lock
from holdfast.primitives.multilock import AsyncMultiLease, AsyncMultiLock, MultiLease, MultiLock
from holdfast.primitives.once import AsyncOnceJob, OnceJob, OnceResult
from holdfast.primitives.rwlock import AsyncRWLock, RWLock
from holdfast.primitives.semaphore import AsyncSemaphore, Semaphore
from holdfast.primitives.stock import AsyncStock, AsyncStockReservation, Stock, StockReservation
from holdfast.runtimes.ending import release_on_sigterm

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncCounter",
    "AsyncElection",
    "AsyncJob",
    "AsyncLeadership",
    "AsyncLease",
    "AsyncLimit",
    "AsyncLock",
    "AsyncLoss",
    "AsyncMultiLease",
    "AsyncMultiLock",
    "AsyncOnceJob",
    "AsyncRWLock",
    "AsyncSemaphore",
    "AsyncStock",
    "AsyncStockReservation",
    "BlockedEventLoop",
    "Client",
    "Counter",
    "DeadlockDetected",
    "Election",
    "EventKind",
    "Fence",
    "ForkedLeaseError",
    "Guard",
    "HolderView",
    "HoldfastError",
    "Job",
    "JobNotDone",
    "JobRun",
    "JobStatus",
    "JobView",
    "Leader",
    "Leadership",
    "Lease",
    "LeaseLost",
    "LeaseState",
    "Limit",
    "Lock",
    "LockEvent",
    "LockTimeout",
    "Loss",
    "MultiLease",
    "MultiLock",
    "NameView",
    "OnceJob",
    "OnceResult",
    "Outcome",
    "OutcomeUnknown",
    "RWLock",
    "SelfDeadlock",
    "Semaphore",
    "StaleTokenError",
    "Stock",
    "StockReservation",
    "Stop",
    "Stopped",
    "StoreError",
    "StoreUnavailable",
    "UnknownArgument",
    "UsageError",
    "Vote",
    "Wait",
    "WaiterView",
    "release_on_sigterm",
]
