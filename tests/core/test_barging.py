"""Locks with `fair=False`: who gets a free lock, for how long a waiter may be passed, and where there is none of it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tenure import AsyncClient, Client, UsageError
from tenure.primitives.options import PlainLockOptions
from tenure.stores.memcached.store import CAPABILITIES as MEMCACHED
from tenure.stores.memory import memory_source
from tenure.stores.ordered.store import CAPABILITIES as ORDERED
from tenure.stores.sql.sessions import CAPABILITIES as SESSIONS
from tests import virtual

HOLD = 0.004


def run(work: Callable[[AsyncClient, AsyncClient], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in virtual time with two clients of one store."""

    async def main() -> None:
        table = virtual.table()
        async with AsyncClient(store=memory_source(table)) as here, AsyncClient(store=memory_source(table)) as there:
            await work(here, there)

    virtual.run(main)


async def keep_busy(client: AsyncClient, until: asyncio.Event, *, fair: bool) -> int:
    """Acquire, hold and release without a pause, until told; return how often."""
    grants = 0
    lock = client.lock("hot", fair=fair)
    while not until.is_set():
        async with lock:
            grants += 1
            await asyncio.sleep(HOLD)
    return grants


def test_a_waiter_may_be_passed_until_it_has_waited_for_its_bound() -> None:
    """A busy client goes on without a pause, and the waiter is next after `fair_after`, not sooner than in order."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        done = asyncio.Event()
        busy = asyncio.create_task(keep_busy(here, done, fair=False))
        await asyncio.sleep(HOLD / 2)
        began = asyncio.get_running_loop().time()
        async with there.lock("hot", fair=False, fair_after=0.5):
            waited = asyncio.get_running_loop().time() - began
            done.set()
        assert waited <= 0.5 + 2 * HOLD
        assert await busy >= 1

    run(work)


def test_a_fair_waiter_is_never_passed() -> None:
    """It has the lock after the release, though the busy client has `fair=False`."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        done = asyncio.Event()
        busy = asyncio.create_task(keep_busy(here, done, fair=False))
        await asyncio.sleep(HOLD / 2)
        began = asyncio.get_running_loop().time()
        async with there.lock("hot"):
            assert asyncio.get_running_loop().time() - began <= HOLD
            done.set()
        await busy

    run(work)


def test_a_free_lock_does_not_wait_for_a_waiter_that_is_being_woken() -> None:
    """The client that released it acquires it again at once, while the waiter has not yet run."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lock = here.lock("hot", fair=False)
        first = await lock.acquire()
        waiter = asyncio.create_task(there.lock("hot", fair=False).acquire())
        await asyncio.sleep(HOLD)
        assert (await here.inspect("hot")).waiters
        await first.release()
        second = await lock.try_acquire()
        assert second is not None
        assert not waiter.done()
        await second.release()
        lease = await waiter
        assert lease.token > second.token
        await lease.release()

    run(work)


def test_locks_of_one_client_that_differ_wait_for_each_other() -> None:
    """They have local queues of their own, and exclude each other in the store."""
    with Client("memory://") as client, client.lock("name", fair=False):
        assert client.lock("name").try_acquire() is None
        assert client.lock("name", fair=False, fair_after=1.0).try_acquire() is None
    client.close()


@pytest.mark.parametrize("able", [ORDERED, SESSIONS])
def test_a_store_that_decides_itself_who_is_next_refuses_it(able: Any) -> None:  # noqa: ANN401 - capabilities
    """The error says what to do."""
    options = PlainLockOptions(ttl=5.0, timeout=None, fair=False)
    with pytest.raises(UsageError, match=r"fair=False is not available.*redis://host"):
        options.check(able)


def test_memcached_keeps_no_order_anyway() -> None:
    """So it refuses nothing."""
    PlainLockOptions(ttl=5.0, timeout=None, fair=False).check(MEMCACHED)


def test_values_that_are_not_allowed_are_refused() -> None:
    """Also an option that only locks have."""
    with Client("memory://") as client:
        with pytest.raises(UsageError, match="fair_after must be a number of seconds"):
            client.lock("name", fair=False, fair_after=-1.0)
        with pytest.raises(UsageError, match="give fair=False"):
            client.lock("name", fair_after=1.0)
        with pytest.raises(UsageError, match="fair"):
            client.semaphore("name", 2, fair=False)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
