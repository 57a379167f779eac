"""The client for asyncio."""

import warnings
from collections.abc import AsyncIterator, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from tenure.client.base import DRAIN_TIMEOUT, ClientBase
from tenure.client.checks import JOBS
from tenure.contracts.findings import Report
from tenure.contracts.limits import check_duration
from tenure.contracts.messages import HolderView, NameView
from tenure.core.session import Session
from tenure.entering import EnteredByAsyncWith
from tenure.errors import Wait
from tenure.explanation import Explanation
from tenure.lease import AsyncLease
from tenure.primitives.lock import AsyncLock
from tenure.primitives.options import (
    Busy_co,
    ElectionOptions,
    MultiLockOptions,
    OnceOptions,
    Options,
    PlainOptions,
)

if TYPE_CHECKING:
    from tenure.primitives.counter import AsyncCounter
    from tenure.primitives.election import AsyncElection
    from tenure.primitives.history import HistoryEntry
    from tenure.primitives.jobs import AsyncJob, JobView
    from tenure.primitives.limit import AsyncLimit
    from tenure.primitives.multilock import AsyncMultiLock
    from tenure.primitives.once import AsyncOnceJob
    from tenure.primitives.rwlock import AsyncRWLock
    from tenure.primitives.semaphore import AsyncSemaphore
    from tenure.primitives.stock import AsyncStock
    from tenure.runtimes.aio import Loop

CLOSING = 10.0
"""For how many seconds the close of a client waits for the event loops of other threads."""


