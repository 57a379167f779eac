"""PostgreSQL without a table keeps every guarantee that it claims, with a sequence of tokens and without one."""

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.urls import store_source
from tenure_testing.conformance import StoreConformance
from tests.servers import PostgresServer

URL = "postgresql://localhost/?mode=advisory&connections=32"


class TestAdvisory(StoreConformance):
    """`postgresql://...?mode=advisory`, without tokens."""

    capabilities = store_source(URL).capabilities

    @pytest.fixture
    def source(self, postgres_server: PostgresServer) -> StoreSource:
        """Reach the server."""
        return store_source(f"{postgres_server.url}?mode=advisory&connections=32")


class TestAdvisoryWithSequence(StoreConformance):
    """`postgresql://...?mode=advisory&sequence=...`, with tokens."""

    capabilities = store_source(f"{URL}&sequence=tokens").capabilities

    @pytest.fixture
    def source(self, postgres_server: PostgresServer) -> StoreSource:
        """Reach the server, with a sequence."""
        postgres_server.execute("CREATE SEQUENCE IF NOT EXISTS conformance_tokens")
        return store_source(f"{postgres_server.url}?mode=advisory&connections=32&sequence=conformance_tokens")
