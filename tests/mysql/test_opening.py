"""How a client begins: it makes the tables or finds them, and says in one sentence why it can't."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pymysql
import pytest

from tenure import AsyncClient, Client, StoreError
from tenure.stores.mysql import mysql_source
from tenure.stores.mysql.schema import ddl, grants
from tests.servers import MariaDbServer, RedisServer
from tests.servers.mariadb import PASSWORD, USER


@pytest.fixture
def database(mariadb_server: MariaDbServer) -> str:
    """Return the URL of a database that is empty."""
    return mariadb_server.create_database(f"db_{uuid4().hex[:12]}")


def use(url: str, name: str = "name") -> int:
    """Acquire and release a lock; return its token."""
    with Client(url, operation_timeout=20) as client, client.lock(name, timeout=20) as lease:
        return lease.token


def refusal(url: str, operation_timeout: float = 3) -> str:
    """Return why both a Client and an AsyncClient can't begin, which must be the same."""
    with Client(url, operation_timeout=operation_timeout) as client, pytest.raises(StoreError) as caught:
        client.lock("name", timeout=0).acquire()

    async def acquire() -> str:
        async with AsyncClient(url, operation_timeout=operation_timeout) as client:
            with pytest.raises(StoreError) as caught:
                await client.lock("name", timeout=0).acquire()
            return str(caught.value)

    other = asyncio.run(acquire())
    assert "hidden" not in str(caught.value) + other
    assert len(str(caught.value).split("; ")) == len(other.split("; "))
    return str(caught.value)


@pytest.fixture(scope="module")
def logs_statements(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    """Run a server that logs statements, and refuses what it calls unsafe updates and writes unless told otherwise."""
    options = ("--log-bin", "--binlog-format=STATEMENT", "--server-id=1")
    with MariaDbServer(tmp_path_factory.mktemp("mariadb"), options=options) as running:
        running.execute("SET GLOBAL sql_safe_updates = 1")
        yield running


def test_settings_of_a_server_do_not_matter_where_a_session_has_its_own(logs_statements: MariaDbServer) -> None:
    """A user who may say how its session is logged needs no other server."""
    logs_statements.execute(f"GRANT BINLOG ADMIN ON *.* TO '{USER}'@'%'")
    url = logs_statements.create_database("settings")
    logs_statements.execute("SET GLOBAL tx_read_only = 1")
    with Client(url, operation_timeout=20) as client, client.lock("name", ttl=30, timeout=20) as lease:
        lease.extend()
        with client.multilock(["a", "b"], timeout=20):
            assert client.counter("count").add(1) == 1
    logs_statements.execute("SET GLOBAL tx_read_only = 0")
    logs_statements.execute(f"REVOKE BINLOG ADMIN ON *.* FROM '{USER}'@'%'")
    assert "set its binlog_format to ROW or MIXED, or GRANT the user" in refusal(
        logs_statements.create_database("refused"), 20
    )


def test_ten_starters_make_the_tables_once(database: str) -> None:
    """Ten clients that start at once on an empty database all get their lock, one after another."""
    barrier = threading.Barrier(10)

    def start(_: int) -> int:
        barrier.wait()
        return use(database)

    with ThreadPoolExecutor(10) as threads:
        tokens = list(threads.map(start, range(10)))
    assert len(set(tokens)) == 10


def test_a_user_without_create_finds_the_tables(mariadb_server: MariaDbServer, database: str) -> None:
    """With the printed SQL, run by an administrator, a user of the least rights takes locks; before, it is told so."""
    name = database.rpartition("/")[2]
    user = f"u_{uuid4().hex[:12]}"
    url = mariadb_server.create_user(user, "hidden") + name
    assert "may not use the database" in refusal(url) or "tenure schema mysql" in refusal(url)
    mariadb_server.execute(f"GRANT SELECT ON `{name}`.* TO '{user}'@'%'")
    assert "tenure schema mysql" in refusal(url)
    with mariadb_server.connect(database=name) as connection, connection.cursor() as cursor:
        for statement in (ddl(name, "tenure_") + grants(name, "tenure_", user)).split(";"):
            if statement.strip():
                cursor.execute(statement)
    assert use(url) < use(url)


def test_what_is_wrong_is_said_in_one_sentence(mariadb_server: MariaDbServer) -> None:
    """A wrong password, an unknown database, and a port at which nobody listens."""
    assert "check the user and the password" in refusal(mariadb_server.url_for(USER, "hidden"))
    assert "the database" in refusal(mariadb_server.url_for(USER, PASSWORD, "missing"))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert "cannot connect" in refusal(f"mysql://app:hidden@127.0.0.1:{port}/db")
    assert "check the options ssl" in refusal(f"{mariadb_server.url}?ssl_verify_identity=true")


def test_another_kind_of_server_is_named(redis_server: RedisServer) -> None:
    """A server that waits for its client to speak first, as Redis and PostgreSQL do, is no MySQL server."""
    host, port = redis_server.address
    assert "did not greet as MySQL does" in refusal(f"mysql://app:hidden@{host}:{port}/db", operation_timeout=1)


def test_names_differ_by_their_bytes(database: str) -> None:
    """Case, spaces at the end, accents and NUL make another lock, whatever the collation of the database."""
    names = ["a", "A", "a ", "ä", "a\0", "a\\", "a'", "%s", "名"]
    with Client(database) as client:
        leases = [client.lock(name, timeout=0).acquire() for name in names]
        assert sorted(client.names()) == sorted(names)
        for lease in leases:
            lease.release()


def test_a_factory_of_the_other_form_is_refused(mariadb_server: MariaDbServer) -> None:
    """A factory of blocking connections serves no AsyncClient, and is told so."""
    host, port = mariadb_server.address

    async def acquire() -> None:
        source = mysql_source(lambda: pymysql.connect(host=host, port=port, user=USER, password=PASSWORD))
        async with AsyncClient(store=source) as client:
            with pytest.raises(StoreError, match="nothing to await"):
                await client.lock("name").acquire()

    asyncio.run(acquire())


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Keep what is logged."""
    with caplog.at_level(logging.WARNING, "tenure"):
        yield caplog


def test_a_server_that_may_lose_commits_is_named_once(
    mariadb_server: MariaDbServer, database: str, log: pytest.LogCaptureFixture
) -> None:
    """`innodb_flush_log_at_trx_commit` other than 1 is said once a client, and what it costs by the guard."""
    assert mariadb_server.execute("SELECT @@global.innodb_flush_log_at_trx_commit") != [(1,)]
    use(database)
    assert log.text.count("innodb_flush_log_at_trx_commit is") == 1
    assert "it grants nothing for max_ttl" in log.text
    use(f"{database}?guard=off")
    assert log.text.count("innodb_flush_log_at_trx_commit is") == 2
    assert "grants names again that are held" in log.text
