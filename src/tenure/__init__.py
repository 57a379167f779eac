"""Tenure: distributed locks that you can trust."""

from importlib import import_module
from typing import TYPE_CHECKING

from tenure.client import AsyncClient, Client
from tenure.contracts.forms import RELEASE
from tenure.contracts.messages import HolderView, NameView, WaiterView
from tenure.core.events import EventKind, LockEvent
from tenure.core.lease import LeaseState
from tenure.core.stop import Stop
from tenure.errors import (
    BlockedEventLoop,
    DeadlockDetected,
    FingerprintMismatch,
    ForkedLeaseError,
    JobNotDone,
    LeaseLost,
    LockTimeout,
    OutcomeUnknown,
    ResultNotKept,
    SelfDeadlock,
    StaleTokenError,
    Stopped,
    StoreError,
    StoreUnavailable,
    TenureError,
    UnknownArgument,
    UsageError,
    Vote,
    Wait,
)
from tenure.explanation import Cause, Explanation, Life, NextStep, Party, Reason
from tenure.fence import Fence
from tenure.guard import Guard
from tenure.lease import AsyncLease, AsyncLoss, Lease, Loss
from tenure.outcome import Outcome
from tenure.primitives.lock import AsyncLock, Lock
from tenure.runtimes.ending import release_on_sigterm

if TYPE_CHECKING:
    from tenure.jobs.record import JobStatus
    from tenure.primitives.counter import AsyncCounter, Counter
    from tenure.primitives.election import AsyncElection, AsyncLeadership, Election, Leader, Leadership
    from tenure.primitives.history import HistoryEntry
    from tenure.primitives.jobs import AsyncJob, Job, JobRun, JobView
    from tenure.primitives.limit import AsyncCharge, AsyncLimit, Charge, Limit
    from tenure.primitives.multilock import AsyncMultiLease, AsyncMultiLock, MultiLease, MultiLock
    from tenure.primitives.once import AsyncOnceJob, OnceJob, OnceResult
    from tenure.primitives.rwlock import AsyncRWLock, RWLock
    from tenure.primitives.semaphore import AsyncSemaphore, Semaphore
    from tenure.primitives.stock import AsyncStock, AsyncStockReservation, Stock, StockReservation

__version__ = RELEASE

__all__ = [
    "AsyncCharge",
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
    "Cause",
    "Charge",
    "Client",
    "Counter",
    "DeadlockDetected",
    "Election",
    "EventKind",
    "Explanation",
    "Fence",
    "FingerprintMismatch",
    "ForkedLeaseError",
    "Guard",
    "HistoryEntry",
    "HolderView",
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
    "Life",
    "Limit",
    "Lock",
    "LockEvent",
    "LockTimeout",
    "Loss",
    "MultiLease",
    "MultiLock",
    "NameView",
    "NextStep",
    "OnceJob",
    "OnceResult",
    "Outcome",
    "OutcomeUnknown",
    "Party",
    "RWLock",
    "Reason",
    "ResultNotKept",
    "SelfDeadlock",
    "Semaphore",
    "StaleTokenError",
    "Stock",
    "StockReservation",
    "Stop",
    "Stopped",
    "StoreError",
    "StoreUnavailable",
    "TenureError",
    "UnknownArgument",
    "UsageError",
    "Vote",
    "Wait",
    "WaiterView",
    "release_on_sigterm",
]

_LATER = {
    "tenure.jobs.record": ("JobStatus",),
    "tenure.primitives.counter": ("AsyncCounter", "Counter"),
    "tenure.primitives.election": ("AsyncElection", "AsyncLeadership", "Election", "Leader", "Leadership"),
    "tenure.primitives.history": ("HistoryEntry",),
    "tenure.primitives.jobs": ("AsyncJob", "Job", "JobRun", "JobView"),
    "tenure.primitives.limit": ("AsyncCharge", "AsyncLimit", "Charge", "Limit"),
    "tenure.primitives.multilock": ("AsyncMultiLease", "AsyncMultiLock", "MultiLease", "MultiLock"),
    "tenure.primitives.once": ("AsyncOnceJob", "OnceJob", "OnceResult"),
    "tenure.primitives.rwlock": ("AsyncRWLock", "RWLock"),
    "tenure.primitives.semaphore": ("AsyncSemaphore", "Semaphore"),
    "tenure.primitives.stock": ("AsyncStock", "AsyncStockReservation", "Stock", "StockReservation"),
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
    return sorted([*__all__, "__version__"])
