"""memcached keeps every guarantee that it claims."""

import pytest

from holdfast.contracts.store import StoreSource
from holdfast.stores.memcached.store import CAPABILITIES
from holdfast.stores.urls import store_source
from holdfast.testing.conformance import StoreConformance
from tests.servers import MemcachedServer


class TestServer(StoreConformance):
    """`memcached://`."""

    capabilities = CAPABILITIES

    @pytest.fixture
    def source(self, memcached_server: MemcachedServer) -> StoreSource:
        """Reach one server."""
        return store_source(memcached_server.url)
