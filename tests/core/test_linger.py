"""A released lease lingers: this client reacquires it without the store, and another client gets it at once."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tenure import AsyncClient, AsyncLock, Client, LeaseLost, LeaseState, LockTimeout, Outcome
from tenure.contracts.messages import Notification, NotificationKind
from tenure.contracts.store import StoreSource
from tenure.core.background_releases import WORKERS
from tenure.errors import StoreUnavailable, UsageError
from tenure.stores.memory import MemoryTable, memory_source
from tests import virtual
from tests.core.test_local_queue import counting, lined_up
from tests.hazards.helpers import TEST_TIMEOUT, disturbed, eventually, soon

LONG = 60.0
"""Longer than any of these tests takes."""


def run(work: Callable[[AsyncClient, AsyncClient, list[str]], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in virtual time with a client whose store counts, and another client of the same store."""

    async def main() -> None:
        asked, table = list[str](), virtual.table()
        async with AsyncClient(store=counting(table, asked)) as here, AsyncClient(store=memory_source(table)) as there:
            await work(here, there, asked)

    virtual.run(main)


async def free(client: AsyncClient, name: str = "name") -> None:
    """Wait until nobody holds a name."""
    until = time.monotonic() + TEST_TIMEOUT
    while (await client.inspect(name)).holders:
        assert time.monotonic() < until
        await asyncio.sleep(0.005)


def test_a_lease_that_lingers_is_reacquired_without_the_store() -> None:
    """A hundred acquisitions, one after another, send one request to the store, and their tokens grow."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lock = here.lock("name", linger=LONG)
        tokens: list[int] = []
        for _ in range(100):
            async with lock as lease:
                tokens.append(lease.token)
        assert tokens == sorted(set(tokens))
        assert asked == ["acquire"]
        assert (await there.inspect("name")).holders

    run(work)


def test_threads_reacquire_it_too() -> None:
    """The same in threads, by `acquire` and by `try_acquire`."""
    asked: list[str] = []
    with Client(store=counting(MemoryTable(), asked)) as client:
        lock = client.lock("name", linger=LONG)
        tokens: list[int] = []
        for _ in range(50):
            with lock as lease:
                tokens.append(lease.token)
            again = lock.try_acquire()
            assert again is not None
            tokens.append(again.token)
            assert again.release() is Outcome.RELEASED
        assert tokens == sorted(set(tokens))
        assert asked == ["acquire"]
    assert asked == ["acquire", "release"]


def test_a_released_lease_is_over_whatever_becomes_of_its_successor() -> None:
    """A released lease stays released while its successor holds the name, and is not lost with it."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lock = here.lock("name", linger=LONG)
        first = await lock.acquire()
        assert await first.release() is Outcome.RELEASED
        assert await first.release() is Outcome.RELEASED
        second = await lock.acquire()
        assert second.token > first.token
        assert (first.state, second.state) == (LeaseState.RELEASED, LeaseState.HELD)
        with pytest.raises(LeaseLost, match="was released"):
            first.check()
        await there.revoke("name", force=True)
        await soon(second.lost.is_set, "it is told")
        assert not first.lost

    run(work)


def test_an_outside_waiter_ends_the_linger_at_once() -> None:
    """A waiter of another client gets the name long before the linger is over, and keeps its place afterwards."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lock = here.lock("name", linger=LONG)
        await (await lock.acquire()).release()
        theirs = await asyncio.wait_for(there.lock("name").acquire(), TEST_TIMEOUT)
        mine = asyncio.create_task(lock.acquire())
        await lined_up(there, "name", 1)
        await theirs.release()
        lease = await mine
        others = asyncio.create_task(there.lock("name").acquire())
        await lined_up(there, "name", 1)
        await asyncio.sleep(0)
        await lease.release()  # the client knows that the name is contended
        await (await asyncio.wait_for(others, TEST_TIMEOUT)).release()

    run(work)


def test_it_ends_when_its_time_is_over() -> None:
    """After the linger the name is also free for contenders that do not wait."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        await (await here.lock("name", linger=5).acquire()).release()
        await asyncio.sleep(4.9)
        assert await there.lock("name").try_acquire() is None
        await asyncio.sleep(0.2)
        assert asked == ["acquire", "release"]
        lease = await there.lock("name").try_acquire()
        assert lease is not None
        await lease.release()

    run(work)


def test_it_ends_in_time_though_the_store_does_not_answer_its_renewal() -> None:
    """It is released at the end of the linger, not when the renewal gives up."""
    hangs = False

    async def hang(operation: str, done: bool) -> None:
        if hangs and operation == "renew" and not done:
            await asyncio.sleep(0.8)

    async def main() -> None:
        nonlocal hangs
        table = virtual.table()
        async with (
            AsyncClient(store=disturbed(memory_source(table), hang)) as here,
            AsyncClient(store=memory_source(table)) as there,
        ):
            await (await here.lock("name", ttl=3, linger=1.2).acquire()).release()
            hangs = True  # the renewal is under way from 1 s on, for 0.8 s
            await asyncio.sleep(1.3)
            assert not (await there.inspect("name")).holders

    virtual.run(main)


