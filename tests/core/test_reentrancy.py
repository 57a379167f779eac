"""Reentrancy for those who ask for it, and an error instead of waiting for oneself for those who do not."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import AsyncClient, Client, Lease, LeaseLost, LeaseState, LockTimeout, Outcome, SelfDeadlock
from holdfast.stores.memory import MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, eventually, soon


def run(work: Callable[[AsyncClient, AsyncClient], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in virtual time with two clients of one store."""

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source) as here, AsyncClient(store=source) as there:
            await work(here, there)

    virtual.run(main)


def test_a_thread_enters_again() -> None:
    """Nested leases have one token, and the name is free after the last of them."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name", reentrant=True)
        with lock as outer, lock as inner, client.lock("name", reentrant=True) as innermost:
            assert outer.token == inner.token == innermost.token
            assert len({id(lease) for lease in (outer, inner, innermost)}) == 3
            assert innermost.release() is Outcome.RELEASED
            assert innermost.state is LeaseState.RELEASED
            assert innermost.remaining() == 0.0
            with pytest.raises(LeaseLost, match="was released"):
                innermost.check()
            inner.check()
            assert client.inspect("name").holders
        assert not client.inspect("name").holders


def test_a_task_enters_again() -> None:
    """The same for a task."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lock = here.lock("name", reentrant=True)
        async with lock as outer:
            async with lock as inner:
                assert outer.token == inner.token
            again = await lock.try_acquire()
            assert again is not None
            await again.release()
            assert await again.release() is Outcome.RELEASED
            assert await there.lock("name").try_acquire() is None
            outer.check()
        assert not (await there.inspect("name")).holders

    run(work)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_last_release_counts_in_whatever_order(order: tuple[int, ...]) -> None:
    """The name is held until all leases of it are released, the first or the last first."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name", reentrant=True)
        leases = [lock.acquire() for _ in range(3)]
        for number in order:
            assert client.inspect("name").holders
            assert leases[number].release() is Outcome.RELEASED
        assert not client.inspect("name").holders
        with lock as lease:
            assert lease.token > leases[0].token


def test_a_recursive_function_is_decorated() -> None:
    """A decorated function may call itself."""
    with Client(store=memory_source(MemoryTable())) as client:

        @client.lock("sum", reentrant=True)
        def total(number: int) -> int:
            return number + total(number - 1) if number else 0

        assert total(10) == 55
        assert not client.inspect("sum").holders


def test_a_recursive_coroutine_is_decorated() -> None:
    """The same with async."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        @here.lock("sum", reentrant=True)
        async def total(number: int) -> int:
            return number + await total(number - 1) if number else 0

        assert await total(10) == 55
        assert not (await there.inspect("sum")).holders

    run(work)


def test_others_are_others() -> None:
    """Another thread, a thread of a pool, another task or a child task does not enter."""
    source = memory_source(MemoryTable())
    with Client(store=source) as client, ThreadPoolExecutor(1) as pool:
        lock = client.lock("name", reentrant=True)
        with lock:
            assert pool.submit(lock.try_acquire).result() is None
        lease = pool.submit(lock.acquire).result()
        assert lock.try_acquire() is None
        lease.release()

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lock = here.lock("name", reentrant=True)
        async with lock:
            assert await asyncio.create_task(lock.try_acquire()) is None
            assert await there.lock("name", reentrant=True).try_acquire() is None

    run(work)


def test_who_does_not_get_in_is_told_whose_it_is() -> None:
    """The error does not say that the lock is not reentrant."""
    with Client(store=memory_source(MemoryTable())) as client, ThreadPoolExecutor() as pool:
        lock = client.lock("name", reentrant=True, timeout=0)
        with lock, pytest.raises(LockTimeout, match="only by the thread or task that acquired it"):
            pool.submit(lock.acquire).result()


def test_the_owner_is_gone_with_its_thread() -> None:
    """A thread that happens to get the ident of one that ended is not taken for it."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name", reentrant=True)
        leases: list[Lease] = []
        first = threading.Thread(target=lambda: leases.append(lock.acquire()))
        first.start()
        first.join()
        found: list[object] = []
        for _ in range(20):
            thread = threading.Thread(target=lambda: found.append(lock.try_acquire()))
            thread.start()
            thread.join()
        assert found == [None] * 20
        assert leases[0].release() is Outcome.RELEASED  # by another thread


def test_all_of_them_are_told_of_a_loss() -> None:
    """A lease that is lost is lost for each that holds it, but not for one that was released."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        told: list[int] = []
        lock = here.lock("name", reentrant=True)
        leases = [await lock.acquire() for _ in range(3)]
        for number, lease in enumerate(leases):
            lease.on_lost(lambda _, number=number: told.append(number))  # type: ignore[misc]
        await leases[1].release()
        await there.revoke("name", force=True)
        await soon(lambda: len(told) == 2, "they are told")
        assert sorted(told) == [0, 2]
        assert [lease.state for lease in leases] == [LeaseState.LOST, LeaseState.RELEASED, LeaseState.LOST]
        for lease in (leases[0], leases[2]):
            with pytest.raises(LeaseLost, match="by force"):
                lease.check()
            assert not (await lease.release()).kept
        async with lock as lease:
            lease.check()

    run(work)


