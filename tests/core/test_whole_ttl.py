"""A lease lasts as long as its ttl from its grant or hand-off on, however its holder got it."""

import asyncio
from collections.abc import Callable

import pytest

from simulation.redis.direct import DirectDeployment
from simulation.redis.server import Server
from tenure import AsyncClient
from tenure.contracts.store import StoreSource
from tenure.stores.memory import MemoryTable, memory_source
from tenure.stores.quorum import store as quorums
from tenure.stores.redis.deployment import Rules
from tenure.stores.redis.store import RedisStore, capabilities_of
from tests import virtual
from tests.hazards.helpers import disturbed

TTL = 60.0
LONG = 86_400.0


async def undisturbed(operation: str, done: bool) -> None:
    """Let every request through."""


def local() -> StoreSource:
    """Make a store whose requests are carried out by their callers."""
    return virtual.source()


def remote() -> StoreSource:
    """Make a store across a network."""
    return disturbed(virtual.source(), undisturbed, local=False)


def redis() -> StoreSource:
    """Make a Redis: the scripts of the package, in a simulated server."""
    server = Server("1" * 40, virtual.micros)
    deployment = DirectDeployment(Rules(max_ttl=LONG), lambda: server)
    return StoreSource("redis", capabilities_of(deployment.rules), lambda runtime: RedisStore(deployment, runtime))


def quorum() -> StoreSource:
    """Make a quorum of three."""
    nodes = [memory_source(MemoryTable(virtual.micros)) for _ in range(3)]
    return StoreSource("quorum", quorums.capabilities_of(nodes), lambda runtime: quorums.QuorumStore(runtime, nodes, 2))


@pytest.mark.parametrize("make", [local, remote, redis, quorum])
def test_a_body_that_blocks_the_loop_keeps_its_lease(make: Callable[[], StoreSource]) -> None:
    """Nothing is renewed while an asyncio body blocks the loop: the lease lives on, granted at once or handed off."""

    async def main() -> None:
        source = make()
        async with AsyncClient(store=source) as client, AsyncClient(store=source) as other:
            async with client.lock("name", ttl=TTL) as lease:
                assert lease.remaining() >= 0.95 * TTL
                virtual.stand_still(0.9 * TTL)
                lease.check()
                waiting = asyncio.create_task(other.lock("name", ttl=TTL).acquire(timeout=TTL))
                while not (await client.inspect("name")).waiters:  # noqa: ASYNC110 - it is in the store
                    await asyncio.sleep(0.01)
            handed_on = await waiting
            virtual.stand_still(0.9 * TTL)
            handed_on.check()
            assert await client.lock("name", ttl=TTL).try_acquire() is None
            await handed_on.release()

    virtual.run(main)


def test_a_redis_keeps_a_name_that_is_handed_off_for_long() -> None:
    """A name that is handed off for longer than its keys would last exists until the lease is over."""

    async def main() -> None:
        source = redis()
        async with AsyncClient(store=source) as client, AsyncClient(store=source) as other:
            lease = await client.lock("name", ttl=TTL).acquire()
            waiting = asyncio.create_task(other.lock("name", ttl=LONG).acquire())
            while not (await client.inspect("name")).waiters:  # noqa: ASYNC110 - it is in the store
                await asyncio.sleep(0.01)
            await lease.release()
            handed_on = await waiting
            virtual.stand_still(0.9 * LONG)
            handed_on.check()
            assert await client.lock("name", ttl=TTL).try_acquire() is None

    virtual.run(main)
