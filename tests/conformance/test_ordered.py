"""A store on a directory keeps every guarantee, on any directory."""

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.ordered.store import CAPABILITIES
from tenure_testing.conformance import StoreConformance
from tests.ordered.model import model_source


class TestModel(StoreConformance):
    """An ensemble in memory."""

    capabilities = CAPABILITIES

    @pytest.fixture
    def source(self) -> StoreSource:
        """Make one."""
        return model_source()
