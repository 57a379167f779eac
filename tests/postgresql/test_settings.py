"""Settings of a database or a role that would keep locks from working."""

from uuid import uuid4

import pytest

from tenure import Client, StoreError, UsageError
from tests.servers import PgBouncer, PostgresServer


@pytest.fixture
def database() -> str:
    """Return the name of a database of this test's own."""
    return f"settings_{uuid4().hex[:12]}"


def test_transactions_that_only_read_by_default_write(
    postgres_server: PostgresServer, pgbouncer: PgBouncer, database: str
) -> None:
    """A session says that its transactions write. Behind a pooler it says nothing, and the error says what to do."""
    url = postgres_server.create_database(database)
    postgres_server.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with Client(url) as client:
        lease = client.lock("name", ttl=30, timeout=20).acquire()
        assert client.lock("name").try_acquire() is None
        lease.extend()
        with client.multilock(["a", "b"], timeout=20):
            lease.release()
    pooled = f"{pgbouncer.url.rpartition('/')[0]}/{database}"
    with Client(pooled, retry_for=0) as client, pytest.raises(StoreError, match="default_transaction_read_only"):
        client.lock("name").acquire()


def test_a_name_that_the_encoding_of_a_database_lacks_is_refused(
    postgres_server: PostgresServer, database: str
) -> None:
    """It is the name's fault and not the server's, so nothing is tried again; other names go on."""
    postgres_server.execute(f"CREATE DATABASE {database} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    url = postgres_server.url.rpartition("/")[0] + f"/{database}"
    with Client(url) as client:
        for ask in (client.lock("\u4e16", timeout=20).acquire, lambda: client.inspect("\u4e16")):
            with pytest.raises(UsageError, match="cannot hold a character of the name"):
                ask()
        with client.lock("Stra\u00dfe", timeout=20):
            assert client.names() == ["Stra\u00dfe"]
