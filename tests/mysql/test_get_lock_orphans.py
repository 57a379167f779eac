"""Many acquisitions of locks without a table, through a proxy that swallows replies."""

from uuid import uuid4

import pytest

from tests.mysql.test_get_lock import acquire_through_a_bad_proxy
from tests.servers import MariaDbServer


@pytest.mark.parametrize("swallowed", [b"GET_LOCK", b"RELEASE_LOCK", b""])
def test_no_orphan_in_10000_acquisitions(mariadb_server: MariaDbServer, swallowed: bytes) -> None:
    """No swallowed reply of any kind leaves a lock behind, or lets two clients hold it."""
    acquire_through_a_bad_proxy(mariadb_server, uuid4().hex, swallowed, 10_000)
