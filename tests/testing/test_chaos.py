"""The fixtures give each test a store of its own, in which what goes wrong does so as in production."""

import asyncio
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

import tenure
from tenure import (
    AsyncClient,
    Client,
    Lease,
    LeaseLost,
    LeaseState,
    LockTimeout,
    Outcome,
    StoreUnavailable,
    UsageError,
)
from tenure.errors import StoreError
from tenure_testing.pytest import Chaos

kept: list[Lease] = []
"""What is not released by the test that acquired it."""

TEST_TIMEOUT = 10.0
LONG = 3600.0


@contextmanager
def at_once() -> Generator[None, None, None]:
    """See that what happens inside takes no part of the time that it pretends to take."""
    ended = threading.Event()
    timer = threading.Timer(TEST_TIMEOUT, ended.set)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    assert not ended.is_set()


def test_both_clients_contend_for_the_names_of_one_store(
    tenure_client: Client, tenure_async_client: AsyncClient
) -> None:
    """What the client for threads holds, the client for asyncio of the same test does not get."""

    async def try_it() -> bool:
        return await tenure_async_client.lock("name").try_acquire() is None

    with tenure_client.lock("name"):
        assert asyncio.run(try_it())


@pytest.mark.parametrize("time", ["the first", "the second"])
def test_each_test_has_a_store_of_its_own(tenure_client: Client, time: str) -> None:
    """Nothing that one test holds, also if it never lets go, is held in the next."""
    assert tenure_client.names() == []
    kept.append(tenure_client.lock("name").acquire(timeout=0))
    assert kept[-1].state is LeaseState.HELD, time


def test_code_that_makes_its_own_client_uses_the_store_of_the_test(tenure_url: str, tenure_client: Client) -> None:
    """A client without a URL, and one with the fixture's, contend with the fixture's client."""
    assert os.environ["TENURE_URL"] == tenure_url
    with tenure_client.lock("name"), tenure.Client() as mine, tenure.Client(tenure_url) as other:
        assert mine.lock("name").try_acquire() is None
        assert other.lock("name").try_acquire() is None


def test_a_client_that_is_left_open_is_closed_with_the_test() -> None:
    """Code that never closes its client leaves no lease behind that is renewed for ever."""
    chaos = Chaos()
    client = Client(chaos.url)
    lease = client.lock("name").acquire()
    chaos.close()
    assert lease.state is LeaseState.RELEASED
    assert "TENURE_URL" not in os.environ
    with pytest.raises(UsageError, match="closed"):
        client.lock("name").acquire()


