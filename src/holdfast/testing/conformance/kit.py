"""What a check works with: clients of one colour at one store, things that run side by side, bounded waits.

Everything that a check awaits comes from here or from the store, so that the same check is driven by threads, where
all of it blocks in place, and by asyncio.
"""

import asyncio
import contextlib
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from holdfast.client import AsyncClient, Client
from holdfast.contracts.deadlines import micros
from holdfast.contracts.messages import (
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
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import Store, StoreSource
from holdfast.errors import LockTimeout
from holdfast.outcome import Outcome
from holdfast.runtimes import clocks
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.runtimes.threads import ThreadsRuntime, drive
from holdfast.testing.conformance.adapter import adapt
from holdfast.testing.conformance.wire import Wire

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

TEST_TIMEOUT = 10.0
"""How long a check waits, in seconds, for what must happen: generous, as it is only ever used up by a failure."""

PAUSE = 0.002
LONGEST_PAUSE = 0.03
"""How long a check pauses between two looks at a condition, at first and later: a look may be work for many servers."""

_random = random.SystemRandom()


class Violation(AssertionError):
    """A guarantee does not hold."""


def expect(holds: object, what: str) -> None:
    """Raise Violation, saying `what` should be so, unless it holds."""
    if not holds:
        raise Violation(what)


class Running(Protocol[T_co]):
    """Something that runs beside the check: a thread or a task."""

    def done(self) -> bool:
        """Tell whether it has ended."""
        ...

    async def result(self, within: float = TEST_TIMEOUT) -> T_co:
        """Wait for its end; return its result or raise its error. Raises Violation if it takes too long."""
        ...

    def cancel(self) -> None:
        """Cancel it, where the colour can."""


class Releasable(Protocol):
    """What was won, of whatever kind."""

    async def release(self) -> Outcome:
        """Let go."""
        ...


async def timed_out(acquiring: Awaitable[object]) -> LockTimeout | None:
    """Wait for what is to be had too late; return the error that says so, or None if it was had."""
    try:
        await acquiring
    except LockTimeout as error:
        return error
    return None


async def cancel_after(running: Running[Releasable], steps: int) -> None:
    """Cancel after so many steps of the loop; release what was won before."""
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    try:
        result = await running.result()
    except asyncio.CancelledError:
        return
    await result.release()


class RawClient:
    """The bare contract of a store: asks without the protocol around them, and the notifications that came."""

    def __init__(self, runtime: Runtime, store: Store, space: str) -> None:
        """Speak to `store`, about names in `space`."""
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
        """Close the store, once, with no word about what is held or waited for."""
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
        """Make a new request. Times in seconds."""
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
        """Ask, for the first time or again."""
        return await self.store.acquire(request, self._until())

    async def acquire_many(self, requests: Sequence[AcquireRequest]) -> list[Reply]:
        """Ask for several names in one step, for the first time or again."""
        return await self.store.acquire_many(requests, self._until())

    async def acquire_free(self, request: AcquireRequest) -> int:
        """Ask for what must be granted; return the token."""
        reply = await self.acquire(request)
        if not isinstance(reply, Granted):
            message = f"a free name was not granted: {reply}"
            raise Violation(message)
        return reply.token

    async def release(self, request: AcquireRequest, token: int, *, unsure: bool = False) -> Outcome:
        """Release what came of a request."""
        return await self.store.release(ReleaseRequest(request.name, request.request_id, token, unsure), self._until())

    async def renew(self, request: AcquireRequest, token: int, ttl: float) -> RenewReply:
        """Renew what came of a request."""
        renewals = [RenewRequest(request.name, request.request_id, token, micros(ttl))]
        return (await self.store.renew(renewals, self._until()))[0]

    async def withdraw(self, request: AcquireRequest, *, unsure: bool = False) -> NotGranted:
        """Give a request up."""
        return await self.store.withdraw(WithdrawRequest(request.name, request.request_id, unsure), self._until())

    async def inspect(self, name: str) -> NameView:
        """Show one name."""
        return await self.store.inspect(self._space + name, self._until())

    def pushed(self, request: AcquireRequest) -> int:
        """Return the token that was pushed for a request, or 0."""
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
        """Work at `source`, in a namespace that nobody else uses."""
        self.source = source
        self.capabilities = source.capabilities
        self.space = f"conformance-{_random.getrandbits(64):016x}"
        self.now = clocks.steady
        self._leases: list[object] = []
        """All leases, kept: one that is dropped warns, and a check may drop one, as its client releases them all."""
        self._closers: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def client(self, wire: Wire | None = None, *, owner: str = "check", within: str = "") -> AsyncClient:
        """Make a client, with `wire` between it and the store, in the namespace `within` of this check.

        It allows a request much time, for the machine may be busy: unless a wire may swallow the request.
        """
        source, operation_timeout = (self.source, TEST_TIMEOUT) if wire is None else (wire.tap(self.source), 1.0)
        return self.adopt(self._client(source, self.space + within, owner, operation_timeout))

    def adopt(self, client: Client | AsyncClient) -> AsyncClient:
        """Return a client in the shape that checks work with; keep its leases, and close it at the end."""
        adapted = adapt(client, self._leases.append)
        self._closers.append(adapted.close)
        return adapted

    async def raw(self) -> RawClient:
        """Open the store without a client."""
        runtime = self._runtime()
        raw = RawClient(runtime, self.source.make(runtime), f"{self.space}:")
        await raw.open()
        self._closers.append(raw.close)
        return raw

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str, within: float = TEST_TIMEOUT) -> None:
        """Wait for a condition. Raises Violation, saying `what` did not happen, if it takes too long."""
        give_up_at, pause = self.now() + within, PAUSE
        while not await condition():
            expect(self.now() < give_up_at, f"{what}: not within {within:g} s")
            await self.pause(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    async def waiters(self, client: AsyncClient, name: str, count: int) -> None:
        """Wait until `count` wait for a name."""

        async def so_many() -> bool:
            return len((await client.inspect(name)).waiters) == count

        await self.until(so_many, f"{count} in the queue of {name!r}")

    async def free(self, client: AsyncClient, name: str) -> None:
        """Wait until nobody holds a name."""

        async def unheld() -> bool:
            return not (await client.inspect(name)).holders

        await self.until(unheld, f"{name!r} free")

    async def close(self) -> None:
        """Close everything that the check opened, the last first."""
        errors: list[Exception] = []
        for closer in reversed(self._closers):
            try:
                await closer()
            except Exception as error:  # noqa: BLE001 - the others must be closed all the same
                errors.append(error)
        await self._join()
        if errors:
            raise errors[0]

    @abstractmethod
    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Running[T]:
        """Run `work()` beside the check."""

    @abstractmethod
    async def pause(self, seconds: float = PAUSE) -> None:
        """Let others run."""

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
            self._results.append(drive(self._work()))
        except BaseException as error:  # noqa: BLE001 - told to whoever asks for the result
            self._error = error

    def done(self) -> bool:
        return not self._thread.is_alive()

    async def result(self, within: float = TEST_TIMEOUT) -> T:
        self._thread.join(within)
        expect(self.done(), f"what runs beside the check should have ended within {within:g} s")
        if self._error is not None:
            raise self._error
        return self._results[0]

    def cancel(self) -> None:
        raise NotImplementedError("a thread cannot be cancelled")


class ThreadsKit(Kit):
    """Clients for threads; everything blocks in place."""

    form = "threads"

    def __init__(self, source: StoreSource) -> None:
        """Work at `source`."""
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
        expect(done, f"what runs beside the check should have ended within {within:g} s")
        return self._task.result()

    def cancel(self) -> None:
        self._task.cancel()


class AsyncioKit(Kit):
    """Clients for asyncio, all in one loop."""

    form = "asyncio"

    def __init__(self, source: StoreSource) -> None:
        """Work at `source`."""
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
