"""The tools of a check: clients of one form of the API, concurrent threads or tasks, and waits with a deadline.

The rule: everything that a check awaits comes from this module or from the store. So the same check runs in threads,
where every await blocks in place, and in asyncio.
"""

import asyncio
import contextlib
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tenure.client import AsyncClient, Client
from tenure.contracts.deadlines import DRIFT, micros
from tenure.contracts.messages import (
    AcquireRequest,
    Granted,
    NameView,
    NotGranted,
    Notification,
    NotificationKind,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Store, StoreSource, renew_together
from tenure.errors import LockTimeout
from tenure.outcome import Outcome
from tenure.runtimes import clocks
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime, complete
from tenure_testing.conformance.adapter import adapt
from tenure_testing.conformance.wire import FaultyWire

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

TEST_TIMEOUT = 10.0
"""How long a check waits for a condition, in seconds. It is generous, for only a failure uses it up."""

PAUSE = 0.002
"""The first pause between two evaluations of a condition, in seconds."""

SHORTEST_TTL = 0.2
"""The ttl of a lease that expires during a check, in seconds, where the store grants one so short."""

LONGEST_PAUSE = 0.03
"""The longest pause between two evaluations, in seconds: an evaluation may be a request to many servers."""

_random = random.SystemRandom()


class Violation(AssertionError):
    """The failure of a check: a guarantee does not hold."""


def expect(holds: object, what: str) -> None:
    """Raise Violation with the message `what`, which says what should be true, unless `holds` is true."""
    if not holds:
        raise Violation(what)


class Running(Protocol[T_co]):
    """A thread or a task that runs beside the check."""

    def done(self) -> bool:
        """Tell whether the thread or task has ended."""
        ...

    async def result(self, within: float = TEST_TIMEOUT) -> T_co:
        """Wait for its end; return its result or raise its error. Raises Violation after `within` seconds."""
        ...

    def cancel(self) -> None:
        """Cancel a task. A thread raises NotImplementedError."""


class Releasable(Protocol):
    """A lease of any kind."""

    async def release(self) -> Outcome:
        """Release the lease."""
        ...


async def timed_out(acquiring: Awaitable[object]) -> LockTimeout | None:
    """Await an acquisition; return its LockTimeout, or None if the lock was granted."""
    try:
        await acquiring
    except LockTimeout as error:
        return error
    return None


async def cancel_after(running: Running[Releasable], steps: int) -> None:
    """Cancel an acquisition after so many steps of the loop; release the lease if it was granted before."""
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    try:
        result = await running.result()
    except asyncio.CancelledError:
        return
    await result.release()


class RawClient:
    """A client without the protocol: it sends single requests to a store, and collects notifications."""

    def __init__(self, runtime: Runtime, store: Store, space: str) -> None:
        """Use `store`, with names in the namespace `space`."""
        self.runtime = runtime
        self.store = store
        self.channel = ""
        self.notifications: list[Notification] = []
        self._space = space
        self._closed = False

    async def open(self) -> None:
        """Open the store."""
        self.channel = await self.store.open(self.notifications.append, self._until())

    async def close(self) -> None:
        """Close the store, once, without releasing leases or withdrawing requests."""
        if not self._closed:
            self._closed = True
            await self.store.close()

    def request(
        self,
        name: str,
        *,
        ttl: float = 20.0,
        waiter_ttl: float = 10.0,
        weight: int = 1,
        capacity: int = 1,
        wait: bool = True,
    ) -> AcquireRequest:
        """Make a new acquire request. Durations are in seconds."""
        return AcquireRequest(
            self._space + name,
            self.runtime.new_id(),
            self.channel,
            "raw",
            micros(ttl),
            micros(min(ttl, 10.0)) // 4,
            micros(waiter_ttl),
            weight,
            capacity,
            proposal=self.runtime.wall(),
            wait=wait,
        )

    async def acquire(self, request: AcquireRequest) -> Reply:
        """Send an acquire request, for the first time or again."""
        return await self.store.acquire(request, self._until())

    async def acquire_many(self, requests: Sequence[AcquireRequest]) -> list[Reply]:
        """Send requests for several names in one step, for the first time or again."""
        return await self.store.acquire_many(requests, self._until())

    async def acquire_free(self, request: AcquireRequest) -> int:
        """Acquire a name that must be free; return the token."""
        reply = await self.acquire(request)
        if not isinstance(reply, Granted):
            message = f"a free name was not granted: {reply}"
            raise Violation(message)
        return reply.token

    async def release(self, request: AcquireRequest, token: int, *, unsure: bool = False) -> Outcome:
        """Release the lease of a request."""
        return await self.store.release(ReleaseRequest(request.name, request.request_id, token, unsure), self._until())

    async def renew(self, request: AcquireRequest, token: int, ttl: float) -> RenewReply:
        """Renew the lease of a request."""
        renewals = [RenewRequest(request.name, request.request_id, token, micros(ttl))]
        (reply,) = await renew_together(self.store, renewals, self._until())
        return reply

    async def withdraw(self, request: AcquireRequest, *, unsure: bool = False) -> NotGranted:
        """Withdraw a request."""
        return await self.store.withdraw(WithdrawRequest(request.name, request.request_id, unsure), self._until())

    async def inspect(self, name: str) -> NameView:
        """Return the view of a name."""
        return await self.store.inspect(self._space + name, self._until())

    def pushed(self, request: AcquireRequest) -> int:
        """Return the token of the notification that granted a request, or 0."""
        tokens = [
            notification.token
            for notification in list(self.notifications)
            if notification.kind is NotificationKind.GRANTED and notification.request_id == request.request_id
        ]
        return max(tokens, default=0)

    def _until(self) -> float:
        return self.runtime.now() + TEST_TIMEOUT


class Kit(ABC):
    """The tools of one run of one check."""

    form: str

    def __init__(self, source: StoreSource) -> None:
        """Use `source`, in a namespace that nobody else uses."""
        self.source = source
        self.capabilities = source.capabilities
        self.lists = source.capabilities.records
        """Whether the store lists names."""
        self.shows_leases = source.capabilities.shows_leases
        """Whether the store shows the owner, the token and the ttl of a lease."""
        self.short = max(SHORTEST_TTL, source.capabilities.min_ttl)
        """A ttl that expires during a check, in seconds."""
        self.space = f"conformance-{_random.getrandbits(64):016x}"
        self.now = clocks.steady
        self._leases: list[object] = []
        """All leases of the check. A dropped lease warns, but a check may drop one, as its client releases them all."""
        self._closers: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def client(self, wire: FaultyWire | None = None, *, owner: str = "check", within: str = "") -> AsyncClient:
        """Make a client, with `wire` between it and the store, in the namespace `within` of this check.

        The operation timeout is long, for the machine may be busy. With a wire, which may lose a request, it is short.
        """
        source, operation_timeout = (self.source, TEST_TIMEOUT) if wire is None else (wire.tap(self.source), 1.0)
        return self.adopt(self._client(source, self.space + within, owner, operation_timeout))

    def adopt(self, client: Client | AsyncClient) -> AsyncClient:
        """Return a client in the shape of an AsyncClient; keep its leases, and close it when the check ends."""
        adapted = adapt(client, self._leases.append)
        self._closers.append(adapted.close)
        return adapted

    async def raw(self) -> RawClient:
        """Open the store without the protocol of a client."""
        runtime = self._runtime()
        raw = RawClient(runtime, self.source.make(runtime), f"{self.space}:")
        await raw.open()
        self._closers.append(raw.close)
        return raw

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str, within: float = TEST_TIMEOUT) -> None:
        """Wait for a condition. Raises Violation after `within` seconds; `what` names the condition."""
        give_up_at, pause = self.now() + within, PAUSE
        while not await condition():
            expect(self.now() < give_up_at, f"{what}: not within {within:g} s")
            await self.pause(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    async def waiters(self, client: AsyncClient, name: str, count: int) -> None:
        """Wait until a name has `count` waiters."""

        async def so_many() -> bool:
            return len((await client.inspect(name)).waiters) == count

        await self.until(so_many, f"{count} waiters in the queue of {name!r}")

    def may_be_over(self, since: float) -> bool:
        """Tell whether a lease of `short` that was requested at `since` may have ended by its ttl."""
        return self.now() - since >= self.short * (1 - 2 * DRIFT)

    def is_held(self, view: NameView, token: int) -> bool:
        """Tell whether a name has one holder, and this has the token, as far as the store shows tokens."""
        return len(view.holders) == 1 and (not self.shows_leases or view.holders[0].token == token)

    async def free(self, client: AsyncClient, name: str) -> None:
        """Wait until nobody holds a name."""

        async def unheld() -> bool:
            return not (await client.inspect(name)).holders

        await self.until(unheld, f"{name!r} free")

    async def close(self) -> None:
        """Close the clients of the check, the last one first."""
        errors: list[Exception] = []
        for closer in reversed(self._closers):
            try:
                await closer()
            except Exception as error:  # noqa: BLE001 - the other clients must be closed all the same
                errors.append(error)
        await self._join()
        if errors:
            raise errors[0]

    @abstractmethod
    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Running[T]:
        """Run `work()` concurrently with the check."""

    @abstractmethod
    async def pause(self, seconds: float = PAUSE) -> None:
        """Let other threads or tasks run."""

    @abstractmethod
    def _client(
        self, source: StoreSource, namespace: str, owner: str, operation_timeout: float
    ) -> Client | AsyncClient: ...

    @abstractmethod
    def _runtime(self) -> Runtime: ...

    @abstractmethod
    async def _join(self) -> None: ...


class _RunningThread(Generic[T]):
    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="conformance", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(complete(self._work()))
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error

    def done(self) -> bool:
        return not self._thread.is_alive()

    async def result(self, within: float = TEST_TIMEOUT) -> T:
        self._thread.join(within)
        expect(self.done(), f"the concurrent work of the check should have ended within {within:g} s")
        if self._error is not None:
            raise self._error
        return self._results[0]

    def cancel(self) -> None:
        raise NotImplementedError("a thread cannot be cancelled: run this check with asyncio only")


class ThreadsKit(Kit):
    """The kit of the sync API: clients for threads, where every await blocks in place."""

    form = "threads"

    def __init__(self, source: StoreSource) -> None:
        """Use `source`."""
        super().__init__(source)
        self._running: list[Running[object]] = []

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Running[T]:
        """Run `work()` in a thread."""
        running = _RunningThread(work)
        self._running.append(running)
        return running

    async def pause(self, seconds: float = PAUSE) -> None:
        """Block this thread for a moment."""
        threading.Event().wait(seconds)

    def _client(self, source: StoreSource, namespace: str, owner: str, operation_timeout: float) -> Client:
        return Client(store=source, namespace=namespace, owner=owner, operation_timeout=operation_timeout)

    def _runtime(self) -> Runtime:
        return ThreadsRuntime()

    async def _join(self) -> None:
        for running in self._running:
            with contextlib.suppress(Exception):
                await running.result()


class _RunningTask(Generic[T]):
    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._task = asyncio.get_running_loop().create_task(work())

    def done(self) -> bool:
        return self._task.done()

    async def result(self, within: float = TEST_TIMEOUT) -> T:
        done, _ = await asyncio.wait({self._task}, timeout=within)
        expect(done, f"the concurrent work of the check should have ended within {within:g} s")
        return self._task.result()

    def cancel(self) -> None:
        self._task.cancel()


class AsyncioKit(Kit):
    """The kit of the async API: clients for asyncio, all in one event loop."""

    form = "asyncio"

    def __init__(self, source: StoreSource) -> None:
        """Use `source`."""
        super().__init__(source)
        self._running: list[Running[object]] = []

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Running[T]:
        """Run `work()` as a task."""
        running = _RunningTask(work)
        self._running.append(running)
        return running

    async def pause(self, seconds: float = PAUSE) -> None:
        """Suspend for a moment."""
        await asyncio.sleep(seconds)

    def _client(self, source: StoreSource, namespace: str, owner: str, operation_timeout: float) -> AsyncClient:
        return AsyncClient(store=source, namespace=namespace, owner=owner, operation_timeout=operation_timeout)

    def _runtime(self) -> Runtime:
        return AsyncioRuntime()

    async def _join(self) -> None:
        for running in self._running:
            if not running.done():
                running.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await running.result()