def test_it_ends_when_its_time_is_over_among_threads() -> None:
    """The same in threads, whose renewer sleeps for long."""
    table = MemoryTable()
    here, there = Client(store=memory_source(table)), Client(store=memory_source(table))
    with here, there, here.lock("other"):
        lock = here.lock("name", linger=0.05)
        for _ in range(5):
            lock.acquire().release()
        eventually(lambda: not there.inspect("name").holders, "it is free")


def test_it_is_renewed_while_it_lingers() -> None:
    """A lease that lingers for longer than its ttl is still valid."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lock = here.lock("name", ttl=1, linger=LONG)
        await (await lock.acquire()).release()
        await asyncio.sleep(2.5)
        async with lock as lease:
            lease.check()
        assert asked == ["acquire"]

    run(work)


@pytest.mark.parametrize("how", ["revoke", "ask", "gap", "close"])
def test_it_ends_with_whatever_ends_a_lease(how: str) -> None:
    """A lease that lingers has no holder: it ends with any revocation, and with the close of its client."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lock = here.lock("name", linger=LONG, on_lost=lambda _: asked.append("lost"))
        first = await lock.acquire()
        await first.release()
        if how == "revoke":
            await there.revoke("name", force=True)
        elif how == "ask":
            await there.revoke("name")
        elif how == "gap":
            here.session().deliver(Notification("", NotificationKind.GAP, ""))
        else:
            await here.close()
        await free(there)
        assert "lost" not in asked
        if how != "close":
            await soon(lambda: not here.session().local_queues._queues, "it is heard")
            async with lock as lease:
                assert lease.token > first._core.grant.last
                lease.check()

    run(work)


def test_a_lease_that_was_lost_while_it_lingered_is_not_handed_off() -> None:
    """Its deadline has passed, although no loss was reported yet."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lock = here.lock("name", linger=LONG)
        first = await lock.acquire()
        await first.release()
        local_queue = here.session().local_queues._queues["name", 30_000_000, 0, 0]
        assert local_queue.lease is not None
        local_queue.lease.kept_until = local_queue.lease.valid_until = (
            here.session().runtime.now() + 1.0
        )  # too little time remains
        async with lock as lease:
            assert lease.token > first._core.grant.last
        assert asked == ["acquire", "release", "acquire"]

    run(work)


def test_the_range_of_tokens_ends() -> None:
    """When the reserved tokens are used up, the client requests more from the store."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lock = here.lock("name", linger=LONG)
        tokens = [await _token(lock) for _ in range(2100)]
        assert tokens == sorted(set(tokens))
        assert 4 <= len(asked) <= 6

    run(work)


async def _token(lock: AsyncLock) -> int:
    async with lock as lease:
        return lease.token


