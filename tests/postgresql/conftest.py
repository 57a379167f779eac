"""The fixtures of the tests of the PostgreSQL store."""

import pytest

from tests import wrong_servers


@pytest.fixture
def closed_port() -> int:
    """Return a port where nobody listens."""
    return wrong_servers.closed_port()
