"""Many threads and tasks share locks, leases and clients, and each misuses them."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure import AsyncClient, AsyncLease, Client, Lease, LeaseLost, Outcome, UsageError
from tenure.lease import LeaseBase
from tenure.primitives.multilock import AsyncMultiLease, MultiLease
from tenure.primitives.reentrant import _Hold
from tenure.stores.memory import MemoryTable, memory_source
from tests.hazards.helpers import TEST_TIMEOUT, disturbed, eventually, soon
from tests.planting import planted


def test_two_threads_that_release_one_lease_get_one_answer() -> None:
    """A second release of a lease, however late, does not turn a kept lease into a lost one."""
    source = memory_source(MemoryTable())
    gate, late = threading.Event(), threading.Event()

    async def hold_up(operation: str, done: bool) -> None:
        if operation == "release" and done and not late.is_set():
            late.set()
            gate.wait(TEST_TIMEOUT)

    with Client(store=disturbed(source, hold_up)) as client, Client(store=source) as other:
        lease = client.lock("name", ttl=30).acquire()
        answers: list[Outcome] = []
        threads = [threading.Thread(target=lambda: answers.append(lease.release())) for _ in range(2)]
        threads[0].start()
        assert late.wait(TEST_TIMEOUT)
        other.lock("name").acquire().release()  # so that the store remembers a later release
        threads[1].start()
        threads[1].join(0.05)  # time enough for a request to the store, if there were one
        gate.set()
        for thread in threads:
            thread.join(TEST_TIMEOUT)
        assert answers == [Outcome.RELEASED, Outcome.RELEASED]
        with pytest.raises(LeaseLost, match="was released"):
            lease.check()


def test_a_shared_lock_never_releases_anothers_lease() -> None:
    """Threads that share one Lock object each release the lease that they entered themselves."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name", ttl=30)
        inside: list[int] = []

        def work(number: int) -> None:
            for _ in range(50):
                with lock as lease:
                    inside.append(number)
                    assert inside == [number]
                    inside.remove(number)
                    lease.check()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * TEST_TIMEOUT)
        assert not any(thread.is_alive() for thread in threads)
        assert not client.inspect("name").holders


def test_after_a_loss_a_shared_lock_releases_only_its_own() -> None:
    """A thread that lost its lease leaves its block without releasing the lease of its successor."""
    with Client(store=memory_source(MemoryTable())) as client:
        lock = client.lock("name", ttl=30)
        successors: list[Lease] = []

        def block() -> None:
            with lock as lost:
                client.revoke("name", force=True)
                successors.append(lock.acquire())
                eventually(lost.lost.is_set, "the loss")

        with pytest.raises(LeaseLost):
            block()
        successor = successors[0]
        successor.check()
        assert successor.release() is Outcome.RELEASED


def test_a_block_outlives_its_client_with_its_own_error() -> None:
    """A body's own error reaches the caller although the client was closed within the block."""
    client = Client(store=memory_source(MemoryTable()))

    def body() -> None:
        client.close()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), client.lock("name"):
        body()


def test_a_loss_found_by_the_body_cancels_nothing_after_the_block() -> None:
    """A body that finds the loss of its lease itself is not cancelled once more after its block."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(MemoryTable())) as client:

            async def block() -> None:
                async with client.lock("name", ttl=0.05) as lease:
                    time.sleep(0.08)  # noqa: ASYNC251 - the hazard: a blocked loop
                    lease.check()

            with pytest.raises(LeaseLost):
                await block()
            await asyncio.sleep(0.02)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

    asyncio.run(main())


def test_a_lost_lease_that_is_entered_cancels_nothing_after_the_block() -> None:
    """Entering a lost lease raises LeaseLost, and leaves no stray cancellation."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(MemoryTable())) as client:
            lease = await client.lock("name", ttl=30).acquire()
            await client.revoke("name", force=True)
            await soon(lease.lost.is_set, "the loss")

            async def block() -> None:
                async with lease:
                    pass

            with pytest.raises(LeaseLost):
                await block()
            await asyncio.sleep(0.02)

    asyncio.run(main())


KINDS: dict[str, Callable[[Any], Any]] = {
    "lock": lambda client: client.lock("name", timeout=TEST_TIMEOUT),
    "semaphore": lambda client: client.semaphore("name", 2, timeout=TEST_TIMEOUT),
    "multilock": lambda client: client.multilock(["name", "other"], timeout=TEST_TIMEOUT),
    "reentrant lock": lambda client: client.lock("name", reentrant=True, timeout=TEST_TIMEOUT),
}