def test_another_lock_of_the_same_client_has_it_too() -> None:
    """A lock without linger takes over a lingering lease and releases it at the end; a lock of another ttl ends it."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lingering = here.lock("name", linger=LONG)
        await (await lingering.acquire()).release()
        await (await here.lock("name", timeout=0).acquire()).release()
        assert asked == ["acquire", "release"]
        await (await lingering.acquire()).release()
        await (await here.lock("name", ttl=20, timeout=TEST_TIMEOUT).acquire()).release()
        async with lingering:
            with pytest.raises(LockTimeout):
                await there.lock("name").acquire(0.01)

    run(work)


def test_contenders_come_before_linger() -> None:
    """A released lease goes to the waiters of this client before it lingers."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lock = here.lock("name", linger=LONG)
        lease = await lock.acquire()
        waiting = [asyncio.create_task(lock.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        await lease.release()
        for task in waiting:
            await (await task).release()
        await (await lock.acquire()).release()
        assert asked == ["acquire"]

    run(work)


def test_max_hold_counts_from_the_reacquisition() -> None:
    """The new holder may keep the lease for max_hold, and no longer."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lock = here.lock("name", ttl=15, linger=LONG, max_hold=20)
        await (await lock.acquire()).release()
        await asyncio.sleep(18)
        lease = await lock.acquire()
        assert len(asked) == 1
        assert not await lease.lost.wait(19.9)
        assert await lease.lost.wait(0.2)

    run(work)


def source_that_cannot_push() -> StoreSource:
    """Return a memory store without a channel."""
    source = memory_source(MemoryTable())

    def make(runtime: Any) -> Any:  # noqa: ANN401 - a store
        store = source.make(runtime)
        opening = store.open

        async def open_without(deliver: Any, until: float) -> str:  # noqa: ANN401
            await opening(deliver, until)
            return ""

        store.open = open_without  # type: ignore[method-assign]
        return store

    return StoreSource(source.title, source.capabilities, make)


def test_a_store_that_cannot_push_refuses_it() -> None:
    """Without notifications this client cannot learn that the name is contended; the error says what to do instead."""
    with Client(store=source_that_cannot_push()) as client:
        client.lock("name").acquire().release()
        with pytest.raises(UsageError, match="Make the lock without linger"):
            client.lock("name", linger=1).acquire()


@pytest.mark.parametrize("options", [{"linger": -1}, {"linger": "1"}, {"linger": 1, "detect_deadlock": True}])
def test_what_cannot_be_right_is_refused(options: dict[str, Any]) -> None:
    """An invalid linger is refused when the lock is made."""
    with Client("memory://") as client, pytest.raises(UsageError, match="linger"):
        client.lock("name", **options)


def test_a_release_that_hangs_holds_up_nobody() -> None:
    """The store does not answer: `release` returns anyway, and others are granted after the ttl."""
    broken = False

    async def cut(operation: str, done: bool) -> None:
        if broken and operation in ("release", "renew"):
            raise StoreUnavailable("the connection is cut")

    async def main() -> None:
        nonlocal broken
        table = virtual.table()
        source = disturbed(memory_source(table), cut)
        async with AsyncClient(store=source) as here, AsyncClient(store=memory_source(table)) as there:
            lease = await here.lock("name", ttl=1.5, linger=LONG).acquire()
            broken = True
            assert await lease.release() is Outcome.RELEASED
            async with there.lock("name", timeout=TEST_TIMEOUT):
                pass
            broken = False

    virtual.run(main)


@pytest.mark.parametrize("at", range(1, 6))
def test_cancelled_at_any_await_it_leaves_nothing(at: int) -> None:
    """A contender that is cancelled while it exchanges an unfit lease leaves nothing behind."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lock = here.lock("name", linger=LONG)
        await (await lock.acquire()).release()
        local_queue = here.session().local_queues._queues["name", 30_000_000, 0, 0]
        assert local_queue.lease is not None
        local_queue.lease.kept_until = local_queue.lease.valid_until = here.session().runtime.now() + 1.0
        task = asyncio.create_task(lock.acquire())
        for _ in range(at):
            await asyncio.sleep(0)
        task.cancel()
        (won,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(won, BaseException):
            await won.release()
        async with there.lock("name", timeout=TEST_TIMEOUT):
            pass

    run(work)


def test_a_forked_child_does_not_reacquire_it() -> None:
    """The child sends a request to the store like any other client, and the parent reacquires without one."""
    with Client("memory://") as client:  # the child has a copy of the table, in which the name is held for long
        lock = client.lock("name", linger=LONG)
        lock.acquire().release()
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if lock.try_acquire() is None else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (0, 1)
        with lock as lease:
            lease.check()


def test_many_threads_and_clients_share_it() -> None:
    """Threads of two clients with linger exclude each other, and their tokens grow."""
    table, inside, tokens = MemoryTable(), 0, list[int]()
    wrong: list[str] = []

    def work(client: Client) -> None:
        nonlocal inside
        lock = client.lock("name", linger=0.01)
        for _ in range(100):
            with lock as lease:
                inside += 1
                if inside != 1:
                    wrong.append(f"{inside} inside")
                tokens.append(lease.token)
                inside -= 1

    with Client(store=memory_source(table)) as here, Client(store=memory_source(table)) as there:
        threads = [threading.Thread(target=work, args=(client,)) for client in (here, there) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong
        assert len(tokens) == 600
        assert tokens == sorted(set(tokens))
        eventually(lambda: not here.inspect("name").holders, "it is free")


def test_a_reacquired_lease_that_is_dropped_ends() -> None:
    """A lease that is dropped without release is renewed no more, like any other."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        lock = here.lock("name", ttl=1.5, linger=LONG)
        await (await lock.acquire()).release()
        box = [await lock.acquire()]
        with pytest.warns(ResourceWarning, match="dropped without release"):
            box.clear()
        async with there.lock("name", timeout=TEST_TIMEOUT):
            pass

    run(work)


def test_a_lease_that_is_renewed_no_more_lingers_no_longer_either() -> None:
    """The renewer ends the linger in time although the lease, at its max_hold, is not due for a renewal."""

    async def work(here: AsyncClient, there: AsyncClient, asked: list[str]) -> None:
        async with here.lock("other", ttl=20.0):
            await (await here.lock("name", ttl=60.0, max_hold=50.0, linger=0.1).acquire()).release()
            assert (await there.inspect("name")).holders
            await asyncio.sleep(0.2)
            assert not (await there.inspect("name")).holders

    run(work)


def test_releases_that_are_cancelled_do_not_keep_later_ones() -> None:
    """A caller that cancels all tasks of the loop does not stop the background release of later leases."""
    source = memory_source(MemoryTable())

    async def main() -> None:
        async with AsyncClient(store=source) as here, AsyncClient(store=source) as there:
            for number in range(WORKERS):
                await (await here.lock(f"name {number}", linger=1000).acquire()).release()
            here.session().local_queues.end_all_lingering()
            tasks = [task for task in asyncio.all_tasks() if task.get_name() == "tenure-release"]
            assert len(tasks) == WORKERS
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await (await here.lock("name", linger=1000).acquire()).release()
            await (await there.lock("name", timeout=TEST_TIMEOUT).acquire()).release()

    asyncio.run(main())
