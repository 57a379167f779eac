"""A table of DynamoDB keeps every guarantee: the emulator's, or the real one that TENURE_DYNAMODB_URL names."""

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.urls import store_source
from tests.conformance.test_rows import TestPolled


class TestTable(TestPolled):
    """`dynamodb://`."""

    @pytest.fixture
    def source(self, dynamodb_url: str) -> StoreSource:
        """Use a table that is there."""
        return store_source(dynamodb_url)


del TestPolled
