"""Groups of servers with replicas keep every guarantee."""

from collections.abc import Iterator

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.redis.deployment import Rules
from tenure.stores.redis.store import capabilities_of
from tenure.stores.urls import store_source
from tenure_testing.conformance import StoreConformance
from tests.conformance.transport import TRANSPORT
from tests.redis.servers import clean
from tests.servers import Cluster, SentinelGroup


class TestSentinels(StoreConformance):
    """`redis+sentinel://`: the server is the master of the group."""

    capabilities = capabilities_of(Rules())
    checks = TRANSPORT

    @pytest.fixture
    def source(self, redis_sentinel: SentinelGroup) -> Iterator[StoreSource]:
        """Make a client of the sentinels."""
        with clean(redis_sentinel.servers):
            yield store_source(redis_sentinel.url)


class TestCluster(StoreConformance):
    """`redis+cluster://`."""

    capabilities = capabilities_of(Rules(), clustered=True)

    @pytest.fixture
    def source(self, redis_cluster: Cluster) -> Iterator[StoreSource]:
        """Make a client of the nodes."""
        with clean(redis_cluster.nodes):
            yield store_source(redis_cluster.url)
