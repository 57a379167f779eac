"""Tokens of a server whose clock is centuries ahead."""

import asyncio

from simulation.redis.direct import DirectDeployment
from simulation.redis.server import Server
from tenure import AsyncClient
from tenure.contracts.store import StoreSource
from tenure.stores.redis.deployment import Rules
from tenure.stores.redis.store import RedisStore, capabilities_of
from tests import virtual

TTL = 30.0


def test_tokens_stay_exact_and_increase_while_a_clock_is_centuries_ahead() -> None:
    """Whoever grants, an acquire or a release: above 2**53 two tokens would be the same number to Lua."""
    ahead = [0]
    server = Server("1" * 40, lambda: virtual.micros() + ahead[0])
    deployment = DirectDeployment(Rules(), lambda: server)
    source = StoreSource("redis", capabilities_of(deployment.rules), lambda runtime: RedisStore(deployment, runtime))
    tokens: list[int] = []

    async def main() -> None:
        async with AsyncClient(store=source) as client, AsyncClient(store=source) as other:
            for ahead[0] in (0, 2**53, 2**53, 0):
                async with client.lock("name", ttl=TTL) as lease:
                    tokens.append(lease.token)
                    waiting = asyncio.create_task(other.lock("name", ttl=TTL).acquire(timeout=TTL))
                    while not (await client.inspect("name")).waiters:  # noqa: ASYNC110 - it is in the store
                        await asyncio.sleep(0.01)
                handed_on = await waiting
                tokens.append(handed_on.token)
                await client.revoke("name", force=True)

    virtual.run(main)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 8
    assert tokens[-1] < 2**53
