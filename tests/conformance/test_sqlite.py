"""The embedded store keeps every guarantee."""

from pathlib import Path

import pytest

from holdfast.stores.sqlite import sqlite_source
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.store import StoreSource
from holdfast.testing.conformance import StoreConformance


class TestSqlite(StoreConformance):
    """`sqlite:///path`."""

    capabilities = SqliteStore.capabilities

    @pytest.fixture
    def source(self, tmp_path: Path) -> StoreSource:
        """Return a lock file that this test alone uses."""
        return sqlite_source(tmp_path / "locks.db")
