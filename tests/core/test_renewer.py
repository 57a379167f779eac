"""The renewer: one for each client, which wakes no more than it must and survives the error of a single lease."""

import asyncio
import logging
import threading
from contextlib import AsyncExitStack

import pytest

from tenure import AsyncClient, Client, LeaseLost, Outcome, UsageError
from tenure.core.renewer import Renewer
from tenure.runtimes import clocks
from tenure.runtimes.tasks import BodyGuard
from tenure.stores.memory import MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, disturbed, eventually, soon


class Counting:
    """A store that counts its operations."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, operation: str, done: bool) -> None:
        """Count."""
        if done:
            self.seen.append(operation)


def renewers() -> list[threading.Thread]:
    """Return the threads of renewers."""
    return [each for each in threading.enumerate() if each.name == "tenure-renewer"]


def test_many_leases_are_renewed_in_few_requests() -> None:
    """Leases that fall due together are renewed in one request."""
    counting = Counting()

    async def main() -> None:
        async with AsyncClient(store=disturbed(virtual.source(), counting)) as client:
            leases = [await client.lock(f"{number}", ttl=30).acquire() for number in range(60)]
            await asyncio.sleep(15)
            assert all(lease.remaining() > 15 for lease in leases), "each was renewed"
            assert counting.seen.count("renew") <= 12
            for lease in leases:
                await lease.release()

    virtual.run(main)


def test_quick_pairs_do_not_wake_the_renewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewer looks a few times, not thousands of times, while locks are taken and released quickly."""
    looks = 0
    look = Renewer._look

    def counted(self: Renewer, now: float) -> float:
        nonlocal looks
        looks += 1
        return look(self, now)

    monkeypatch.setattr(Renewer, "_look", counted)

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lock = client.lock("name", ttl=30)
            for _ in range(2000):
                async with lock:
                    await asyncio.sleep(0)  # time for the renewer to run if it was woken

    virtual.run(main)
    assert looks <= 40  # once for each lease that falls due before all earlier ones: about 8 of 2,000


def test_a_lease_that_has_ended_before_it_is_renewed_costs_no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stood still while it took a lease up finds it lost, and its renewer does not look for ever."""
    looks = 0
    look = Renewer._look

    def counted(self: Renewer, now: float) -> float:
        nonlocal looks
        looks += 1
        assert looks < 1000
        return look(self, now)

    async def stand_still(operation: str, done: bool) -> None:
        if operation == "renew" and done:
            await asyncio.sleep(1.5)

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source) as here, AsyncClient(store=disturbed(source, stand_still)) as there:
            handle = await (await here.lock("name", ttl=1).acquire()).detach()
            monkeypatch.setattr(Renewer, "_look", counted)
            with pytest.raises(LeaseLost):
                await there.adopt(handle)
            await asyncio.sleep(60)

    virtual.run(main)
    assert looks <= 30


def test_a_client_has_one_renewer_and_none_before_its_first_lease() -> None:
    """A client starts one renewer, with its first lease, and its close ends it."""
    before = len(renewers())
    client = Client(store=memory_source(MemoryTable()))
    client.names()
    assert len(renewers()) == before
    leases = [client.lock(f"{number}").acquire() for number in range(5)]
    assert len(renewers()) == before + 1
    for lease in leases:
        lease.release()
    client.close()
    assert len(renewers()) == before


def test_renewals_are_spread() -> None:
    """Leases of one ttl that were granted together do not all fall due at the same moment."""
    with virtual.stopped_clock(), Client(store=virtual.source()) as client:
        leases = [client.lock(f"{number}", ttl=30).acquire() for number in range(20)]
        waits = [lease._core.due_at - lease._core.valid_until for lease in leases]
        assert max(waits) - min(waits) > 0.2
        for lease in leases:
            lease.release()


def test_an_error_in_a_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A callback that raises is logged, and stops neither the other callbacks nor the renewer."""
    with Client(store=memory_source(MemoryTable())) as client, caplog.at_level(logging.ERROR, "tenure"):
        told: list[LeaseLost] = []

        def fail(_error: LeaseLost) -> None:
            raise ZeroDivisionError("in a callback")

        lease = client.lock("name", ttl=0.1, max_hold=0.1, on_lost=fail).acquire()
        lease.on_lost(told.append)
        eventually(lambda: told and "in a callback" in caplog.text, "both callbacks")
        lease.on_lost(told.append)  # too late: at once
        assert len(told) == 2
        lease.release()


