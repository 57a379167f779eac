"""A client that is drained acquires nothing new, lets its holders finish, hands leadership on, and closes."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Self

import pytest

from tenure import AsyncClient, AsyncLease, Client, LeaseLost, LeaseState, Lock, Outcome, Stopped, UsageError
from tenure.contracts.messages import ReleaseRequest
from tenure.contracts.store import StoreSource
from tenure.core.attempt import Attempt
from tenure.core.release import Releases
from tenure.core.session import Session
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, eventually, soon
from tests.planting import assert_fails, planted


def run(work: Callable[[AsyncClient, AsyncClient], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in virtual time with two clients of one store."""

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source) as here, AsyncClient(store=source) as there:
            await work(here, there)

    virtual.run(main)


async def waits(client: AsyncClient, name: str, count: int = 1) -> None:
    """Wait until a name has so many waiters."""
    while len((await client.inspect(name)).waiters) != count:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)


def test_everything_that_is_new_is_refused() -> None:
    """While a client is drained, and after, each way to acquire raises Stopped, and the names stay free."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        held = await here.lock("held", linger=5).acquire()
        nested = here.lock("nested", reentrant=True)
        outer = await nested.acquire()
        handle = await (await there.lock("detached").acquire()).detach()
        draining = asyncio.create_task(here.drain(30))
        await asyncio.sleep(1)
        ways: list[Callable[[], Coroutine[Any, Any, object]]] = [
            here.lock("a").acquire,
            here.lock("a").try_acquire,
            here.lock("a", linger=1).try_acquire,
            here.lock("a", reentrant=True).try_acquire,
            here.semaphore("b", 2).try_acquire,
            here.rwlock("c").read().try_acquire,
            here.rwlock("c").write().try_acquire,
            here.multilock(["d", "e"]).try_acquire,
            lambda: here.election("f").campaign(timeout=1),
            lambda: here.once("job", key="k").run(asyncio.sleep, 0),
            lambda: here.adopt(handle),
        ]
        for way in ways:
            with pytest.raises(Stopped, match="drained"):
                await way()
        inner = await nested.try_acquire()
        assert inner is not None, "who holds a lock goes on to use it"
        for lease in (inner, outer):
            assert await lease.release() is Outcome.RELEASED
        assert await held.extend() > 0
        assert held.revoking
        assert await there.names() == ["detached", "held"]
        assert not draining.done()
        assert await held.release() is Outcome.RELEASED
        assert await draining
        assert await there.names() == ["detached"]
        with pytest.raises(Stopped):
            await here.lock("a").try_acquire()
        await (await there.adopt(handle)).release()

    run(work)


def test_waiters_leave_their_queues() -> None:
    """Waiters in the store's queue and in the local one get Stopped at once, and the others move up."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        theirs = await there.lock("name").acquire()
        waiting = [asyncio.create_task(_hold(here, "name")) for _ in range(3)]
        waiting.append(asyncio.create_task(_take_permit(here)))
        await waits(there, "name", 2)
        behind = asyncio.create_task(_hold(there, "name"))
        began = asyncio.get_running_loop().time()
        assert await here.drain(10)
        for each in waiting:
            with pytest.raises(Stopped):
                await each
        assert asyncio.get_running_loop().time() - began < 0.1, "before any waiter would look by itself"
        assert await theirs.release() is Outcome.RELEASED
        assert await behind is Outcome.RELEASED

    run(work)


async def _hold(client: AsyncClient, name: str) -> Outcome:
    return await (await client.lock(name).acquire()).release()


async def _take_permit(client: AsyncClient) -> Outcome:
    return await (await client.semaphore("name", 1, detect_deadlock=True).acquire()).release()


def test_a_lease_is_not_handed_to_a_waiter_that_was_sent_away() -> None:
    """The release of a lease grants the next client, and no local waiter of the client that is drained."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        ours = await here.lock("name").acquire()
        local = asyncio.create_task(_hold(here, "name"))
        await soon(lambda: len(here.session().local_waiters("name")) == 1, "a local waiter")
        theirs = asyncio.create_task(_hold(there, "name"))
        await waits(there, "name", 1)
        draining = asyncio.create_task(here.drain(10))
        await asyncio.sleep(0.1)
        assert await ours.release() is Outcome.RELEASED
        assert await theirs is Outcome.RELEASED
        assert await draining
        with pytest.raises(Stopped):
            await local

    run(work)


def test_time_that_is_over_ends_what_is_left() -> None:
    """After the timeout the client is closed, which releases its leases, and `drain` returns False."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lease = await here.lock("name", ttl=5).acquire()
        began = asyncio.get_running_loop().time()
        assert not await here.drain(60)
        assert 60 <= asyncio.get_running_loop().time() - began < 61
        assert lease.state is LeaseState.RELEASED
        assert await _hold(there, "name") is Outcome.RELEASED

    run(work)


