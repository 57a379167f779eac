"""Holdfast: distributed locks that you can trust."""

from importlib import import_module
from typing import TYPE_CHECKING

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
from holdfast.lease import AsyncLease, AsyncLoss, Lease, Loss
from holdfast.outcome import Outcome
from holdfast.primitives.lock import AsyncLock, Lock
from holdfast.runtimes.ending import release_on_sigterm

if TYPE_CHECKING:
    from holdfast.jobs.record import JobStatus
    from holdfast.primitives.counter import AsyncCounter, Counter
    from holdfast.primitives.election import AsyncElection, AsyncLeadership, Election, Leader, Leadership
    from holdfast.primitives.jobs import AsyncJob, Job, JobRun, JobView
    from holdfast.primitives.limit import AsyncLimit, Limit
    from holdfast.primitives.multilock import AsyncMultiLease, AsyncMultiLock, MultiLease, MultiLock
    from holdfast.primitives.once import AsyncOnceJob, OnceJob, OnceResult
    from holdfast.primitives.rwlock import AsyncRWLock, RWLock
    from holdfast.primitives.semaphore import AsyncSemaphore, Semaphore
    from holdfast.primitives.stock import AsyncStock, AsyncStockReservation, Stock, StockReservation

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

_LATER = {
    "holdfast.jobs.record": ("JobStatus",),
    "holdfast.primitives.counter": ("AsyncCounter", "Counter"),
    "holdfast.primitives.election": ("AsyncElection", "AsyncLeadership", "Election", "Leader", "Leadership"),
    "holdfast.primitives.jobs": ("AsyncJob", "Job", "JobRun", "JobView"),
    "holdfast.primitives.limit": ("AsyncLimit", "Limit"),
    "holdfast.primitives.multilock": ("AsyncMultiLease", "AsyncMultiLock", "MultiLease", "MultiLock"),
    "holdfast.primitives.once": ("AsyncOnceJob", "OnceJob", "OnceResult"),
    "holdfast.primitives.rwlock": ("AsyncRWLock", "RWLock"),
    "holdfast.primitives.semaphore": ("AsyncSemaphore", "Semaphore"),
    "holdfast.primitives.stock": ("AsyncStock", "AsyncStockReservation", "Stock", "StockReservation"),
}
"""The modules that are imported when one of their names is first used, or when the first client is made."""


def __getattr__(name: str) -> object:
    for module, names in _LATER.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
