"""A store on a directory keeps every guarantee, on any directory."""

import pytest

from holdfast.contracts.store import StoreSource
from holdfast.stores.ordered.store import CAPABILITIES
from holdfast.testing.conformance import StoreConformance
from tests.ordered.model import model_source


class TestModel(StoreConformance):
    """An ensemble in memory."""

    capabilities = CAPABILITIES

    @pytest.fixture
    def source(self) -> StoreSource:
        """Make one."""
        return model_source()
