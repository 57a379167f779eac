"""MySQL keeps every guarantee, by a URL as well as by connections of the user's."""

import pytest

from holdfast.contracts.store import StoreSource
from holdfast.stores.mysql import capabilities_of
from holdfast.stores.mysql.options import MySqlDeployment
from holdfast.stores.urls import store_source
from holdfast.testing.conformance import StoreConformance
from tests.conformance.transport import TRANSPORT
from tests.servers import MariaDbServer


class TestMySql(StoreConformance):
    """`mysql://`."""

    capabilities = capabilities_of(MySqlDeployment([]))

    @pytest.fixture
    def source(self, mariadb_server: MariaDbServer) -> StoreSource:
        """Reach one server."""
        return store_source(mariadb_server.url)


class TestPolling(StoreConformance):
    """`mysql://...?notify=off`: no client is notified, and all of them poll."""

    capabilities = capabilities_of(MySqlDeployment([]))
    checks = tuple(check for check in TRANSPORT if check.name != "holder_is_notified_of_a_revocation_request_once")

    @pytest.fixture
    def source(self, mariadb_server: MariaDbServer) -> StoreSource:
        """Reach one server, and poll."""
        return store_source(f"{mariadb_server.url}?notify=off&prefix=polling_")
