"""Elections: what is refused, what is seen, and that nobody believes in a term that is over."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tenure import (
    AsyncClient,
    Client,
    Leader,
    LeaseLost,
    LockTimeout,
    Outcome,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from tenure.contracts.messages import NameView
from tenure.contracts.store import StoreSource
from tenure.runtimes.threads import ThreadEvent, ThreadsRuntime
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests.hazards.helpers import TEST_TIMEOUT, eventually

TTL = 20.0


@pytest.fixture
def table() -> MemoryTable:
    """Return a table of the test's own."""
    return MemoryTable()


@pytest.fixture
def client(table: MemoryTable) -> Iterator[Client]:
    """Return a client of it."""
    with Client(store=memory_source(table), owner="test", namespace="app") as client:
        yield client


@contextlib.asynccontextmanager
async def async_client(table: MemoryTable) -> AsyncGenerator[AsyncClient]:
    """Return an async client of it."""
    async with AsyncClient(store=memory_source(table), owner="async", namespace="app") as client:
        yield client


@pytest.mark.parametrize("value", [None, 5, b"x", "x" * 4097, "\u00e9" * 2049, "\ud800"])
def test_a_value_that_cannot_be_published_is_refused(client: Client, value: Any) -> None:  # noqa: ANN401 - wrong
    """A leader publishes a str of up to 4096 bytes of UTF-8; nobody leads after a refusal."""
    election = client.election("boss")
    with pytest.raises(UsageError, match="publish"):
        election.campaign(value)
    assert election.leader() is None
    with election.campaign() as term:
        with pytest.raises(UsageError, match="publish"):
            term.publish(value)
        assert term.value == ""


def test_publishing_takes_a_term(client: Client) -> None:
    """Whoever was never elected cannot publish; whoever was deposed is told."""
    election = client.election("boss", ttl=TTL)
    with pytest.raises(UsageError, match="campaign"):
        election.publish("x")
    term = election.campaign("one")
    election.publish("two")
    assert (term.value, election.leader()) == ("two", Leader("test", "two", term.token))
    election.resign()
    with pytest.raises(LeaseLost, match="released"):
        election.publish("three")
    assert election.resign() is Outcome.RELEASED


def test_a_term_is_a_lease(client: Client) -> None:
    """`with`, token, remaining, lost and release of a term are those of a lease."""
    election = client.election("boss", ttl=TTL)
    with election.campaign("here") as term:
        assert 0 < term.remaining() <= TTL
        assert not term.lost.is_set()
        assert client.inspect("boss").holders[0].value == "here"
        assert client.lock("boss").try_acquire() is None
    assert not election.is_leader
    with pytest.raises(LeaseLost):
        term.check()


def test_a_leader_that_was_deposed_knows_at_its_local_deadline(client: Client) -> None:
    """`is_leader` turns false with the local deadline, though the store still keeps the lease."""
    told: list[LeaseLost] = []
    election = client.election("boss", ttl=TTL, on_lost=told.append)
    term = election.campaign("one")
    term._core.valid_until = ThreadsRuntime().now()
    assert not election.is_leader
    assert election.leader() == Leader("test", "one", term.token), "the store knows nothing of that yet"
    eventually(lambda: told, "told")
    with pytest.raises(LeaseLost):
        election.publish("two")
    election.resign()


def test_a_leader_that_resigned_does_not_lead_while_the_next_does(client: Client) -> None:
    """Candidates of one client, and of one object, follow each other; each term has a number of its own."""
    election = client.election("boss", ttl=TTL)
    numbers: list[int] = []
    leading = 0

    def run(_number: int) -> None:
        nonlocal leading
        with election.campaign(str(_number), timeout=TEST_TIMEOUT) as term:
            leading += 1
            assert leading == 1
            assert client.election("boss").leader() == Leader("test", str(_number), term.token)
            numbers.append(term.token)
            leading -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(20)))
    assert numbers == sorted(set(numbers))


def test_a_value_is_not_handed_on_with_the_lease(client: Client) -> None:
    """Who locks the name right after a leader, in the same process, publishes nothing."""
    term = client.election("boss", ttl=TTL).campaign("secret plan")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.lock("boss", ttl=TTL).acquire)
        eventually(lambda: client.inspect("boss").waiters, "a waiter")
        term.release()
        with waiting.result(TEST_TIMEOUT):
            assert client.election("boss").leader() == Leader("test", "", client.inspect("boss").holders[0].token)


def test_a_campaign_can_be_awaited_entered_and_made_a_task(table: MemoryTable) -> None:
    """In asyncio a campaign is awaited, or entered; a task can be made of it, and time limits put around it."""

    async def main() -> None:
        async with async_client(table) as client:
            election = client.election("boss", ttl=TTL)
            async with election.campaign("one") as term:
                assert election.is_leader
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(asyncio.create_task(client.election("boss").campaign("late")), 0.02)
                with pytest.raises(LockTimeout, match="async"):
                    await client.election("boss").campaign("late", timeout=0.01)
                candidate = asyncio.create_task(client.election("boss").campaign("two"))
                while not (await client.inspect("boss")).waiters:  # noqa: ASYNC110 - it is in the store
                    await asyncio.sleep(0.001)
                assert await election.leader() == Leader("async", "one", term.token)
            second = await candidate
            assert second.token > term.token
            assert await election.leader() == Leader("async", "two", second.token)
            await second.release()
            assert await client.names() == []

    asyncio.run(main())