class AsyncClient(EnteredByAsyncWith, ClientBase):
    """Locks for asyncio. Any number of event loops can use a client, also in several threads at once.

    Each event loop gets connections and a renewer of its own when it first uses the client. When the loop is closed, as
    asyncio.run() does at its end, they are closed before, and the leases that were acquired in it are released. Close
    the client, or use it with `async with`, to do so earlier. A lease belongs to the loop in which it was acquired; the
    locks of the client, and the functions that they decorate, belong to none.

    The renewer is one task, which renews all leases in the background. If the event loop is blocked for longer than the
    ttl of a lease, the lease is lost: run blocking work in a thread.
    """

    def _prepare(self) -> None:
        super()._prepare()
        from tenure.runtimes import aio

        self._running_loop = aio.running_loop
        self._run_in_each = aio.run_in_each
        self._new_runtime = aio.AsyncioRuntime
        self._sessions: dict[Loop, Session] = {}

    def lock(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[PlainOptions[Busy_co]],
    ) -> AsyncLock[Busy_co]:
        """Make a lock on `name`; arguments and errors as of `Client.lock`. `on_lost` is called in the event loop."""
        made = self._check.lock(ttl, timeout, options)
        if made.reentrant:
            from tenure.primitives.reentrant import AsyncReentrantLock

            return AsyncReentrantLock(self, name, made)
        return AsyncLock(self, name, made)

    def semaphore(
        self,
        name: str,
        permits: int | None,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[Options[Busy_co]],
    ) -> "AsyncSemaphore[Busy_co]":
        """Make a semaphore of `permits` on `name`; arguments and errors as of `Client.semaphore`."""
        from tenure.primitives.semaphore import AsyncSemaphore

        return AsyncSemaphore(self, name, permits, self._check.semaphore(permits, ttl, timeout, options))

    def rwlock(
        self, name: str, *, ttl: float | None = None, timeout: float | None = None, **options: Unpack[Options[Busy_co]]
    ) -> "AsyncRWLock[Busy_co]":
        """Make a reader/writer lock on `name`; arguments and errors as of `Client.rwlock`."""
        from tenure.primitives.rwlock import AsyncRWLock

        return AsyncRWLock(self, name, self._check.rwlock(ttl, timeout, options))

    def multilock(
        self,
        names: Iterable[str],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[MultiLockOptions],
    ) -> "AsyncMultiLock":
        """Make a lock on several names; arguments and errors as of `Client.multilock`."""
        from tenure.primitives.multilock import AsyncMultiLock

        return AsyncMultiLock(self, names, self._check.multilock(ttl, timeout, options))

    def election(
        self, name: str, *, ttl: float | None = None, timeout: float | None = None, **options: Unpack[ElectionOptions]
    ) -> "AsyncElection":
        """Make an election by `name`; arguments and errors as of `Client.election`."""
        from tenure.primitives.election import AsyncElection

        return AsyncElection(self, name, self._check.election(ttl, timeout, options))

    def counter(self, name: str) -> "AsyncCounter":
        """Make a counter on `name`; errors as of `Client.counter`."""
        from tenure.primitives.counter import AsyncCounter

        return AsyncCounter(self, name, self._check.cells("counters"))

    def limit(
        self,
        name: str,
        rate: int,
        per: float | str,
        *,
        smooth: bool = False,
        burst: int | None = None,
        timeout: float | None = None,
        template: str = "",
    ) -> "AsyncLimit":
        """Make a limit on `name`; arguments and errors as of `Client.limit`."""
        from tenure.primitives.limit import AsyncLimit, rule_of

        prefix, rule = self._check.cells("limits"), rule_of(rate, per, burst, smooth=smooth)
        return AsyncLimit(self, name, prefix, rule, timeout=timeout, template=template)

    def stock(self, name: str, segments: int = 8, *, template: str = "") -> "AsyncStock":
        """Make a stock on `name`; arguments and errors as of `Client.stock`."""
        from tenure.primitives.stock import AsyncStock

        return AsyncStock(self, name, self._check.cells("stocks"), segments, template)

    def once(self, job: str, **options: Unpack[OnceOptions]) -> "AsyncOnceJob":
        """Make a job that runs once in each window, or once for a key; arguments and errors as of `Client.once`."""
        from tenure.primitives.once import AsyncOnceJob

        return AsyncOnceJob(self, self._check.once(self, job, options))

    def job(self, name: str) -> "AsyncJob":
        """Return what an operator can do with a job. See `Client.job`."""
        from tenure.primitives.jobs import AsyncJob

        self._check.cells(JOBS)
        return AsyncJob(self, name)

    async def jobs(self) -> "list[JobView]":
        """Return the jobs of this client's namespace. See `Client.jobs`."""
        return await self._jobs()

    async def history(self, name: str) -> "list[HistoryEntry]":
        """Return what clients with `record=True` have written of `name`. See `Client.history`."""
        return (await self._history(name))[0]

    async def adopt(self, handle: str, ttl: float | None = None, *, timeout: float | None = None) -> AsyncLease:
        """Go on with the lease of a handle; arguments and errors as of `Client.adopt`.

        If it is cancelled, nobody renews the lease, and its handle can be adopted again.
        """
        return await self._adopt(AsyncLease, handle, ttl, timeout)

    async def inspect(self, name: str) -> NameView:
        """Return who holds `name` and who waits for it."""
        return self._short(await self.session().inspect(self._full(name)))

    async def why(self, name: str, *, weight: int = 1, owner: str | None = None) -> Explanation:
        """Return what keeps `name` from being granted, and what to do about it. See `Client.why`."""
        return await self._why(name, weight, owner)

    async def names(self, pattern: str | None = None) -> list[str]:
        """List the names of this client's namespace that are held or waited for, sorted; see `Client.iter_names`."""
        return sorted([name async for name in self.iter_names(pattern)])

    async def iter_names(self, pattern: str | None = None) -> AsyncIterator[str]:
        """Yield the names that `names` returns, in no order, page by page. See `Client.iter_names`."""
        rest: object = None
        while True:
            page = await self._page(pattern, rest)
            for name in self._matching(page.names, pattern):
                yield name
            if (rest := page.rest) is None:
                return

    async def deadlocks(self) -> list[tuple[Wait, ...]]:
        """Return all deadlocks, of any process. See `Client.deadlocks`."""
        return await self.session().deadlocks()

    async def revoke(self, name: str, *, force: bool = False, token: int | None = None) -> list[HolderView]:
        """Ask the holders of `name` to let go; with `force`, take it from them. See `Client.revoke`."""
        return await self._revoke(name, token, force=force)

    async def end_quarantine(self) -> float:
        """End the quarantine of the store at once. See `Client.end_quarantine`."""
        return await self.session().end_quarantine()

    async def examine(self, ttl: float | None = None) -> Report:
        """Look at the settings of the store, and return what is wrong with them for locks. See `Client.examine`."""
        return self._with_title(await self._examine(ttl))

    async def drain(self, timeout: float = DRAIN_TIMEOUT) -> bool:
        """End the work of this client in order, and close it. See `Client.drain`.

        The body of a leader is cancelled. If this is cancelled, the client is closed at once.
        """
        check_duration(timeout, "timeout")
        self._drained = True  # first, so that no session is begun from now on
        try:
            drains = {loop: partial(session.drain, timeout) for loop, session in self._begun().items()}
            return all(await self._run_in_each(drains, timeout))
        finally:
            await self.close()

    async def close(self) -> None:
        """Release all leases, and stop, in each event loop that has used the client. Idempotent.

        It waits for the releases that other tasks have begun. An `async with` of another task whose body still runs is
        not waited for: its lease is lost. Await `drain()` first if that may be so. A cancellation does not stop it
        half-way. It waits up to 10 seconds for the event loops of other threads; one that is blocked, or stands still,
        closes its part of the client when it runs again, or is closed.
        """
        self._closed = True  # first, so that a thread that begins a session now finds it
        last = self._new_runtime()
        closes = {loop: partial(session.close, last.mark()) for loop, session in self._begun().items()}
        self._take_sessions()
        if closes:
            self._last = last  # keeps the task
            await self._last.finish(self._run_in_each(closes, CLOSING))

    def _begun(self) -> "dict[Loop, Session]":
        """Return the sessions that can still do anything."""
        return {loop: each for loop, each in self._sessions.copy().items() if not (each.closed or loop.is_closed())}

    def _take_sessions(self) -> list[Session]:
        sessions, self._sessions = self._sessions, {}
        return list(sessions.values())

    def session(self) -> Session:
        """Return the session of this process and event loop; internal."""
        loop = self._running_loop()
        session = self._sessions.get(loop)
        return self._begin(loop) if session is None else session

    def _begin(self, loop: "Loop") -> Session:
        for each in list(self._sessions):  # those of other threads, too
            if each.is_closed():
                self._sessions.pop(each, None)
        runtime = self._new_runtime()
        session = self._sessions[loop] = self._start(runtime)
        if self._closed or self._drained:  # by another thread, which may not have seen the session
            self._sessions.pop(loop, None)
            self._refuse_if_ended()
        runtime.before_loop_closes(session.close)
        return session

    def __del__(self) -> None:
        if any(not each.closed for each in getattr(self, "_sessions", {}).values()):
            warnings.warn(
                f"{self!r} was not closed: its leases end at their ttl. Use it with `async with`, or await close().",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    async def __aenter__(self) -> Self:
        self._refuse_if_ended()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
