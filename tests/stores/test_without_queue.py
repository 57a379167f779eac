"""A store without a queue gets repeated requests, and waiters behave as with any other store."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tenure import Client, LockTimeout, Outcome, UsageError
from tenure.contracts.messages import AcquireRequest, Busy, Reply
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities, StoreSource
from tenure.stores.memory import MemoryStore, MemoryTable

RETRY = 10_000


class PolledStore(MemoryStore):
    """A table without a queue."""

    capabilities = Capabilities(min_ttl=0.05, queue=False, weights=False, runs_in_caller=True)

    def __init__(self, runtime: Runtime, table: MemoryTable, asked: Callable[[], object]) -> None:
        """Append every refusal to `asked`."""
        super().__init__(runtime, table)
        self._asked = asked

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant or refuse."""
        reply = await super().acquire(replace(request, wait=False), until)
        if isinstance(reply, Busy):
            self._asked()
            return Busy(RETRY, reply.holders)
        return reply


@pytest.fixture
def refused() -> threading.Event:
    """Return an event that is set when an acquisition was refused once."""
    return threading.Event()


@pytest.fixture
def source(refused: threading.Event) -> StoreSource:
    """Return a store without a queue."""
    table = MemoryTable()
    return StoreSource("polled", PolledStore.capabilities, lambda runtime: PolledStore(runtime, table, refused.set))


def test_a_waiter_repeats_its_request_until_the_lock_is_free(source: StoreSource, refused: threading.Event) -> None:
    """Without notifications, a waiter gets the lock all the same after its release."""
    with Client(store=source) as holder, Client(store=source) as waiter, ThreadPoolExecutor(1) as pool:
        held = holder.lock("name").acquire()
        waiting = pool.submit(waiter.lock("name").acquire, 30.0)
        assert refused.wait(10.0)
        assert held.release() is Outcome.RELEASED
        assert waiting.result(10.0).release() is Outcome.RELEASED


def test_a_timeout_names_the_holder(source: StoreSource) -> None:
    """The error of a waiter that was refused until its timeout names the holder."""
    with Client(store=source, owner="somebody") as holder, Client(store=source) as waiter:
        with holder.lock("name").acquire(), pytest.raises(LockTimeout, match="somebody"):
            waiter.lock("name").acquire(0.05)
        with holder.lock("name").acquire(), pytest.raises(LockTimeout, match="is held by somebody"):
            waiter.lock("name").acquire(0)


def test_closing_the_client_ends_the_wait(source: StoreSource, refused: threading.Event) -> None:
    """A waiter at a store without a queue learns at once that its client was closed."""
    with Client(store=source) as holder, ThreadPoolExecutor(1) as pool, holder.lock("name").acquire():
        waiter = Client(store=source)
        waiting = pool.submit(waiter.lock("name").acquire, 30.0)
        assert refused.wait(10.0)
        waiter.close()
        with pytest.raises(UsageError, match="closed"):
            waiting.result(10.0)
