"""memcached keeps every guarantee that it claims."""

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.memcached.store import CAPABILITIES
from tenure.stores.urls import store_source
from tenure_testing.conformance import StoreConformance
from tests.servers import MemcachedServer


class TestServer(StoreConformance):
    """`memcached://`."""

    capabilities = CAPABILITIES

    @pytest.fixture
    def source(self, memcached_server: MemcachedServer) -> StoreSource:
        """Reach one server."""
        return store_source(memcached_server.url)