def test_a_lost_lease_is_told_as_in_production(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """`check()` raises, `lost` is set, the callback is called, and the name is free for the next."""
    told: list[LeaseLost] = []
    lease = tenure_client.lock("name", on_lost=told.append).acquire()
    tenure_chaos.lose(lease)
    assert lease.lost.is_set()
    assert len(told) == 1
    with pytest.raises(LeaseLost, match="ran out"):
        lease.check()
    with tenure_client.lock("name", timeout=0) as next_one:
        assert next_one.token > lease.token
    assert lease.release() is Outcome.TAKEN_OVER


def test_whoever_waits_is_granted_what_is_lost(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """A loss passes the name on, within a client and between clients."""
    lease = tenure_client.lock("name").acquire()
    granted: list[int] = []

    def wait(client: Client) -> None:
        with client.lock("name", timeout=TEST_TIMEOUT) as mine:
            granted.append(mine.token)

    with tenure.Client() as other:
        threads = [threading.Thread(target=wait, args=(client,)) for client in (tenure_client, other)]
        for thread in threads:
            thread.start()
        while len(tenure_client.inspect("name").waiters) < len(threads):
            pass
        with at_once():
            tenure_chaos.lose(lease)
            for thread in threads:
                thread.join()
    assert len(granted) == len(threads)


def test_every_kind_of_lease_can_be_lost(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """Permits, writers, several names, terms and shares are lost as locks are, and others keep theirs."""
    permits = tenure_client.semaphore("permits", 2)
    other = permits.acquire()
    leader = tenure_client.election("leader").campaign("here")
    reentrant = tenure_client.lock("reentrant", reentrant=True).acquire()
    for lease in (permits.acquire(), tenure_client.rwlock("rw").write().acquire(), leader, reentrant):
        tenure_chaos.lose(lease)
        with pytest.raises(LeaseLost):
            lease.check()
    both = tenure_client.multilock(["one", "two"]).acquire()
    tenure_chaos.lose(both)
    assert both.lost.is_set()
    other.check()
    other.release()


def test_only_leases_of_the_tests_store_can_be_lost(tenure_chaos: Chaos) -> None:
    """A lease of another store is refused, with what to do."""
    with tenure.Client("memory://elsewhere") as client, client.lock("name") as lease:
        with pytest.raises(UsageError, match="tenure_client"):
            tenure_chaos.lose(lease)
        lease.check()


def test_an_asyncio_body_is_cancelled_by_a_loss(tenure_async_client: AsyncClient, tenure_chaos: Chaos) -> None:
    """`async with` ends at the next await, with LeaseLost."""

    async def work() -> None:
        async with tenure_async_client.lock("name") as lease:
            tenure_chaos.lose(lease)
            await asyncio.sleep(LONG)

    with at_once(), pytest.raises(LeaseLost):
        asyncio.run(work())


def test_a_stolen_name_is_held_by_another_client(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """The holder is told at once, and the thief stands ahead of those who wait."""
    lease = tenure_client.lock("name", lock_delay=5).acquire()
    waiting = threading.Thread(target=lambda: tenure_client.lock("name", lock_delay=5).acquire(TEST_TIMEOUT).release())
    waiting.start()
    while not tenure_client.inspect("name").waiters:
        pass
    stolen = tenure_chaos.steal("name")
    with pytest.raises(LeaseLost, match="by force"):
        lease.check()
    assert stolen.token > lease.token
    with pytest.raises(LockTimeout, match=r"tenure_chaos\.steal"):
        tenure_client.lock("name").acquire(timeout=0)
    stolen.release()
    waiting.join()


def test_a_name_can_be_stolen_from_asyncio(tenure_async_client: AsyncClient, tenure_chaos: Chaos) -> None:
    """The holder is told before it awaits anything."""

    async def work() -> None:
        lease = await tenure_async_client.semaphore("name", 3).acquire()
        tenure_chaos.steal("name")
        assert lease.lost.is_set()
        assert await tenure_async_client.semaphore("name", 3).try_acquire() is None

    asyncio.run(work())


def test_nothing_can_be_asked_of_a_store_that_is_down(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """Every request fails until the end of the `with`; the lease is kept meanwhile."""
    lease = tenure_client.lock("name").acquire()
    requests: list[Callable[[], object]] = [lease.extend, tenure_client.lock("other").acquire, tenure_client.names]
    with tenure_chaos.store_down():
        for request in requests:
            with pytest.raises(StoreUnavailable, match="store_down"):
                request()
        lease.check()
    lease.extend()
    lease.release()


def test_a_store_can_be_down_when_the_test_ends(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """A test need not take the store up again: its clients are closed all the same."""
    kept.append(tenure_client.lock("name").acquire())
    tenure_chaos.store_down()
    with pytest.raises(StoreUnavailable):
        tenure_client.names()


def test_a_store_that_is_down_for_long_costs_the_lease(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """A test of that waits for no ttl: it lets the time go by."""
    with at_once(), pytest.raises(LeaseLost), tenure_client.lock("name") as lease, tenure_chaos.store_down():
        tenure_chaos.pause(lease.ttl)


def test_a_pause_costs_every_lease(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """After it all leases have run out, by their holders' clocks and by the store's; and work goes on."""
    lease = tenure_client.lock("name", ttl=LONG).acquire()
    with at_once():
        tenure_chaos.pause()
    assert lease.lost.is_set()
    with tenure_client.lock("name", timeout=0) as next_one:
        next_one.extend()
        next_one.check()


def test_a_short_pause_costs_nothing(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """A lease that is longer than a pause is still held after it, with less time left."""
    with tenure_client.lock("name", ttl=LONG) as lease:
        tenure_chaos.pause(LONG / 2)
        lease.extend()
        assert lease.remaining() > LONG / 2


def test_others_go_on_while_a_process_stands_still(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """Another client is granted the name while the holder still believes that it holds it."""
    lease = tenure_client.lock("name").acquire()
    with at_once(), tenure_chaos.paused():
        with tenure.Client() as other, other.lock("name", timeout=0) as next_one:
            assert next_one.token > lease.token
        assert not lease.lost.is_set()
        with pytest.raises(StoreError, match="is paused"):
            lease.extend()
        stolen = tenure_chaos.steal("other")
    with pytest.raises(LeaseLost):
        lease.check()
    tenure_chaos.pause()
    stolen.check()
    assert tenure_client.inspect("other").holders


def test_an_asyncio_process_can_stand_still(tenure_async_client: AsyncClient, tenure_chaos: Chaos) -> None:
    """Its body is cancelled when it goes on."""

    async def work() -> None:
        async with tenure_async_client.lock("name"):
            tenure_chaos.pause()
            await asyncio.sleep(LONG)

    with at_once(), pytest.raises(LeaseLost):
        asyncio.run(work())


def test_a_lock_delay_goes_by_in_a_pause(tenure_client: Client, tenure_chaos: Chaos) -> None:
    """The clock that moves is the store's, for everything that it measures."""
    tenure_chaos.lose(tenure_client.lock("name", lock_delay=LONG).acquire())
    assert tenure_client.lock("name").try_acquire() is None
    tenure_chaos.pause(LONG)
    with tenure_client.lock("name", timeout=0):
        pass
