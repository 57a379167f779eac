"""A quorum of stores."""

import asyncio
import threading

import pytest

from holdfast import AsyncClient, Client
from holdfast.stores.memory import MemoryTable, memory_source
from holdfast.stores.quorum.store import QuorumStore, capabilities_of
from holdfast.stores.store import StoreSource


def source(count: int = 5) -> StoreSource:
    """Return a quorum of tables in memory."""
    nodes = [memory_source(MemoryTable(), f"memory {number}") for number in range(count)]
    return StoreSource("quorum", capabilities_of(nodes), lambda runtime: QuorumStore(runtime, nodes, count // 2 + 1))


def test_pairs() -> None:
    with Client(store=source()) as client:
        tokens = []
        for _ in range(50):
            with client.lock("name") as lease:
                tokens.append(lease.token)
        assert tokens == sorted(set(tokens))


def test_contenders() -> None:
    shared = source()
    inside = []
    seen = []

    def work() -> None:
        with Client(store=shared) as client:
            for _ in range(20):
                with client.lock("name", timeout=30) as lease:
                    inside.append(1)
                    seen.append((len(inside), lease.token))
                    inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert len(seen) == 160
    assert {count for count, _ in seen} == {1}
    tokens = [token for _, token in seen]
    assert tokens == sorted(set(tokens))


def test_async() -> None:
    async def run() -> None:
        async with AsyncClient(store=source()) as client:
            for _ in range(10):
                async with client.lock("name") as lease:
                    assert lease.token
    asyncio.run(run())
