"""A body that ends because its lease is lost waits for no store: the lost lease is released in the background."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tenure import AsyncClient, Client, LeaseLost
from tenure.contracts.messages import ReleaseRequest
from tenure.contracts.store import StoreSource
from tenure.core.lease import CoreLease
from tenure.outcome import Outcome
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests.hazards.helpers import TEST_TIMEOUT, eventually

KINDS: dict[str, Callable[[Any], Any]] = {
    "lock": lambda client: client.lock("a"),
    "reentrant": lambda client: client.lock("a", reentrant=True),
    "several": lambda client: client.multilock(["a", "b"]),
    "several as one": lambda client: client.multilock(["a", "b"]).acquire(),
    "one": lambda client: client.lock("a").acquire(),
}


class Held:
    """A store that delays the answers to releases until a test allows them."""

    def __init__(self) -> None:
        """Use a table of its own."""
        self.table = MemoryTable()
        self.asked: list[str] = []
        self.answers = threading.Event()

    def source(self) -> StoreSource:
        """Return the source of such stores."""
        held = self

        class Holding(MemoryStore):
            async def release(self, release: ReleaseRequest, until: float) -> Outcome:
                held.asked.append(release.name)
                while not held.answers.is_set():
                    await self._runtime.sleep(0.005)
                return await super().release(release, until)

        return StoreSource("memory://", MemoryStore.capabilities, lambda runtime: Holding(runtime, held.table))


def leases(lease: Any) -> list[CoreLease]:  # noqa: ANN401 - one of several kinds
    """Return the parts of a lease."""
    group = getattr(lease, "_group", None)
    return list(group.leases) if group else [lease._core]


@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_leaves_at_once(kind: str) -> None:
    """LeaseLost is raised while the store is still silent; the release is carried out all the same."""
    store = Held()
    with Client(store=store.source()) as client:
        with pytest.raises(LeaseLost), KINDS[kind](client) as lease:
            leases(lease)[0].lose("was lost")
        assert client.names() != []
        store.answers.set()
        eventually(lambda: client.names() == [], "it is released")
    assert sorted(store.asked) == sorted({"a", *(["b"] if "several" in kind else [])})


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_leaves_at_once(kind: str) -> None:
    """The same in asyncio, where the body is cancelled."""
    store = Held()

    async def body(client: AsyncClient) -> None:
        async with KINDS[kind](client) as lease:
            leases(lease)[0].lose("was lost")
            await asyncio.sleep(60.0)

    async def main() -> None:
        others = memory_source(store.table)
        async with AsyncClient(store=store.source()) as client, AsyncClient(store=others) as other:
            with pytest.raises(LeaseLost):
                await body(client)
            assert await client.names() != []
            store.answers.set()
            async with other.multilock(["a", "b"], timeout=TEST_TIMEOUT):
                pass

    asyncio.run(main())
    assert sorted(store.asked) == sorted({"a", *(["b"] if "several" in kind else [])})


def test_a_lease_that_was_released_in_the_body_is_not_released_again() -> None:
    """The explicit release gets its answer, and is not repeated at the end of the body."""
    store = Held()
    store.answers.set()
    with Client(store=store.source()) as client:
        lease = client.lock("a").acquire()
        lease._core.lose("was lost")
        lease.release()
        with pytest.raises(LeaseLost), lease:
            pass
        assert not client._session or not client._session.background_releases._workers
    assert store.asked == ["a"]


def test_all_leases_of_a_reservation_end_before_it_is_released() -> None:
    """Each lease of one thread ends by itself; the last of them releases."""
    store = Held()
    with Client(store=store.source()) as client:
        lock = client.lock("a", reentrant=True)
        outer = lock.acquire()
        with pytest.raises(LeaseLost), lock:
            outer._core.lose("was lost")
        assert store.asked == []
        store.answers.set()
        outer.release()
    assert store.asked == ["a"]
