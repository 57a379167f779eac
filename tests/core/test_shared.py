"""The public API of semaphores and reader/writer locks: what they refuse, and what their errors and reprs say."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tenure import AsyncClient, Client, LockTimeout, TenureError, UsageError
from tenure.contracts.limits import EVERYBODY
from tenure.contracts.store import StoreSource
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source


@pytest.fixture
def source() -> StoreSource:
    """Return a table of its own."""
    return memory_source(MemoryTable())


@pytest.fixture
def client(source: StoreSource) -> Client:
    """Return a client of that table."""
    return Client(store=source, owner="test")


@pytest.mark.parametrize("permits", [0, -1, EVERYBODY, 1.5, 3.0, True, "3"])
@pytest.mark.parametrize("client_type", [Client, AsyncClient])
def test_permits_that_cannot_be_right_are_refused(
    source: StoreSource,
    client_type: type[Client | AsyncClient],
    permits: Any,  # noqa: ANN401 - wrong on purpose
) -> None:
    """Permits are a whole number from 1, below what a reader/writer lock has."""
    with pytest.raises(UsageError, match="permits must be a whole number from 1 to 1048575"):
        client_type(store=source).semaphore("name", permits)


@pytest.mark.parametrize("weight", [0, -1, 4, 1.0, True, "1", None])
def test_a_weight_that_cannot_be_right_is_refused(
    source: StoreSource,
    client: Client,
    weight: Any,  # noqa: ANN401 - wrong on purpose
) -> None:
    """A weight is a whole number from 1 to the number of permits: a larger one could never be granted."""

    async def main() -> None:
        async with AsyncClient(store=source) as there:
            semaphore = there.semaphore("name", 3)
            with pytest.raises(UsageError, match="weight must be a whole number from 1 to 3"):
                await semaphore.acquire(weight=weight)
            with pytest.raises(UsageError, match="weight must be a whole number from 1 to 3"):
                await semaphore.try_acquire(weight=weight)

    semaphore = client.semaphore("name", 3)
    with pytest.raises(UsageError, match="weight must be a whole number from 1 to 3"):
        semaphore.acquire(weight=weight)
    with pytest.raises(UsageError, match="weight must be a whole number from 1 to 3"):
        semaphore.try_acquire(weight=weight)
    client.close()
    asyncio.run(main())


@pytest.mark.parametrize("client_type", [Client, AsyncClient])
def test_other_options_are_those_of_a_lock(source: StoreSource, client_type: type[Client | AsyncClient]) -> None:
    """A semaphore and a reader/writer lock refuse whatever a lock refuses."""
    client = client_type(store=source)
    with pytest.raises(UsageError, match="ttl"):
        client.semaphore("name", 3, ttl=0)
    with pytest.raises(UsageError, match="max_hold"):
        client.rwlock("name", max_hold=0)
    with pytest.raises(UsageError, match="timeout"):
        client.rwlock("name", timeout=-1)
    with pytest.raises(UsageError, match="name"):
        client.rwlock("")


@pytest.mark.parametrize("client_type", [Client, AsyncClient])
def test_a_store_without_weights_refuses_when_the_primitive_is_made(client_type: type[Client | AsyncClient]) -> None:
    """The error comes when the primitive is made, and says what to do instead."""
    poor = replace(MemoryStore.capabilities, weights=False)
    client = client_type(store=replace(memory_source(MemoryTable(), "a poor store"), capabilities=poor))
    with pytest.raises(UsageError, match=r"a poor store keeps no semaphores: .* Use lock\(\), or another store"):
        client.semaphore("name", 3)
    with pytest.raises(UsageError, match="a poor store keeps no reader/writer locks"):
        client.rwlock("name")
    client.lock("name")


def test_a_mismatch_names_both_uses(client: Client) -> None:
    """The error for a name with two uses names both, with their numbers of permits, and what to do."""
    with client.semaphore("name", 3), pytest.raises(UsageError) as found:
        client.semaphore("name", 5).acquire()
    assert str(found.value) == (
        "'name' is in use as a semaphore of 3 permits, and was requested as a semaphore of 5 permits. All users of a "
        "name must use the same primitive and the same number of permits: change this one, or use another name."
    )
    with client.rwlock("name").read(), pytest.raises(UsageError, match=r"as a reader/writer lock, and .* as a lock"):
        client.lock("name").acquire()
    client.close()


def test_a_semaphore_of_one_permit_is_a_lock(client: Client) -> None:
    """They share the name, so one excludes the other."""
    with client.semaphore("name", 1):
        assert client.lock("name").try_acquire() is None
    with client.lock("name"):
        assert client.semaphore("name", 1).try_acquire() is None
    client.close()


def test_a_timeout_names_each_holder_once_and_not_all(source: StoreSource) -> None:
    """The error stays readable however many holders the name has."""
    clients = [Client(store=source, owner=f"owner {number}") for number in range(8)]
    leases = [client.rwlock("name").read().acquire() for client in clients for _ in range(2)]
    with pytest.raises(LockTimeout) as found:
        Client(store=source, owner="late").rwlock("name").write().acquire(0)
    assert "held by owner 0 and owner 1 and owner 2 and owner 3 and owner 4 and 3 others." in str(found.value)
    for lease in leases:
        lease.release()
    for client in clients:
        client.close()


def test_a_timeout_on_the_clients_own_permits_says_so(client: Client) -> None:
    """The error says that semaphores and reader/writer locks are not reentrant."""
    with (
        client.semaphore("name", 2).acquire(weight=2),
        pytest.raises(LockTimeout, match="a semaphore is not reentrant"),
    ):
        client.semaphore("name", 2).acquire(0)
    with client.rwlock("name").read(), pytest.raises(LockTimeout, match="a reader/writer lock is not reentrant"):
        client.rwlock("name").write().acquire(0.01)
    client.close()


# -- reader/writer locks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout", "error", "text"),
    [(None, UsageError, "would wait for itself"), (0, LockTimeout, "is held by"), (0.1, LockTimeout, "not granted")],
)
def test_an_upgrade_is_refused(client: Client, timeout: float | None, error: type[TenureError], text: str) -> None:
    """A reader that acquires the write side would wait for itself, and so would a writer that acquires either side.

    With a timeout, it waits: the wait has an end.
    """
    lock = client.rwlock("name", timeout=timeout)
    with lock.read(), pytest.raises(error, match=text), lock.write():
        pass
    with lock.write(), pytest.raises(error, match=text), lock.read():
        pass
    with lock.write(), pytest.raises(error, match=text):
        lock.write().acquire()
    assert client.names() == []
    client.close()


def test_an_upgrade_is_refused_in_a_task() -> None:
    """The same for asyncio; another task may wait for this one."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(MemoryTable())) as client:
            lock = client.rwlock("name", ttl=5)
            async with lock.read():
                with pytest.raises(UsageError, match="would wait for itself"):
                    await lock.write().acquire()
                other = asyncio.create_task(lock.write().acquire())
                await asyncio.sleep(0)
                assert not other.done()
            await (await other).release()

    asyncio.run(main())


