"""MySQL without a table keeps every guarantee that it claims."""

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.urls import store_source
from tenure_testing.conformance import StoreConformance
from tests.servers import MariaDbServer


class TestGetLock(StoreConformance):
    """`mysql://...?mode=get_lock`."""

    capabilities = store_source("mysql://localhost/locks?mode=get_lock").capabilities

    @pytest.fixture
    def source(self, mariadb_server: MariaDbServer) -> StoreSource:
        """Reach the server."""
        return store_source(f"{mariadb_server.url}?mode=get_lock&connections=32")
