"""Servers that stand in for each other keep every guarantee."""

from collections.abc import Iterator

import pytest

from holdfast.stores.redis.deployment import Rules
from holdfast.stores.redis.store import capabilities_of
from holdfast.stores.store import StoreSource
from holdfast.stores.urls import store_source
from holdfast.testing.conformance import StoreConformance
from holdfast.testing.servers import Cluster, ClusterNode, SentinelGroup
from tests.redis.servers import assert_mortal


@pytest.fixture(scope="module", autouse=True)
def nothing_immortal(redis_sentinel: SentinelGroup, redis_cluster: Cluster) -> Iterator[None]:
    """After all tests, look at what is left."""
    yield
    assert_mortal(*redis_sentinel.servers, *filter(ClusterNode.is_master, redis_cluster.nodes))


class TestSentinels(StoreConformance):
    """`redis+sentinel://`."""

    capabilities = capabilities_of(Rules())

    @pytest.fixture
    def source(self, redis_sentinel: SentinelGroup) -> StoreSource:
        """Ask the sentinels."""
        return store_source(redis_sentinel.url)


class TestCluster(StoreConformance):
    """`redis+cluster://`."""

    capabilities = capabilities_of(Rules())

    @pytest.fixture
    def source(self, redis_cluster: Cluster) -> StoreSource:
        """Ask the nodes."""
        return store_source(redis_cluster.url)
