"""One PostgreSQL server keeps every guarantee, over every connection to it."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.postgresql import capabilities_of
from tenure.stores.postgresql.options import deployment_of
from tenure.stores.urls import store_source
from tenure_testing.conformance import StoreConformance
from tests.conformance.transport import TRANSPORT
from tests.postgresql.servers import PASSWORD, USER, TlsPostgres, tables_for
from tests.servers import Certificates, PgBouncer, PostgresServer

CAPABILITIES = capabilities_of(deployment_of(urlsplit("postgresql://localhost")))


class OtherWay(StoreConformance):
    """The checks for another connection to a server, with the default rules."""

    capabilities = CAPABILITIES
    checks = TRANSPORT


class TestServer(StoreConformance):
    """`postgresql://`."""

    capabilities = CAPABILITIES

    @pytest.fixture
    def source(self, postgres_server: PostgresServer) -> StoreSource:
        """Reach it by TCP."""
        return store_source(postgres_server.url)


class TestPooler(OtherWay):
    """A PgBouncer that gives each transaction one of two connections. No client can be notified through it."""

    checks = tuple(check for check in TRANSPORT if not check.notified)

    @pytest.fixture
    def source(self, pgbouncer: PgBouncer) -> StoreSource:
        """Reach the server through it."""
        return store_source(pgbouncer.url)


@pytest.fixture(scope="module")
def user_url(postgres_server: PostgresServer) -> str:
    """Have an administrator make the tables for a user; return the user's URL."""
    url = postgres_server.create_user(USER, PASSWORD)
    tables_for(postgres_server, USER, "conformance")
    return f"{url}?schema=conformance"


class TestUser(OtherWay):
    """A user with the least GRANTs, in a schema that an administrator made."""

    @pytest.fixture
    def source(self, user_url: str) -> StoreSource:
        """Reach the server as that user."""
        return store_source(user_url)


class TestSocket(OtherWay):
    """`postgresql:///database?host=/folder`."""

    @pytest.fixture
    def source(self, postgres_server: PostgresServer) -> StoreSource:
        """Reach the server by its Unix socket."""
        return store_source(socket_url(postgres_server))


def socket_url(server: PostgresServer) -> str:
    """Return the URL of the socket of a server."""
    host = f"{server.home.folder}&port={server.port}"
    return f"postgresql://tenure@/postgres?host={host}"


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsPostgres]:
    """Run a server whose clients use TLS."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with TlsPostgres(tmp_path_factory.mktemp("postgres-tls"), certificates) as server:
        yield server


class TestTls(OtherWay):
    """`?sslmode=verify-full`."""

    @pytest.fixture
    def source(self, tls_server: TlsPostgres) -> StoreSource:
        """Reach it by TLS, and check its certificate."""
        authority = tls_server.certificates.authority
        return store_source(f"{tls_server.url}?sslmode=verify-full&sslrootcert={authority}")
