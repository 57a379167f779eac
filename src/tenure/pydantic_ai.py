"""Adapter for pydantic-ai: a limit of concurrent runs and model requests, over all processes.

For pydantic-ai 2.0 and later.
"""

import asyncio
from weakref import WeakKeyDictionary

from tenure.errors import LockTimeout
from tenure.lease import AsyncLease
from tenure.primitives.limit import AsyncLimit
from tenure.primitives.semaphore import AsyncSemaphore
from tenure.stores.extras import needed_by

with needed_by("tenure.pydantic_ai", "pydantic-ai", "pydantic-ai", "pydantic_ai"):
    from pydantic_ai.concurrency import AbstractConcurrencyLimiter
    from pydantic_ai.exceptions import ConcurrencyLimitExceeded

__all__ = ["Limiter"]


class Limiter(AbstractConcurrencyLimiter):
    """A concurrency limiter for `Agent(..., max_concurrency=...)` and `limit_model_concurrency(model, ...)`.

    Of a semaphore (`AsyncClient.semaphore`), each run or request holds a permit. A process that dies gives its permits
    back when their ttl has run out. A request whose lease is lost goes on: pydantic-ai cannot be told.

    Of a limit (`AsyncClient.limit`), each run or request uses a unit, which comes back with time.
    """

    def __init__(self, of: AsyncSemaphore | AsyncLimit) -> None:
        """Make a limiter. Its `timeout`, and `max_waiters`, are those of the semaphore or limit."""
        self._of = of
        self._leases = WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncLease]]()
        """The leases that each event loop holds. They are all alike, so none belongs to one request."""
        self._releases = set[asyncio.Task[object]]()

    async def acquire(self, source: str) -> None:
        """Acquire a permit, or use a unit.

        Raises ConcurrencyLimitExceeded if the semaphore's or limit's `timeout` or `max_waiters` says no, and StoreError
        if the store did not answer.
        """
        try:
            got = await self._of.acquire()
        except LockTimeout as error:
            raise ConcurrencyLimitExceeded(f"{source} was not begun: {error}") from error
        if isinstance(got, AsyncLease):
            self._leases.setdefault(asyncio.get_running_loop(), []).append(got)

    def release(self) -> None:
        """Release a permit in the background: of a lease that is lost, if there is one, for its permit is gone."""
        leases = self._leases.get(asyncio.get_running_loop())
        if not leases:
            return
        leases.sort(key=lambda lease: not lease.lost)
        task = asyncio.create_task(leases.pop(0).release())
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)
