"""The fixtures give each test a store of its own, in which what goes wrong does so as in production."""

import asyncio
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

import holdfast
from holdfast import (
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
from holdfast.errors import StoreError
from holdfast.testing.pytest import Chaos

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
    holdfast_client: Client, holdfast_async_client: AsyncClient
) -> None:
    """What the client for threads holds, the client for asyncio of the same test does not get."""

    async def try_it() -> bool:
        return await holdfast_async_client.lock("name").try_acquire() is None

    with holdfast_client.lock("name"):
        assert asyncio.run(try_it())


@pytest.mark.parametrize("time", ["the first", "the second"])
def test_each_test_has_a_store_of_its_own(holdfast_client: Client, time: str) -> None:
    """Nothing that one test holds, also if it never lets go, is held in the next."""
    assert holdfast_client.names() == []
    kept.append(holdfast_client.lock("name").acquire(timeout=0))
    assert kept[-1].state is LeaseState.HELD, time


def test_code_that_makes_its_own_client_uses_the_store_of_the_test(holdfast_url: str, holdfast_client: Client) -> None:
    """A client without a URL, and one with the fixture's, contend with the fixture's client."""
    assert os.environ["HOLDFAST_URL"] == holdfast_url
    with holdfast_client.lock("name"), holdfast.Client() as mine, holdfast.Client(holdfast_url) as other:
        assert mine.lock("name").try_acquire() is None
        assert other.lock("name").try_acquire() is None


def test_a_client_that_is_left_open_is_closed_with_the_test() -> None:
    """Code that never closes its client leaves no lease behind that is renewed for ever."""
    chaos = Chaos()
    client = Client(chaos.url)
    lease = client.lock("name").acquire()
    chaos.close()
    assert lease.state is LeaseState.RELEASED
    assert "HOLDFAST_URL" not in os.environ
    with pytest.raises(UsageError, match="closed"):
        client.lock("name").acquire()


def test_a_lost_lease_is_told_as_in_production(holdfast_client: Client, holdfast_chaos: Chaos) -> None:
    """`check()` raises, `lost` is set, the callback is called, and the name is free for the next."""
    told: list[LeaseLost] = []
    lease = holdfast_client.lock("name", on_lost=told.append).acquire()
    holdfast_chaos.lose(lease)
    assert lease.lost.is_set()
    assert len(told) == 1
    with pytest.raises(LeaseLost, match="ran out"):
        lease.check()
    with holdfast_client.lock("name", timeout=0) as next_one:
        assert next_one.token > lease.token
    assert lease.release() is Outcome.TAKEN_OVER


def test_whoever_waits_is_granted_what_is_lost(holdfast_client: Client, holdfast_chaos: Chaos) -> None:
    """A loss passes the name on, within a client and between clients."""
    lease = holdfast_client.lock("name").acquire()
    granted: list[int] = []

    def wait(client: Client) -> None:
        with client.lock("name", timeout=TEST_TIMEOUT) as mine:
            granted.append(mine.token)

    with holdfast.Client() as other:
        threads = [threading.Thread(target=wait, args=(client,)) for client in (holdfast_client, other)]
        for thread in threads:
            thread.start()
        while len(holdfast_client.inspect("name").waiters) < len(threads):
            pass
        with at_once():
            holdfast_chaos.lose(lease)
            for thread in threads:
                thread.join()
    assert len(granted) == len(threads)


def test_every_kind_of_lease_can_be_lost(holdfast_client: Client, holdfast_chaos: Chaos) -> None:
    """Permits, writers, several names, terms and shares are lost as locks are, and others keep theirs."""
    permits = holdfast_client.semaphore("permits", 2)
    other = permits.acquire()
    leader = holdfast_client.election("leader").campaign("here")
    reentrant = holdfast_client.lock("reentrant", reentrant=True).acquire()
    for lease in (permits.acquire(), holdfast_client.rwlock("rw").write().acquire(), leader, reentrant):
        holdfast_chaos.lose(lease)
        with pytest.raises(LeaseLost):
            lease.check()
    both = holdfast_client.multilock(["one", "two"]).acquire()
    holdfast_chaos.lose(both)
    assert both.lost.is_set()
    other.check()
    other.release()


def test_only_leases_of_the_tests_store_can_be_lost(holdfast_chaos: Chaos) -> None:
    """A lease of another store is refused, with what to do."""
    with holdfast.Client("memory://elsewhere") as client, client.lock("name") as lease:
        with pytest.raises(UsageError, match="holdfast_client"):
            holdfast_chaos.lose(lease)
        lease.check()


def test_an_asyncio_body_is_cancelled_by_a_loss(holdfast_async_client: AsyncClient, holdfast_chaos: Chaos) -> None:
    """`async with` ends at the next await, with LeaseLost."""

    async def work() -> None:
        async with holdfast_async_client.lock("name") as lease:
            holdfast_chaos.lose(lease)
            await asyncio.sleep(LONG)

    with at_once(), pytest.raises(LeaseLost):
        asyncio.run(work())


