"""The store of one test: a grant table in memory whose clock can be moved and which can be made unavailable."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar
from weakref import WeakSet

from tenure.contracts.deadlines import MICROS, micros
from tenure.contracts.messages import AcquireRequest, Notification, NotificationKind, Page, Reply, WithdrawRequest
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError, StoreUnavailable
from tenure.runtimes import clocks
from tenure.stores.memory import MemoryStore, MemoryTable
from tenure.stores.tabled import Steps
from tenure.table.state import Queue
from tenure.table.step import Step

T = TypeVar("T")


class TestTable(MemoryTable):
    """A grant table whose clock can be moved ahead."""

    __test__ = False

    def __init__(self, arrive: Callable[["TestStore"], None]) -> None:
        """Start empty. `arrive` is called with the store of every request, and may raise StoreError."""
        self.arrive = arrive
        self.stores: WeakSet[TestStore] = WeakSet()
        self._ahead = 0
        super().__init__(
            lambda: clocks.steady_micros() + self._ahead,
            lambda: clocks.wall_micros() + self._ahead,
        )

    def store(self, runtime: Runtime) -> "TestStore":
        """Make the store of one client over this table."""
        return TestStore(runtime, self)

    def advance(self, seconds: float, asleep: Collection["TestStore"]) -> None:
        """Move the clock ahead, while the clients in `asleep` are silent and all others renew their leases."""
        silent = {store.channel for store in asleep}
        with self._mutex:
            self._ahead += micros(seconds)
            for holder in (holder for state in self._states.values() for holder in state.holders):
                if holder.channel not in silent:
                    holder.expires_at += micros(seconds)
        self.wake()

    def wake(self) -> None:
        """Make every client check its leases and waiters, as after a gap in its notifications."""
        for channel, push in list(self._channels.items()):
            push(Notification(channel, NotificationKind.GAP, ""))

    def longest(self) -> float:
        """Return in how many seconds the last lease expires, if no lease is renewed."""
        now = self._clock()
        ends = [holder.expires_at for state in list(self._states.values()) for holder in list(state.holders)]
        return (max(ends, default=now) - now) / MICROS

    def expire(self, name: str, request_id: str) -> None:
        """End the lease of a request, as if its ttl had expired, and grant the next waiter."""

        def end(step: Step) -> None:
            for holder in step.state.holders:
                if holder.request_id == request_id:
                    holder.expires_at = step.now
            step.withdraw(WithdrawRequest(name, "", unsure=False))  # withdraws nothing, but advances the queue

        self.step(name, end)


class TestStore(MemoryStore):
    """The store of one client. Every request of an asyncio client suspends, as with a real server."""

    __test__ = False

    def __init__(self, runtime: Runtime, table: TestTable) -> None:
        """Use `table`, from `runtime`."""
        super().__init__(runtime, table)
        self.runtime = runtime
        self.table = table
        self.is_paused = False
        """Whether the process of the client is paused."""
        table.stores.add(self)

    @property
    def channel(self) -> str:
        """The notification channel of the client."""
        return self._channel

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Attach a channel, unless the store is down."""
        await self.arrive()
        return await super().open(deliver, until)

    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Carry out `work` on one name atomically."""
        await self.arrive()
        return await super().step(name, work, until)

    async def steps(self, names: Sequence[str], work: Callable[[Steps], T], until: float) -> T:
        """Carry out `work` on any number of names at once."""
        await self.arrive()
        return await super().steps(names, work, until)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return the names in use."""
        await self.arrive()
        return await super().names(prefix, until, rest)

    async def arrive(self) -> None:
        """Reach the store. Raises StoreError if the client is paused or the store is down."""
        if self.runtime.form == "asyncio":
            await self.runtime.sleep(0)
        if self.is_paused:
            raise StoreError(
                "the process of this client is paused inside `tenure_chaos.paused()`: use a client there that was "
                "not used before, or send the request after the `with`"
            )
        self.table.arrive(self)


class ForcedStore(TestStore):
    """The store of a client that takes every name by force, whoever holds it or waits for it. It is never down."""

    async def arrive(self) -> None:
        """Reach the store, which is up for this client."""

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Take the name from its holders, ahead of its waiters."""
        return await self.step(request.name, lambda step: _take(step, request), until)


def _take(step: Step, request: AcquireRequest) -> Reply:
    state = step.state
    queue, state.queue = state.queue, Queue()
    step.revoke()
    state.blocked_until = state.block = 0
    reply = step.acquire(replace(request, capacity=state.capacity, weight=state.capacity))
    state.queue = queue
    return reply


def unavailable() -> StoreUnavailable:
    """Make the error of a store that is down."""
    return StoreUnavailable("the store is down, for this test called `tenure_chaos.store_down()`")
