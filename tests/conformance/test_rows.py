"""A table of a user's keeps every guarantee."""

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.rows import row_source
from tenure.stores.rows.store import CAPABILITIES
from tenure_testing.conformance import CHECKS, StoreConformance
from tests.rows.tables import AsyncDictTable, DictTable, Rows, WatchedDictTable


class TestPolled(StoreConformance):
    """A table that tells of no changes, and is written for threads alone."""

    capabilities = CAPABILITIES
    checks = tuple(check for check in CHECKS if not check.notified)

    @pytest.fixture
    def source(self) -> StoreSource:
        """Keep rows in a dict."""
        rows = Rows()
        return row_source("a dict", lambda: DictTable(rows), poll=0.02)


class TestAwaited(TestPolled):
    """A table for each form of the API."""

    @pytest.fixture
    def source(self) -> StoreSource:
        """Keep rows in a dict."""
        rows = Rows()
        return row_source("a dict", lambda: DictTable(rows), lambda: AsyncDictTable(rows), poll=0.02)


class TestWatched(StoreConformance):
    """A table that tells of changes."""

    capabilities = CAPABILITIES

    @pytest.fixture
    def source(self) -> StoreSource:
        """Keep rows in a dict."""
        rows = Rows()
        return row_source("a dict", lambda: WatchedDictTable(rows))