def test_a_lease_that_lingers_is_released_at_once() -> None:
    """What nobody holds does not delay anybody."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        await (await here.lock("name", linger=60).acquire()).release()
        assert (await there.inspect("name")).holders
        assert await here.drain(30)
        assert not (await there.inspect("name")).holders

    run(work)


def test_leadership_is_handed_on() -> None:
    """A term is lost at its client before another leads; its body is cancelled, and the next candidate leads."""
    order: list[str] = []

    async def lead(client: AsyncClient, name: str) -> None:
        async with client.election("leader").campaign(name) as term:
            order.append(f"{name} leads")
            try:
                await asyncio.sleep(1000)
            finally:
                assert not term.remaining()
                await asyncio.sleep(1)
                order.append(f"{name} has stopped")

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        first = asyncio.create_task(lead(here, "first"))
        await asyncio.sleep(1)
        second = asyncio.create_task(lead(there, "second"))
        await waits(there, "leader")
        assert await here.drain(10)
        with pytest.raises(LeaseLost, match="drained"):
            await first
        await asyncio.sleep(1)
        assert order == ["first leads", "first has stopped", "second leads"]
        assert await there.drain(10)
        with pytest.raises(LeaseLost):
            await second

    run(work)


def test_a_term_without_a_body_is_released_at_once() -> None:
    """A leader that looks at `is_leader` finds it False before the next candidate is elected."""
    found: list[bool] = []

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        election = here.election("leader")
        term = await election.campaign("first")
        term.on_lost(lambda _loss: found.append(election.is_leader))
        second = asyncio.create_task(_campaign(there))
        await waits(there, "leader")
        assert await here.drain(10)
        assert not election.is_leader
        assert found == [False]
        await (await second).release()

    run(work)


async def _campaign(client: AsyncClient) -> AsyncLease:
    return await client.election("leader").campaign("second")


def test_a_body_that_does_not_stop_keeps_its_term() -> None:
    """A leader that goes on after the time is over is not followed before its ttl has run out."""

    async def lead(client: AsyncClient) -> None:
        async with client.election("leader", ttl=30).campaign("first"):
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(20)

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        first = asyncio.create_task(lead(here))
        await asyncio.sleep(1)
        assert not await here.drain(5)
        assert (await there.inspect("leader")).holders
        with pytest.raises(LeaseLost):
            await first

    run(work)


def test_a_waiter_for_a_limit_gives_its_units_back() -> None:
    """A waiter for a slot gets Stopped, and others use the units that it had reserved."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        limit = here.limit("rate", 1, 60)
        await limit.acquire()
        waiting = asyncio.create_task(limit.acquire())
        await asyncio.sleep(1)
        assert await here.drain(10)
        with pytest.raises(Stopped):
            await waiting
        began = asyncio.get_running_loop().time()
        await there.limit("rate", 1, 60).acquire()
        assert asyncio.get_running_loop().time() - began < 61

    run(work)


def test_a_client_that_was_never_used_is_drained() -> None:
    """There is nothing to wait for, and nothing is acquired after."""
    client = Client(store=memory_source(MemoryTable()))
    assert client.drain()
    with pytest.raises(Stopped):
        client.lock("name").acquire()
    assert client.drain(0)
    client.close()
    with pytest.raises(UsageError):
        client.drain(-1)


def test_threads_are_drained() -> None:
    """Threads that hold go on to the end, threads that wait get Stopped, and nothing is held after."""
    with Client(store=memory_source(MemoryTable())) as client, ThreadsThatWork(client.lock("name", ttl=30)) as threads:
        eventually(lambda: threads.done > 20, "some work")
        assert client.drain(TEST_TIMEOUT)
        for each in threads.all:
            each.join(TEST_TIMEOUT)
        assert (threads.stopped, threads.failed) == (4, [])