def enter_again(kind: str) -> None:
    """Enter a lease for threads that was released; the body must not run."""
    with Client(store=memory_source(MemoryTable())) as client:
        lease = KINDS[kind](client).acquire()
        with lease:
            pass
        with pytest.raises(LeaseLost, match="was released: acquire a new one"), lease:
            pytest.fail("the body ran without the lock")


def enter_again_in_asyncio(kind: str) -> None:
    """Enter a lease for asyncio that was released; the body must not run."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(MemoryTable())) as client:
            lease = await KINDS[kind](client).acquire()
            async with lease:
                pass
            with pytest.raises(LeaseLost, match="was released: acquire a new one"):
                async with lease:
                    pytest.fail("the body ran without the lock")

    asyncio.run(main())


def enter_detached(_kind: str = "lock") -> None:
    """Enter a lease that was detached; the body must not run."""
    with Client(store=memory_source(MemoryTable())) as client:
        lease = client.lock("name", ttl=30).acquire()
        lease.detach()
        with pytest.raises(LeaseLost, match="was detached"), lease:
            pytest.fail("the body ran without the lock")


def enter_inner_again(kind: str) -> None:
    """Enter a reentrant lease for threads that was released, while the thread has another; the body must not run."""
    with Client(store=memory_source(MemoryTable())) as client, KINDS[kind](client).acquire():
        inner = KINDS[kind](client).acquire()
        inner.release()
        with pytest.raises(LeaseLost, match="was released: acquire a new one"), inner:
            pytest.fail("the body ran without the lock")


def enter_inner_again_in_asyncio(kind: str) -> None:
    """Do the same in asyncio."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(MemoryTable())) as client, KINDS[kind](client).acquire():
            inner = await KINDS[kind](client).acquire()
            await inner.release()
            with pytest.raises(LeaseLost, match="was released: acquire a new one"):
                async with inner:
                    pytest.fail("the body ran without the lock")

    asyncio.run(main())


@pytest.mark.parametrize("enter", [enter_inner_again, enter_inner_again_in_asyncio])
def test_a_reentrant_lease_that_was_released_is_not_entered(enter: Callable[[str], None]) -> None:
    """Its thread or task still has the name by another lease object, which may be released within the body."""
    enter("reentrant lock")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("enter", [enter_again, enter_again_in_asyncio])
def test_a_released_lease_is_not_entered_again(enter: Callable[[str], None], kind: str) -> None:
    """A `with` of a lease that was released raises LeaseLost, and its body never runs without the lock."""
    enter(kind)


def test_a_detached_lease_is_not_entered() -> None:
    """A `with` of a lease that was detached raises LeaseLost: whoever adopts the lease holds the name."""
    enter_detached()


