"""MySQL keeps every guarantee, by a URL as well as by connections that the user makes."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import asyncmy
import pymysql
import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.mysql import capabilities_of, mysql_source
from tenure.stores.mysql.options import MySqlDeployment
from tenure.stores.urls import store_source
from tenure_testing.conformance import StoreConformance
from tests.conformance.transport import TRANSPORT
from tests.servers import MariaDbServer


class TestUrl(StoreConformance):
    """`mysql://`."""

    capabilities = capabilities_of(MySqlDeployment([]))

    @pytest.fixture
    def source(self, mariadb_server: MariaDbServer) -> StoreSource:
        """Reach one server."""
        return store_source(mariadb_server.url)


class TestFactory(StoreConformance):
    """Connections that the user makes, each of which takes one statement at a time."""

    capabilities = capabilities_of(MySqlDeployment([]))
    checks = tuple(check for check in TRANSPORT if not check.notified)

    @pytest.fixture
    def source(self, mariadb_server: MariaDbServer) -> StoreSource:
        """Make connections of PyMySQL; in an event loop, of asyncmy."""
        parts = urlsplit(mariadb_server.url)

        def connect() -> object:
            keywords: dict[str, Any] = {
                "host": parts.hostname,
                "port": parts.port,
                "user": parts.username,
                "password": parts.password,
                "database": parts.path.strip("/"),
            }
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return pymysql.Connection(**keywords)
            return asyncmy.connect(**keywords)  # pyright: ignore[reportUnknownMemberType] - it has no types

        return mysql_source(connect, prefix="factory_")
