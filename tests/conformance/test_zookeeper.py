"""ZooKeeper keeps every guarantee: one server, and an ensemble of three."""

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.ordered.store import WITH_CELLS
from tenure.stores.urls import store_source
from tenure_testing.conformance import StoreConformance
from tests.servers import ZooKeeperEnsemble, ZooKeeperServer


class TestServer(StoreConformance):
    """One server."""

    capabilities = WITH_CELLS

    @pytest.fixture
    def source(self, zookeeper_server: ZooKeeperServer) -> StoreSource:
        """Reach it, with locks below a path."""
        return store_source(f"{zookeeper_server.url}/conformance")


class TestEnsemble(StoreConformance):
    """Three servers."""

    capabilities = WITH_CELLS

    @pytest.fixture
    def source(self, zookeeper_ensemble: ZooKeeperEnsemble) -> StoreSource:
        """Reach any of them."""
        return store_source(zookeeper_ensemble.url)