def test_an_async_leader_is_stopped_when_it_is_deposed(table: MemoryTable) -> None:
    """The body is cancelled, and LeaseLost raised."""

    async def main() -> None:
        async with async_client(table) as client:
            election = client.election("boss", ttl=TTL)

            async def lead() -> None:
                async with election.campaign("one"):
                    await client.revoke("boss", force=True)
                    await asyncio.sleep(TEST_TIMEOUT)

            with pytest.raises(LeaseLost):
                await lead()
            assert not election.is_leader

    asyncio.run(main())


# -- observers ---------------------------------------------------------------------------------------------


def test_an_observer_is_stopped_at_once(client: Client) -> None:
    """However long its interval is, `stop()` ends an observation at once, from any thread, and for good."""
    seen = client.election("boss").observe(interval=1000)
    assert next(seen) is None
    threading.Timer(0.05, seen.stop).start()
    begun = ThreadsRuntime().now()
    assert list(seen) == []
    assert ThreadsRuntime().now() - begun < TEST_TIMEOUT
    assert list(seen) == []


@pytest.mark.parametrize("arguments", [{"timeout": -1}, {"interval": 0}, {"interval": None}, {"timeout": "1"}])
def test_an_observation_that_cannot_be_right_is_refused(client: Client, arguments: Any) -> None:  # noqa: ANN401 - wrong
    """Timeouts and intervals are durations."""
    with pytest.raises(UsageError):
        client.election("boss").observe(**arguments)


def test_an_observing_task_can_be_cancelled(table: MemoryTable) -> None:
    """A task that observes ends when it is cancelled."""

    async def main() -> None:
        async with async_client(table) as client:
            seen: list[Leader | None] = []

            async def observe() -> None:
                seen.extend([leader async for leader in client.election("boss").observe(interval=1000)])

            task = asyncio.create_task(observe())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


class Broken(MemoryStore):
    """A store that can be broken."""

    error: StoreError | None = None
    failures = -1
    """How often it fails; negative: for ever."""

    async def inspect(self, name: str, until: float) -> NameView:
        """Fail while it is broken."""
        if self.error is not None and self.failures:
            self.failures -= 1
            raise self.error
        return await super().inspect(name, until)


def test_an_observer_whose_time_is_over_does_not_spin(table: MemoryTable) -> None:
    """Whoever is told at least once, however short its timeout is, asks a store in trouble every `interval` seconds."""
    woken: list[float | None] = []

    class Watched(ThreadEvent):
        async def wait(self, until: float | None) -> bool:
            woken.append(until)
            return await super().wait(until)

    class Watching(ThreadsRuntime):
        def event(self) -> ThreadEvent:
            return Watched()

    def make(runtime: Any) -> Broken:  # noqa: ANN401 - a runtime
        store = Broken(runtime, table)
        store.error = StoreUnavailable("down")
        return store

    source = StoreSource("broken", replace(MemoryStore.capabilities), make)
    with Client(store=source, retry_for=0.2) as client:
        client.session().runtime = Watching()
        seen = client.election("boss", ttl=TTL).observe(timeout=0, interval=0.05)
        with pytest.raises(StoreUnavailable, match="down"):
            next(seen)
    assert len(woken) < 20


def test_an_observer_rides_out_a_store_that_does_not_answer(table: MemoryTable) -> None:
    """For `retry_for` it goes on; then it raises, and may be gone on with. Other errors are raised at once."""
    stores: list[Broken] = []

    def make(runtime: Any) -> Broken:  # noqa: ANN401 - a runtime
        stores.append(Broken(runtime, table))
        return stores[-1]

    source = StoreSource("broken", replace(MemoryStore.capabilities), make)
    with Client(store=source, retry_for=TEST_TIMEOUT) as client:
        election = client.election("boss", ttl=TTL)
        seen = election.observe(interval=0.01)
        assert next(seen) is None
        stores[0].error, stores[0].failures = StoreUnavailable("down"), 3
        with election.campaign("one") as term:
            assert next(seen) == Leader(client.session().owner, "one", term.token), "it was ridden out"
        assert not stores[0].failures
    with Client(store=source, retry_for=0.05) as client:
        seen = client.election("boss", ttl=TTL).observe(interval=0.01)
        assert next(seen) is None
        for error in (StoreUnavailable("down"), StoreError("denied")):
            stores[1].error = error
            with pytest.raises(type(error), match=str(error)):
                next(seen)
            stores[1].error = None
        with client.election("boss", ttl=TTL).campaign("two"):
            leader = next(seen)
            assert leader is not None
            assert leader.value == "two", "and goes on"