def test_a_stolen_name_is_held_by_another_client(holdfast_client: Client, holdfast_chaos: Chaos) -> None:
    """The holder is told at once, and the thief stands ahead of those who wait."""
    lease = holdfast_client.lock("name", lock_delay=5).acquire()
    waiting = threading.Thread(
        target=lambda: holdfast_client.lock("name", lock_delay=5).acquire(TEST_TIMEOUT).release()
    )
    waiting.start()
    while not holdfast_client.inspect("name").waiters:
        pass
    stolen = holdfast_chaos.steal("name")
    with pytest.raises(LeaseLost, match="by force"):
        lease.check()
    assert stolen.token > lease.token
    with pytest.raises(LockTimeout, match=r"holdfast_chaos\.steal"):
        holdfast_client.lock("name").acquire(timeout=0)
    stolen.release()
    waiting.join()


def test_a_name_can_be_stolen_from_asyncio(holdfast_async_client: AsyncClient, holdfast_chaos: Chaos) -> None:
    """The holder is told before it awaits anything."""

    async def work() -> None:
        lease = await holdfast_async_client.semaphore("name", 3).acquire()
        holdfast_chaos.steal("name")
        assert lease.lost.is_set()
        assert await holdfast_async_client.semaphore("name", 3).try_acquire() is None

    asyncio.run(work())


def test_nothing_can_be_asked_of_a_store_that_is_down(holdfast_client: Client, holdfast_chaos: Chaos) -> None:
    """Every request fails until the end of the `with`; the lease is kept meanwhile."""
    lease = holdfast_client.lock("name").acquire()
    requests: list[Callable[[], object]] = [lease.extend, holdfast_client.lock("other").acquire, holdfast_client.names]
    with holdfast_chaos.store_down():
        for request in requests:
            with pytest.raises(StoreUnavailable, match="store_down"):
                request()
        lease.check()
    lease.extend()
    lease.release()


def test_a_store_can_be_down_when_the_test_ends(holdfast_client: Client, holdfast_chaos: Chaos) -> None:
    """A test need not take the store up again: its clients are closed all the same."""
    kept.append(holdfast_client.lock("name").acquire())
    holdfast_chaos.store_down()
    with pytest.raises(StoreUnavailable):
        holdfast_client.names()


def test_a_store_that_is_down_for_long_costs_the_lease(holdfast_client: Client, holdfast_chaos: Chaos) -> None:
    """A test of that waits for no ttl: it lets the time go by."""
    with at_once(), pytest.raises(LeaseLost), holdfast_client.lock("name") as lease, holdfast_chaos.store_down():
        holdfast_chaos.pause(lease.ttl)


def test_a_pause_costs_every_lease(holdfast_client: Client, holdfast_chaos: Chaos) -> None:
    """After it all leases have run out, by their holders' clocks and by the store's; and work goes on."""
    lease = holdfast_client.lock("name", ttl=LONG).acquire()
    with at_once():
        holdfast_chaos.pause()
    assert lease.lost.is_set()
    with holdfast_client.lock("name", timeout=0) as next_one:
        next_one.extend()
        next_one.check()


def test_a_short_pause_costs_nothing(holdfast_client: Client, holdfast_chaos: Chaos) -> None:
    """A lease that is longer than a pause is still held after it, with less time left."""
    with holdfast_client.lock("name", ttl=LONG) as lease:
        holdfast_chaos.pause(LONG / 2)
        lease.extend()
        assert lease.remaining() > LONG / 2


def test_others_go_on_while_a_process_stands_still(holdfast_client: Client, holdfast_chaos: Chaos) -> None:
    """Another client is granted the name while the holder still believes that it holds it."""
    lease = holdfast_client.lock("name").acquire()
    with at_once(), holdfast_chaos.paused():
        with holdfast.Client() as other, other.lock("name", timeout=0) as next_one:
            assert next_one.token > lease.token
        assert not lease.lost.is_set()
        with pytest.raises(StoreError, match="is paused"):
            lease.extend()
        stolen = holdfast_chaos.steal("other")
    with pytest.raises(LeaseLost):
        lease.check()
    holdfast_chaos.pause()
    stolen.check()
    assert holdfast_client.inspect("other").holders


def test_an_asyncio_process_can_stand_still(holdfast_async_client: AsyncClient, holdfast_chaos: Chaos) -> None:
    """Its body is cancelled when it goes on."""

    async def work() -> None:
        async with holdfast_async_client.lock("name"):
            holdfast_chaos.pause()
            await asyncio.sleep(LONG)

    with at_once(), pytest.raises(LeaseLost):
        asyncio.run(work())


def test_a_lock_delay_goes_by_in_a_pause(holdfast_client: Client, holdfast_chaos: Chaos) -> None:
    """The clock that moves is the store's, for everything that it measures."""
    holdfast_chaos.lose(holdfast_client.lock("name", lock_delay=LONG).acquire())
    assert holdfast_client.lock("name").try_acquire() is None
    holdfast_chaos.pause(LONG)
    with holdfast_client.lock("name", timeout=0):
        pass