def test_a_loss_leaves_nested_bodies_as_lease_lost() -> None:
    """Nested bodies of a task are cancelled together, and LeaseLost comes out of the outermost."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lock = here.lock("name", reentrant=True)
        with pytest.raises(LeaseLost):  # noqa: PT012 - the body is what is tested
            async with lock, lock:
                await there.revoke("name", force=True)
                await asyncio.sleep(TEST_TIMEOUT)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    run(work)


def test_a_lease_that_is_dropped_ends_with_the_last() -> None:
    """One of several leases that is dropped does not end the others."""
    source = virtual.source()
    with virtual.stopped_clock() as clock, Client(store=source) as client, Client(store=source) as other:
        lock = client.lock("name", ttl=20, reentrant=True)
        outer = lock.acquire()
        box = [lock.acquire()]
        with pytest.warns(ResourceWarning, match="dropped without release"):
            box.clear()
        assert other.lock("name").try_acquire() is None
        outer.check()
        assert outer.release() is Outcome.RELEASED
        box = [lock.acquire()]
        with pytest.warns(ResourceWarning, match="dropped without release"):
            box.clear()
        assert other.lock("name").try_acquire() is None
        clock.advance(20.1)
        other.lock("name", timeout=0).acquire().release()


def _run_through(thread: threading.Thread) -> None:
    thread.start()
    thread.join(TEST_TIMEOUT)
    assert not thread.is_alive()


def test_a_lease_is_collected_in_the_middle_of_anything() -> None:
    """The garbage collector may find one while its thread has the mutex of all leases, and must not wait for that."""
    source = virtual.source()
    with virtual.stopped_clock() as clock, Client(store=source) as client, Client(store=source) as other:
        lock = client.lock("name", ttl=20, reentrant=True)

        def collect() -> None:
            circle: list[Any] = [lock.acquire(), lock.acquire()]
            circle.append(circle)
            del circle
            with client.session().mutex:
                gc.collect()

        thread = threading.Thread(target=collect, daemon=True)
        with pytest.warns(ResourceWarning, match="dropped without release"):
            _run_through(thread)
        assert other.lock("name").try_acquire() is None
        clock.advance(20.1)
        other.lock("name", timeout=0).acquire().release()


def test_it_lingers() -> None:
    """A reentrant lock lingers when its last lease is released."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name", reentrant=True, linger=60)
        with lock as first, lock:
            pass
        with lock as second, lock as third:
            assert first.token < second.token == third.token


# -- without it --------------------------------------------------------------------------------------------


def test_a_thread_that_would_wait_for_itself_is_told() -> None:
    """A second acquisition without a timeout raises at once, and leaves nothing; with one it waits as ever."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name")
        with lock as lease:
            with pytest.raises(SelfDeadlock, match="reentrant=True"):
                lock.acquire()
            with pytest.raises(SelfDeadlock, match="already holds 'name'"):
                client.lock("name", ttl=10).acquire()  # stands in the store's queue, not in the local one
            with pytest.raises(SelfDeadlock), lock:
                pass
            with pytest.raises(LockTimeout):
                lock.acquire(0.01)
            assert lock.try_acquire() is None
            view = client.inspect("name")
            assert not view.waiters
            assert len(view.holders) == 1
            lease.check()
        with lock:
            pass


def test_a_task_that_would_wait_for_itself_is_told() -> None:
    """The same for a task; another one waits."""

    async def take(client: AsyncClient) -> None:
        async with client.lock("name"):
            pass

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lock = here.lock("name")
        async with lock:
            with pytest.raises(SelfDeadlock):
                await lock.acquire()
            with pytest.raises(SelfDeadlock):
                await here.lock("name", ttl=10).acquire()
            others = [asyncio.create_task(take(client)) for client in (here, there)]
            await asyncio.sleep(0.01)
            assert not any(task.done() for task in others)
        await asyncio.wait_for(asyncio.gather(*others), TEST_TIMEOUT)

    run(work)


def test_a_lock_that_is_not_reentrant_does_not_reservation_in_one_that_is() -> None:
    """Each lock says for itself whether it may be acquired again."""
    with Client(store=memory_source(MemoryTable())) as client:
        plain, reentrant = client.lock("name"), client.lock("name", reentrant=True)
        with reentrant, pytest.raises(SelfDeadlock):
            plain.acquire()
        with plain, pytest.raises(SelfDeadlock):
            reentrant.acquire()


def test_a_thread_waits_for_what_another_acquired_or_it_has_released() -> None:
    """It is not told so of a lease that another thread acquired, that it has lost, or that it has released."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name", ttl=0.3, max_hold=0.3)
        lost = lock.acquire()
        eventually(lost.lost.is_set, "it is lost")
        mine = lock.acquire()
        mine.release()
        box: list[Lease] = []
        thread = threading.Thread(target=lambda: box.append(client.lock("name").acquire()))
        thread.start()
        thread.join()
        timer = threading.Timer(0.05, box[0].release)
        timer.start()
        client.lock("name").acquire().release()
        lost.release()