def test_an_upgrade_inside_a_decorated_function_is_refused(client: Client) -> None:
    """The check uses the formatted names of a call: different ones pass, the same one is refused."""
    lock = client.rwlock("order:{number}", ttl=5)

    @lock.write()
    def write(number: int) -> list[str]:
        return client.names()

    @lock.read()
    def read(number: int, other: int) -> list[str]:
        return write(other)

    assert read(1, 2) == ["order:1", "order:2"]
    with pytest.raises(UsageError, match="'order:1'"):
        read(1, 1)
    assert client.names() == []
    client.close()


def test_an_acquisition_that_is_no_upgrade_is_not_refused(client: Client) -> None:
    """Reading twice, writing after a release, an acquisition without a wait, and other threads are not refused."""
    lock = client.rwlock("name")
    with lock.read(), lock.read():
        assert len(client.inspect("name").holders) == 2
        assert lock.write().try_acquire() is None
    with lock.read() as lease:
        lease.release()
        with lock.write():
            pass
    with ThreadPoolExecutor(1) as pool:
        with lock.read():
            waiting = pool.submit(lock.write().acquire, 30)
            assert not waiting.done()
        waiting.result(10).release()
    client.close()


def test_semaphores_and_sides_decorate_functions(client: Client) -> None:
    """A decorated call acquires one permit, or a side, of the name that is formatted from its arguments."""

    @client.semaphore("pool:{number}", 2, ttl=5)
    def work(number: int) -> list[tuple[int, int]]:
        return [(view.capacity, view.holders[0].weight) for view in map(client.inspect, client.names())]

    assert work(7) == [(2, 1)]
    assert client.names() == []
    client.close()


def test_async_semaphores_decorate_functions() -> None:
    """The same for async functions."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(MemoryTable())) as client:

            @client.semaphore("pool:{number}", 2, ttl=5)
            async def work(number: int) -> list[str]:
                return await client.names()

            assert list(await asyncio.gather(work(3), work(3))) == [["pool:3"], ["pool:3"]]
            assert await client.names() == []

    asyncio.run(main())


def test_a_lost_permit_is_reported(client: Client) -> None:
    """`on_lost` and `max_hold` work as for a lock."""
    told = threading.Event()
    lease = client.semaphore("name", 2, ttl=5, max_hold=0.1, on_lost=lambda _loss: told.set()).acquire()
    assert told.wait(10)
    assert lease.lost
    lease.release()
    client.close()


def test_their_repr_says_what_they_are(client: Client) -> None:
    """Name, permits and ttl are shown."""
    semaphore, lock = client.semaphore("pool", 3), client.rwlock("name")
    assert repr(semaphore) == "<Semaphore 'pool' permits=3 ttl=30>"
    assert (semaphore.permits, semaphore.name) == (3, "pool")
    assert repr(lock) == "<RWLock 'name'>"
    assert repr(lock.write()) == "<Side 'name' ttl=30>"