def test_a_dropped_lease_warns_and_runs_out_and_is_not_unlocked() -> None:
    """A lease that was dropped without release is no longer renewed, ends at its ttl, and not before."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            box, dropped_at = [await client.lock("name", ttl=20).acquire()], clocks.steady()
            with pytest.warns(ResourceWarning, match="dropped without release"):
                box.clear()
            assert await client.lock("name").try_acquire() is None
            async with client.lock("name", timeout=60):
                assert 20 <= clocks.steady() - dropped_at < 20.1

    virtual.run(main)


def test_a_zombie_loses_the_lease_at_max_hold() -> None:
    """A holder that works for ever loses the lease after max_hold, although its renewer lives."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lease, since = await client.lock("name", ttl=20, max_hold=50).acquire(), clocks.steady()
            assert await lease.lost.wait(100)
            assert 49.9 < clocks.steady() - since <= 50
            assert "max_hold" in str(lease._core.loss())
            async with client.lock("name", timeout=5):
                pass
            await lease.release()

    virtual.run(main)


def test_one_release_wakes_one_waiter() -> None:
    """A release wakes one of many waiters, of one client and of others; the others send no request."""
    counting = Counting()

    async def main() -> None:
        source = disturbed(virtual.source(), counting)
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(AsyncClient(store=source)) for _ in range(6)]
            lease = await clients[0].lock("name", ttl=20).acquire()
            tasks = [asyncio.create_task(client.lock("name", ttl=20).acquire()) for client in clients[1:] * 2]
            await soon(lambda: counting.seen.count("acquire") == 6, "one waiter of each client asked")
            counting.seen.clear()
            await lease.release()
            await asyncio.sleep(0.5)  # less than the retry time, after which each of them repeats its request anyway
            assert sum(task.done() for task in tasks) == 1
            assert "acquire" not in counting.seen
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.gather(*(task.result().release() for task in tasks if not task.cancelled()))

    virtual.run(main)


def test_closing_ends_all_waiters_and_holders() -> None:
    """A close ends waiting threads with an error, releases all leases, and leaves no thread of the client."""
    table = MemoryTable()
    before = set(threading.enumerate())
    client, other = (Client(store=memory_source(table)) for _ in range(2))
    held, blocked = client.lock("mine").acquire(), other.lock("others").acquire()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            client.lock("others").acquire()
        except UsageError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(client.inspect("others").waiters) == 3, "three waiters")
    assert len(other.inspect("others").waiters) == 1  # the two behind it wait within their client
    client.close()
    for thread in threads:
        thread.join(TEST_TIMEOUT)
    assert len(errors) == 3
    assert all("closed" in str(error) for error in errors)
    assert not other.inspect("others").waiters
    assert not other.inspect("mine").holders
    assert not held.remaining()
    blocked.release()
    other.close()
    assert set(threading.enumerate()) <= before


def test_a_guard_does_not_swallow_a_foreign_cancellation() -> None:
    """When other code cancels the task too, the task is cancelled, whatever the guard did."""

    async def main() -> None:
        async def body() -> None:
            guard = BodyGuard()
            error: BaseException | None = None
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError as caught:
                error = caught
            guard.disarm()
            guards.append(guard.was_mine(error))

        guards: list[bool] = []
        task = asyncio.ensure_future(body())
        await asyncio.sleep(0)
        task.cancel()
        await task
        assert guards == [False]

    asyncio.run(main())


@pytest.mark.parametrize("foreign", ["cancel", "timeout"])
def test_a_loss_and_a_foreign_end_keep_their_own_errors(foreign: str) -> None:
    """A cancellation or an asyncio.timeout() from outside is never turned into LeaseLost, nor the other way round."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:

            async def block() -> None:
                async with client.lock("name", ttl=5):
                    await asyncio.sleep(10)

            if foreign == "timeout":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await block()
            else:
                task = asyncio.ensure_future(block())
                await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert not (await client.inspect("name")).holders
            task = asyncio.ensure_future(block())
            await asyncio.sleep(0.01)
            await client.revoke("name", force=True)
            with pytest.raises(LeaseLost):
                await task

    virtual.run(main)


def test_a_renewer_that_was_cancelled_is_started_again() -> None:
    """A cancellation of all tasks of a loop includes the renewer; the next lease starts it anew, for all leases."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            first = await client.lock("first", ttl=1.5).acquire()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
                await asyncio.wait({task})
            second = await client.lock("second", ttl=1.5).acquire()
            assert not await second.lost.wait(2.5)
            assert first.remaining() > 0
            assert await first.release() is Outcome.RELEASED
            assert await second.release() is Outcome.RELEASED

    virtual.run(main)
