"""etcd keeps every guarantee, one server as well as an ensemble."""

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.ordered.store import WITH_CELLS
from tenure.stores.urls import store_source
from tenure_testing.conformance import StoreConformance
from tests.servers import EtcdEnsemble, EtcdServer


class TestServer(StoreConformance):
    """`etcd://`."""

    capabilities = WITH_CELLS

    @pytest.fixture
    def source(self, etcd_server: EtcdServer) -> StoreSource:
        """Reach one server."""
        return store_source(etcd_server.url)


class TestEnsemble(StoreConformance):
    """Three servers."""

    capabilities = WITH_CELLS

    @pytest.fixture
    def source(self, etcd_ensemble: EtcdEnsemble) -> StoreSource:
        """Reach any of them, with locks below a prefix."""
        return store_source(f"{etcd_ensemble.url}/conformance")
