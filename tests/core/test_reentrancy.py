"""Reentrancy of locks that allow it, and an error instead of a wait for oneself for those that do not."""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from tenure import AsyncClient, Client, Lease, LeaseLost, LeaseState, LockTimeout, Outcome, SelfDeadlock
from tenure.core.reservations import Reservation
from tenure.primitives.reentrant import ReentrantLease, _Hold
from tenure.reentry import outside
from tenure.stores.memory import MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, eventually, soon


def run(work: Callable[[AsyncClient, AsyncClient], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in virtual time with two clients of one store."""

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source) as here, AsyncClient(store=source) as there:
            await work(here, there)

    virtual.run(main)


def test_a_thread_acquires_again() -> None:
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


def test_a_task_acquires_again() -> None:
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
def test_the_last_release_counts_in_any_order(order: tuple[int, ...]) -> None:
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
    """The same with an async function."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        @here.lock("sum", reentrant=True)
        async def total(number: int) -> int:
            return number + await total(number - 1) if number else 0

        assert await total(10) == 55
        assert not (await there.inspect("sum")).holders

    run(work)


def test_other_threads_and_tasks_do_not_share_it() -> None:
    """Another thread, a thread of a pool, another task or a child task cannot acquire again."""
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


def test_the_timeout_of_another_thread_names_the_holder() -> None:
    """The error does not say that the lock is not reentrant."""
    with Client(store=memory_source(MemoryTable())) as client, ThreadPoolExecutor() as pool:
        lock = client.lock("name", reentrant=True, timeout=0)
        with lock, pytest.raises(LockTimeout, match="only by the thread or task that acquired it"):
            pool.submit(lock.acquire).result()


def test_the_owner_is_gone_with_its_thread() -> None:
    """A new thread with the ident of one that ended does not share its reservation."""
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


def test_all_leases_of_a_reservation_are_lost_together() -> None:
    """Every lease of a lost reservation is lost, except those that were released."""

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


def test_a_thread_acquires_a_lost_lease_anew_only_after_it_has_let_it_go() -> None:
    """Whoever works under a lost outer lease is told by each inner acquisition, not granted a lease that hides it."""
    source = virtual.source()
    with Client(store=source) as client, Client(store=source) as other:
        lock, again = client.lock("name", reentrant=True), client.lock("name", reentrant=True)
        outer, inner = lock.acquire(), lock.acquire()
        other.revoke("name", force=True)
        eventually(outer.lost.is_set, "it is lost")
        for _ in range(2):
            for acquire in (lock.acquire, lock.try_acquire, again.try_acquire, lambda: again.acquire(5)):
                with pytest.raises(LeaseLost, match="leave the outer `with`"):
                    acquire()
            with pytest.raises(LeaseLost, match="by force"), lock:
                pass
            assert not client.inspect("name").holders
            inner.release()
        outer.release()
        with lock as lease:
            lease.check()
            assert lease.token > outer.token


def test_an_interrupted_acquisition_leaves_no_hold_that_counts() -> None:
    """A lease that was given back before its caller had it is not in the way, even if it was lost by then."""

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    source = virtual.source()
    with Client(store=source) as client, Client(store=source) as other:
        lock = client.lock("name", reentrant=True)
        with patch.object(ReentrantLease, "__init__", interrupt), pytest.raises(Interrupted):
            lock.acquire()
        lock.acquire().release()

        def lose(*_: object) -> None:
            outside(partial(other.revoke, "name", force=True))  # as another thread would
            interrupt()

        with patch.object(ReentrantLease, "__init__", lose), pytest.raises(Interrupted):
            lock.acquire()
        lock.acquire().release()


def test_a_thread_that_let_a_lost_lease_go_outside_its_bodies_acquires_it_anew() -> None:
    """The end of a body lets a lost lease go, and so does the garbage collector."""
    source = virtual.source()
    with Client(store=source) as client, Client(store=source) as other:
        lock = client.lock("name", reentrant=True)
        with pytest.raises(LeaseLost), lock as lease:  # noqa: PT012 - the body is what is tested
            other.revoke("name", force=True)
            eventually(lease.lost.is_set, "it is lost")
        box = [lock.acquire()]
        other.revoke("name", force=True)
        eventually(box[0].lost.is_set, "it is lost")
        box.clear()
        with lock as lease:
            lease.check()


def test_a_task_acquires_a_lost_lease_anew_only_after_it_has_let_it_go() -> None:
    """The same for a task, whose lease has run out by its own clock."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lock = here.lock("name", ttl=20, max_hold=20, reentrant=True)
        outer = await lock.acquire()
        await asyncio.sleep(20)
        for acquire in (lock.acquire, lock.try_acquire):
            with pytest.raises(LeaseLost, match="max_hold"):
                await acquire()
        async with there.lock("name", timeout=5):
            with pytest.raises(LeaseLost, match="release its outer leases"):
                await lock.acquire(timeout=5)
        await outer.release()
        async with lock as lease:
            lease.check()

    run(work)


def test_a_loss_leaves_nested_bodies_as_lease_lost() -> None:
    """The nested bodies of a task are cancelled together, and LeaseLost leaves the outermost."""

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
    """One dropped lease of several does not end the others."""
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
    """The garbage collector may drop a lease while its thread holds the mutex of all leases: it must not block."""
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
    """A reentrant lock lingers after its last lease is released."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name", reentrant=True, linger=60)
        with lock as first, lock:
            pass
        with lock as second, lock as third:
            assert first.token < second.token == third.token


def _granted_anew(self: Reservation, hold: object) -> bool:
    """Grant the inner acquisition of a lost lease anew."""
    if not self.lease.trusted() or not self.holds:
        return False
    self.holds.add(hold)
    return True


def _refused_for_ever(self: Reservation, hold: object) -> bool:
    """Refuse a name whose lost lease was let go."""
    if not self.lease.trusted():
        raise self.lease.loss()
    if self.holds:
        self.holds.add(hold)
    return bool(self.holds)


def _entered_while_lost(self: Reservation, hold: object) -> bool:
    """Add a hold to a lost lease, of which only a later look tells."""
    if self.holds:
        self.holds.add(hold)
    return bool(self.holds)


def _kept_by_the_collector(self: _Hold, *_: object) -> bool:
    """Leave the hold of a lost lease object that was dropped."""
    return self.outcome is None and not self.reservation.lease.over()


@pytest.mark.parametrize(
    ("owner", "method", "wrong"),
    [
        (Reservation, "enter", _granted_anew),
        (Reservation, "enter", _refused_for_ever),
        (Reservation, "enter", _entered_while_lost),
        (_Hold, "drop", _kept_by_the_collector),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_lost_lease_that_is_acquired_wrong_is_found(owner: type, method: str, wrong: Callable[..., bool]) -> None:
    """The tests above find each of these planted bugs."""
    found = (AssertionError, LeaseLost, pytest.fail.Exception)
    with patch.object(owner, method, wrong), pytest.raises(found):  # noqa: PT012 - either test may find it
        test_a_thread_acquires_a_lost_lease_anew_only_after_it_has_let_it_go()
        test_a_thread_that_let_a_lost_lease_go_outside_its_bodies_acquires_it_anew()


# -- without it --------------------------------------------------------------------------------------------


def test_a_thread_that_would_wait_for_itself_gets_an_error() -> None:
    """A second acquisition without a timeout raises at once, and leaves nothing; with a timeout it waits."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name")
        with lock as lease:
            with pytest.raises(SelfDeadlock, match="reentrant=True"):
                lock.acquire()
            with pytest.raises(SelfDeadlock, match="already holds 'name'"):
                client.lock("name", ttl=10).acquire()  # waits in the store's queue, not in the local queue
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


def test_a_task_that_would_wait_for_itself_gets_an_error() -> None:
    """The same for a task; another task waits."""

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


def test_a_lock_that_is_not_reentrant_does_not_join_the_reservation_of_one_that_is() -> None:
    """Each lock has its own `reentrant`."""
    with Client(store=memory_source(MemoryTable())) as client:
        plain, reentrant = client.lock("name"), client.lock("name", reentrant=True)
        with reentrant, pytest.raises(SelfDeadlock):
            plain.acquire()
        with plain, pytest.raises(SelfDeadlock):
            reentrant.acquire()


def test_a_thread_waits_for_the_lease_of_another_thread_or_a_former_one_of_its_own() -> None:
    """The error is not raised for a lease that another thread acquired, or that was lost or released."""
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
