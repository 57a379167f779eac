"""The memory store keeps every guarantee."""

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tenure_testing.conformance import StoreConformance


class TestMemory(StoreConformance):
    """`memory://`."""

    capabilities = MemoryStore.capabilities

    @pytest.fixture
    def source(self) -> StoreSource:
        """Return a table that only this test uses."""
        return memory_source(MemoryTable())
