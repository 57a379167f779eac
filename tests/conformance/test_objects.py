"""A bucket keeps every guarantee: of a real server of S3, and in the memory of obstore."""

import pytest
from obstore.store import MemoryStore

from tenure.contracts.store import StoreSource
from tenure.stores.objects import objects_source
from tenure.stores.urls import store_source
from tests.conformance.test_rows import TestPolled
from tests.servers import SeaweedServer


class TestMemory(TestPolled):
    """A bucket in memory."""

    @pytest.fixture
    def source(self) -> StoreSource:
        """Use a bucket of this test alone."""
        return objects_source(MemoryStore(), poll=0.05)


class TestServer(TestPolled):
    """`s3://`."""

    @pytest.fixture
    def source(self, seaweed_server: SeaweedServer) -> StoreSource:
        """Reach a server of S3."""
        return store_source(seaweed_server.url)


del TestPolled
