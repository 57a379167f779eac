"""A folder on a shared volume keeps every guarantee."""

from pathlib import Path

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.urls import store_source
from tests.conformance.test_rows import TestPolled


class TestFolder(TestPolled):
    """`file:///path`."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> StoreSource:
        """Use a folder of this test alone."""
        return store_source(f"file://{tmp_path}")


del TestPolled
