"""A client of redis-py reaches the same servers and works as well, each client in its form of the API."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.redis.deployment import Rules
from tenure.stores.redis.store import capabilities_of
from tenure.stores.urls import store_source
from tenure_testing.conformance import StoreConformance
from tests.conformance.transport import TRANSPORT
from tests.redis.servers import clean
from tests.servers import Cluster, RedisServer, SentinelGroup

redis: Any = import_module("redis")  # so that type checkers don't take tests/redis for it
redis_asyncio: Any = import_module("redis.asyncio")


class BlockingConformance(StoreConformance):
    """The checks of the connection, for threads."""

    capabilities = capabilities_of(Rules())
    checks = TRANSPORT
    forms = ("threads",)


class AsyncConformance(StoreConformance):
    """The checks of the connection, for asyncio."""

    capabilities = capabilities_of(Rules())
    checks = TRANSPORT
    forms = ("asyncio",)


class TestRedis(BlockingConformance):
    """`redis.Redis`."""

    @pytest.fixture
    def source(self, redis_server: RedisServer) -> Iterator[StoreSource]:
        """Give the client instead of a URL."""
        with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
            yield store_source(client)


class TestAsyncRedis(AsyncConformance):
    """`redis.asyncio.Redis`."""

    @pytest.fixture
    def source(self, redis_server: RedisServer) -> StoreSource:
        """Give the client instead of a URL. It is never connected, so it need not be closed."""
        return store_source(redis_asyncio.Redis.from_url(redis_server.url, protocol=2))


class TestMaster(BlockingConformance):
    """`redis.sentinel.Sentinel.master_for`."""

    @pytest.fixture
    def source(self, redis_sentinel: SentinelGroup) -> Iterator[StoreSource]:
        """Give the client instead of a URL."""
        sentinel = redis.Sentinel(redis_sentinel.addresses)
        with clean(redis_sentinel.servers), sentinel.master_for(redis_sentinel.service) as client:
            yield store_source(client)


class TestAsyncMaster(AsyncConformance):
    """`redis.asyncio.sentinel.Sentinel.master_for`."""

    @pytest.fixture
    def source(self, redis_sentinel: SentinelGroup) -> Iterator[StoreSource]:
        """Give the client instead of a URL."""
        sentinel = redis_asyncio.Sentinel(redis_sentinel.addresses)
        with clean(redis_sentinel.servers):
            yield store_source(sentinel.master_for(redis_sentinel.service))


class TestRedisCluster(BlockingConformance):
    """`redis.RedisCluster`."""

    capabilities = capabilities_of(Rules(), clustered=True)

    @pytest.fixture
    def source(self, redis_cluster: Cluster) -> Iterator[StoreSource]:
        """Give the client instead of a URL."""
        host, port = redis_cluster.addresses[0]
        with clean(redis_cluster.nodes), redis.RedisCluster(host=host, port=port) as client:
            yield store_source(client)


class TestAsyncRedisCluster(AsyncConformance):
    """`redis.asyncio.RedisCluster`."""

    capabilities = capabilities_of(Rules(), clustered=True)

    @pytest.fixture
    def source(self, redis_cluster: Cluster) -> Iterator[StoreSource]:
        """Give the client instead of a URL."""
        host, port = redis_cluster.addresses[0]
        with clean(redis_cluster.nodes):
            yield store_source(redis_asyncio.RedisCluster(host=host, port=port))