@pytest.mark.parametrize(
    ("owner", "method", "right", "wrong", "kind", "enter"),
    [
        (LeaseBase, "_refuse_given_up", "core.current in GIVEN_UP", "core.lost_because", "lock", enter_again),
        (LeaseBase, "_refuse_given_up", "current in GIVEN_UP", "current is GIVEN_UP[0]", "lock", enter_detached),
        (_Hold, "check", "self.outcome is not None", "False", "reentrant lock", enter_inner_again),
        (Lease, "_enter_at", "self._refuse_given_up()", "pass", "lock", enter_again),
        (AsyncLease, "_enter_at", "self._refuse_given_up()", "pass", "lock", enter_again_in_asyncio),
        (MultiLease, "_refuse_given_up", "state() in GIVEN_UP", "is_lost()", "multilock", enter_again),
        (MultiLease, "_enter_at", "self._refuse_given_up()", "pass", "multilock", enter_again),
        (AsyncMultiLease, "_enter_at", "self._refuse_given_up()", "pass", "multilock", enter_again_in_asyncio),
    ],
)
def test_a_planted_bug_lets_a_lease_that_was_given_up_be_entered(  # noqa: PLR0917 - one planted bug
    owner: type,
    method: str,
    right: str,
    wrong: str,
    kind: str,
    enter: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each check at the entry of a lease is needed."""
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    with pytest.raises(pytest.fail.Exception, match="ran without the lock"):
        enter(kind)


def test_a_worker_thread_may_check_the_lease_of_a_task() -> None:
    """A loss that a worker thread finds is reported in the loop, once and at once."""

    async def main() -> None:
        told: list[threading.Thread] = []
        async with AsyncClient(store=memory_source(MemoryTable())) as client:
            lease = await client.lock("name", ttl=0.1, max_hold=0.1).acquire()
            lease.on_lost(lambda _error: told.append(threading.current_thread()))
            waiting = asyncio.ensure_future(lease.lost.wait(5))

            def work() -> None:
                eventually(lambda: not lease.remaining(), "the end of the lease")

            await asyncio.to_thread(work)
            assert await asyncio.wait_for(waiting, 5)
            await soon(lambda: told, "the callback")
            await asyncio.sleep(0)
            assert told == [threading.main_thread()]
            await lease.release()

    asyncio.run(main())


def test_a_lease_is_collected_while_its_client_is_busy() -> None:
    """A garbage collection that drops an expired lease at a bad moment warns, and blocks nothing."""
    client = Client(store=memory_source(MemoryTable()))
    lease = client.lock("name", ttl=30).acquire()
    session, held = lease._session, lease._core
    session.renewer.discard(held)
    held.valid_until = 0.0
    box = [lease]
    del lease

    def collect() -> None:
        with session.mutex, pytest.warns(ResourceWarning, match="dropped without release"):
            box.clear()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(TEST_TIMEOUT)
    assert not thread.is_alive(), "the collection waits for a mutex that its own thread holds"
    client.close()


def test_an_exit_in_a_callback_stops_no_renewals() -> None:
    """A callback that calls sys.exit() ends neither the renewer nor the channel: other leases live on."""
    with Client(store=memory_source(MemoryTable())) as client:
        told = threading.Event()

        def withdraw(_error: LeaseLost) -> None:
            told.set()
            raise SystemExit

        kept, renewer = client.lock("kept").acquire(), client.session().renewer
        lease = client.lock("name", max_hold=0.1, on_lost=withdraw).acquire()
        assert told.wait(TEST_TIMEOUT)
        until, thread = kept._core.valid_until, renewer._task
        renewer.hurry(0.0)
        eventually(lambda: kept._core.valid_until > until, "a renewal")
        assert renewer._task is thread, "no other renewer was started"
        kept.check()
        kept.release()
        lease.release()


def test_a_callback_may_release_and_acquire() -> None:
    """A callback may release the lost lease and acquire the name anew, without a deadlock."""
    with Client(store=memory_source(MemoryTable())) as client:
        again: list[Lease | None] = []
        leases: list[Lease] = []

        def replace(_error: LeaseLost) -> None:
            leases[0].release()
            again.append(client.lock("name", ttl=30).try_acquire())

        leases.append(client.lock("name", ttl=0.2, max_hold=0.2).acquire())
        leases[0].on_lost(replace)
        eventually(lambda: again, "the callback")
        assert again[0] is not None
        assert again[0].release() is Outcome.RELEASED


def test_a_callback_may_close_the_client(tmp_path: Path) -> None:
    """A callback may close the client, from any thread that calls it: here the thread of the channel."""
    client = Client(f"sqlite://{tmp_path}/locks.db")
    lease = client.lock("name", ttl=30).acquire()
    lease.on_lost(lambda _error: client.close())
    other = client.lock("other").acquire()
    client.revoke("name", force=True)
    eventually(lambda: other._core.outcome is not None, "the close")
    with pytest.raises(UsageError, match="closed"):
        client.names()
    eventually(lambda: all(each.name != "tenure-channel" for each in threading.enumerate()), "the channel's end")
    gc.collect()  # a socket that was not closed warns


def test_a_negative_timeout_is_refused() -> None:
    """No negative timeout waits for ever by accident."""
    with Client(store=memory_source(MemoryTable())) as client, pytest.raises(UsageError, match="timeout"):
        client.lock("name").acquire(timeout=-1.0)


def test_tasks_that_share_a_lock_release_their_own() -> None:
    """Tasks that share one AsyncLock each release their own lease, and a cancelled task harms none."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(MemoryTable())) as client:
            lock = client.lock("name", ttl=30)
            inside: list[AsyncLease] = []

            async def work() -> None:
                for _ in range(20):
                    async with lock as lease:
                        inside.append(lease)
                        await asyncio.sleep(0)
                        assert inside == [lease]
                        inside.remove(lease)

            tasks = [asyncio.ensure_future(work()) for _ in range(6)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            tasks[5].cancel()
            await asyncio.wait(tasks, timeout=TEST_TIMEOUT)
            assert [task.cancelled() for task in tasks] == [False] * 5 + [True]
            assert all(task.exception() is None for task in tasks[:5])
            assert not (await client.inspect("name")).holders

    asyncio.run(main())
