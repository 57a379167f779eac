"""NATS keeps every guarantee, one server as well as a cluster."""

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.rows.store import CAPABILITIES
from tenure.stores.urls import store_source
from tenure_testing.conformance import StoreConformance
from tests.servers import NatsCluster, NatsServer


class TestServer(StoreConformance):
    """`nats://`."""

    capabilities = CAPABILITIES

    @pytest.fixture
    def source(self, nats_server: NatsServer) -> StoreSource:
        """Reach one server."""
        return store_source(nats_server.url)


class TestCluster(StoreConformance):
    """Three servers."""

    capabilities = CAPABILITIES

    @pytest.fixture
    def source(self, nats_cluster: NatsCluster) -> StoreSource:
        """Reach any of them."""
        return store_source(f"{nats_cluster.url}/conformance")