class ThreadsThatWork:
    """Four threads that work under one lock until they are stopped."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.all = [threading.Thread(target=self._work, daemon=True) for _ in range(4)]
        self.done = self.stopped = 0
        self.failed: list[BaseException] = []

    def __enter__(self) -> Self:
        for each in self.all:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.all:
            each.join(TEST_TIMEOUT)

    def _work(self) -> None:
        try:
            while True:
                with self._lock as lease:
                    time.sleep(0)
                    lease.check()
                    self.done += 1
        except Stopped:
            with self._count:
                self.stopped += 1
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.failed.append(error)

    _count = threading.Lock()


class SlowReleases:
    """A source of clients whose store takes some seconds for a release, and the order of what that store has done."""

    def __init__(self, seconds: float) -> None:
        self.done: list[str] = []
        self.begun = threading.Event()
        self._seconds = seconds

    def source(self) -> StoreSource:
        """Return the source of such a store."""
        slow, table = self, virtual.table()

        class Slow(MemoryStore):
            async def release(self, release: ReleaseRequest, until: float) -> Outcome:
                slow.begun.set()
                await self._runtime.sleep(slow._seconds)
                outcome = await super().release(release, until)
                slow.done.append("released")
                return outcome

            async def close(self) -> None:
                slow.done.append("closed")
                await super().close()

        return StoreSource("memory://", MemoryStore.capabilities, lambda runtime: Slow(runtime, table))

    async def begin(self) -> tuple[AsyncClient, asyncio.Task[Outcome]]:
        """Return a client, and a task that has begun to release a lease of it half a second ago."""
        client = AsyncClient(store=self.source(), operation_timeout=2)
        release = asyncio.create_task((await client.lock("name", ttl=3000).acquire()).release())
        await asyncio.sleep(0.5)
        return client, release


@pytest.mark.parametrize("ending", ["close", "drain"])
def test_the_store_stays_open_until_a_release_has_ended(ending: str) -> None:
    """A release that another task has begun grants the next client, and tells it: only then is the store closed."""
    slow = SlowReleases(1)

    async def main() -> None:
        client, release = await slow.begin()
        assert await getattr(client, ending)() is not False
        assert await release is Outcome.RELEASED

    virtual.run(main)
    assert slow.done == ["released", "closed"]


@pytest.mark.parametrize("ending", ["close", "drain"])
def test_the_store_stays_open_until_the_release_of_a_thread_has_ended(ending: str) -> None:
    """The same for a thread, which nobody stops."""
    slow = SlowReleases(0.2)
    client = Client(store=slow.source())
    lease = client.lock("name").acquire()
    thread = threading.Thread(target=lease.release)
    thread.start()
    assert slow.begun.wait(TEST_TIMEOUT)
    assert getattr(client, ending)() is not False
    thread.join(TEST_TIMEOUT)
    assert slow.done == ["released", "closed"]
    assert lease.release() is Outcome.RELEASED


def test_a_drain_waits_for_releases() -> None:
    """It waits for a release that is under way for as long as for a holder: longer than a close does."""
    slow = SlowReleases(6)

    async def main() -> None:
        client, release = await slow.begin()
        assert await client.drain(30)
        assert await release is Outcome.RELEASED

    virtual.run(main)
    assert slow.done == ["released", "closed"]


def test_a_close_waits_no_longer_than_for_two_operations() -> None:
    """A store that answers neither a release nor its repetition holds nobody up for ever."""
    slow = SlowReleases(1000)

    async def main() -> None:
        client, release = await slow.begin()
        began = asyncio.get_running_loop().time()
        await client.close()
        assert asyncio.get_running_loop().time() - began == pytest.approx(4, abs=0.1)
        assert slow.done == ["closed"]
        release.cancel()
        await asyncio.gather(release, return_exceptions=True)

    virtual.run(main)


@pytest.mark.parametrize("times", [1, 2])
def test_a_release_that_is_cancelled_is_waited_for(times: int) -> None:
    """A task that is cancelled in its release, even again, goes on with it: the store stays open for it."""
    slow = SlowReleases(1)

    async def main() -> None:
        client, release = await slow.begin()
        for _ in range(times):
            release.cancel()
            await asyncio.sleep(0.1)
        await client.close()
        await asyncio.gather(release, return_exceptions=True)

    virtual.run(main)
    assert slow.done[-1] == "closed"
    assert "released" in slow.done


# -- planted bugs ------------------------------------------------------------------------------------------

BUGS: dict[str, tuple[type, str, str, str, Callable[[], None]]] = {
    "new acquisitions are granted": (
        Attempt,
        "run",
        "if not self._access.acquires:",
        "if self._access.closed:",
        test_everything_that_is_new_is_refused,
    ),
    "waiters stay": (
        Session,
        "drain",
        "await self._dismiss_waiters(until)",
        "pass",
        test_waiters_leave_their_queues,
    ),
    "what lingers stays": (
        Session,
        "drain",
        "self.local_queues.end_all_lingering()",
        "pass",
        test_a_lease_that_lingers_is_released_at_once,
    ),
    "holders are not waited for": (
        Session,
        "drain",
        "released or self.runtime.now() >= until",
        "True",
        test_everything_that_is_new_is_refused,
    ),
    "a drain does not wait for releases": (
        Session,
        "drain",
        "self.attempts or self.releases.pending()",
        "self.attempts or self.releases.sent",
        test_a_drain_waits_for_releases,
    ),
    "a close does not wait for releases": (
        Releases,
        "end",
        "while self.pending()",
        "while self.sent",
        partial(test_the_store_stays_open_until_a_release_has_ended, "close"),
    ),
    "a release that is begun is not noted": (
        Releases,
        "release",
        "self._under_way.add(lease)",
        "pass",
        partial(test_the_store_stays_open_until_a_release_has_ended, "close"),
    ),
    "holders are not asked": (
        Session,
        "drain",
        "lease.request_revocation()",
        "pass",
        test_everything_that_is_new_is_refused,
    ),
    "another leads while the body works": (
        Session,
        "_hand_leadership_on",
        " and lease.body is None",
        "",
        test_leadership_is_handed_on,
    ),
    "a term ends unsaid": (
        Session,
        "_hand_leadership_on",
        "if self.renewer.lose(lease, HANDED_ON) is not None and lease.body is None:",
        "if True:",
        test_leadership_is_handed_on,
    ),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is drained in another way fails a test."""
    owner, method, right, wrong, test = BUGS[bug]
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    assert_fails(test)
