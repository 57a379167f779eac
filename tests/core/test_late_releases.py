"""The store does not answer a release or a withdrawal: the caller is told, and the client goes on in the background."""

import asyncio
import time

import pytest

from tenure import AsyncClient, Client, LockTimeout, Outcome, StoreUnavailable
from tenure.contracts.messages import NotGranted, ReleaseRequest, WithdrawRequest
from tenure.contracts.store import StoreSource
from tenure.errors import StoreError
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests.hazards.helpers import eventually

TTL = 60.0
"""Longer than a test waits: only a release frees the name in time."""


class Breaking:
    """A store to which every release and withdrawal breaks, until a test mends it."""

    def __init__(self, error: StoreError | None = None) -> None:
        """Use a table of its own, and break with `error`."""
        self.table = MemoryTable()
        self.error: StoreError | None = error or StoreUnavailable("reset by peer")
        self.tries = 0

    def source(self) -> StoreSource:
        """Return the source of such stores."""
        breaking = self

        class Broken(MemoryStore):
            async def release(self, release: ReleaseRequest, until: float) -> Outcome:
                breaking.fail()
                return await super().release(release, until)

            async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
                breaking.fail()
                return await super().withdraw(withdraw, until)

        return StoreSource("memory://", MemoryStore.capabilities, lambda runtime: Broken(runtime, breaking.table))

    def fail(self) -> None:
        """Count a try, and raise the error if there is one."""
        self.tries += 1
        if self.error is not None:
            raise self.error


def test_a_release_goes_on_after_the_caller_was_told() -> None:
    """The outcome is UNKNOWN at once; the name is free soon after the store is back, and not only at the ttl."""
    store = Breaking()
    with Client(store=store.source()) as client, Client(store=memory_source(store.table)) as other:
        leases = [client.lock(f"name {number}", ttl=TTL).acquire() for number in range(20)]
        assert {lease.release() for lease in leases} == {Outcome.UNKNOWN}
        assert len(other.names()) == len(leases)
        store.error = None
        eventually(lambda: other.names() == [], "all names are free")
        assert {lease.release() for lease in leases} == {Outcome.UNKNOWN}


def test_a_release_of_a_task_goes_on() -> None:
    """The same in asyncio."""
    store = Breaking()

    async def main() -> None:
        async with AsyncClient(store=store.source()) as client, AsyncClient(store=memory_source(store.table)) as other:
            assert await (await client.lock("name", ttl=TTL).acquire()).release() is Outcome.UNKNOWN
            waiting = asyncio.create_task(other.lock("name", ttl=TTL).acquire(timeout=TTL / 2))
            store.error = None
            await (await waiting).release()

    asyncio.run(main())


def test_a_withdrawal_goes_on() -> None:
    """A waiter whose time is up leaves the queue once the store is back, though its caller has gone."""
    store = Breaking()
    with Client(store=store.source()) as client, Client(store=memory_source(store.table)) as other:
        held = other.lock("name", ttl=TTL).acquire()
        with pytest.raises(LockTimeout):
            client.lock("name", ttl=TTL).acquire(timeout=0.05)
        eventually(lambda: store.tries >= 5, "more than three tries")
        assert other.inspect("name").waiters
        store.error = None
        eventually(lambda: not other.inspect("name").waiters, "the waiter has gone")
        held.release()


def test_it_ends_with_the_client() -> None:
    """Closing the client waits for no store that is away, and nothing is sent afterwards."""
    store = Breaking()
    client = Client(store=store.source())
    leases = [client.lock(f"name {number}", ttl=TTL).acquire() for number in range(20)]
    assert {lease.release() for lease in leases} == {Outcome.UNKNOWN}
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < TTL / 2
    tries = store.tries
    time.sleep(2.5)  # longer than the longest pause
    assert store.tries == tries


def test_an_error_that_lasts_is_not_repeated() -> None:
    """A store that refuses a release will refuse it again."""
    store = Breaking(StoreError("no permission"))
    with Client(store=store.source()) as client:
        assert client.lock("name", ttl=TTL).acquire().release() is Outcome.UNKNOWN
        assert client.lock("other", ttl=TTL).acquire().release() is Outcome.UNKNOWN
        assert store.tries == 2
