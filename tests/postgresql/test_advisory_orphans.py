"""Many acquisitions of locks without a table, through a proxy that swallows replies."""

import pytest

from tests.postgresql.test_advisory import acquire_through_a_bad_proxy
from tests.servers import PostgresServer


@pytest.mark.parametrize("swallowed", [b"try_lock", b"unlock", b""])
def test_no_orphan_in_10000_acquisitions(postgres_server: PostgresServer, swallowed: bytes) -> None:
    """No swallowed reply of any kind leaves a lock behind, or lets two clients hold it."""
    acquire_through_a_bad_proxy(postgres_server, swallowed, 10_000)
