"""A guard refuses what it could not guard, with one sentence that says what to do, and leaves the connection usable."""

import asyncio
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pymysql
import pymysql.cursors
import pytest
import sqlalchemy
from psycopg.rows import class_row
from sqlalchemy.orm import Session

import tenure
from tenure import Lease, LeaseLost, StaleTokenError, UsageError
from tenure.fence import FENCES
from tenure.fencing.schema import fences_grants
from tests.fencing.conftest import database_of
from tests.fencing.databases import Database


@pytest.fixture
def lease(account: str) -> Iterator[Lease]:
    """Return a lease of a lock in memory."""
    with tenure.Client(f"memory://{account}") as client, client.lock(account, ttl=120) as lease:
        yield lease


def refusal(lease: Lease, connection: Any, **options: Any) -> str:  # noqa: ANN401 - of any driver
    """Return the message of the refusal."""
    with pytest.raises(UsageError) as refused:
        lease.guard(connection, **options)
    return str(refused.value)


AUTOCOMMIT: dict[str, dict[str, object]] = {
    "sqlite": {"isolation_level": None},
    "postgresql": {"autocommit": True},
    "mariadb": {"autocommit": True},
}


def test_a_connection_in_autocommit_mode_is_refused(lease: Lease, database: Database) -> None:
    """But not in a transaction that was begun over it."""
    connection = database.connect(**AUTOCOMMIT[database.name])
    assert "autocommit" in refusal(lease, connection)
    assert lease.name not in {str(name) for name in database.fences()}
    cursor = connection.cursor()
    cursor.execute("BEGIN")
    lease.guard(connection)
    cursor.execute("COMMIT")
    assert lease.token in database.fences().values()
    connection.close()


@pytest.mark.parametrize("options", [{"isolation_level": "AUTOCOMMIT"}, {}], ids=["of the engine", "of the connection"])
def test_autocommit_of_sqlalchemy_is_refused(lease: Lease, database: Database, options: dict[str, Any]) -> None:
    """Whoever has chosen it."""
    engine = sqlalchemy.create_engine(database.url(), **options)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert "autocommit" in refusal(lease, connection)
    with engine.connect() as connection:
        if options:
            assert "autocommit" in refusal(lease, connection)
        else:
            lease.guard(connection)
    engine.dispose()


def test_a_savepoint_of_sqlalchemy_is_refused(lease: Lease, database: Database) -> None:
    """Its rollback would take the fence back, and leave the transaction unguarded."""
    engine = sqlalchemy.create_engine(database.url())
    with Session(engine) as session:
        with session.begin_nested():
            assert "savepoint" in refusal(lease, session)
        lease.guard(session)
        session.commit()
    engine.dispose()


def read_only(database: Database) -> Any:  # noqa: ANN401 - of any driver
    """Return a connection whose transactions cannot write."""
    connection = database.connect()
    if database.name == "sqlite":
        connection.execute("PRAGMA query_only = ON")
    elif database.name == "postgresql":
        connection.read_only = True
    else:
        connection.cursor().execute("SET SESSION TRANSACTION READ ONLY")
    return connection


def test_a_read_only_transaction_is_refused(lease: Lease, database: Database) -> None:
    """The driver's own error is the cause."""
    connection = read_only(database)
    with pytest.raises(UsageError, match="read-only") as refused:
        lease.guard(connection)
    assert refused.value.__cause__ is not None
    connection.close()


def test_a_missing_table_is_refused_with_the_statement_that_makes_it(lease: Lease, database: Database) -> None:
    """The statement of the message makes it, and then the guard works."""
    table = f"fences_{abs(hash(lease.name))}"
    connection = database.connect()
    message = refusal(lease, connection, table=table)
    assert f"tenure schema {database.dialect}" in message
    connection.rollback()
    database.execute(message.partition(" prints: ")[2])
    lease.guard(connection, table=table)
    connection.commit()
    assert list(database.fences(table).values()) == [lease.token]
    connection.close()


PASSWORD = "a-secret"  # noqa: S105 - of a server of this test


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_a_user_without_the_rights_is_told_which(
    name: str, lease: Lease, request: pytest.FixtureRequest, tmp_path: Path, account: str
) -> None:
    """And the statement of `tenure schema` gives them, and no more than is needed."""
    database = database_of(name, request, tmp_path)
    user = f"user{account[-12:]}"
    server = request.getfixturevalue("postgres_server" if name == "postgresql" else "mariadb_server")
    server.create_user(user, PASSWORD)
    if name == "postgresql":
        connection: Any = psycopg.connect(server.url_for(user, PASSWORD))
    else:
        server.execute(f"GRANT SELECT ON accounts TO '{user}'@'%'")
        connection = database.connect(user=user, password=PASSWORD)
    assert "SELECT, INSERT and UPDATE" in refusal(lease, connection)
    connection.rollback()
    server.execute(fences_grants(database.dialect, FENCES, user))
    lease.guard(connection)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("other", [None, "sqlite:///data.db", object(), 7])
def test_what_is_no_connection_is_refused(lease: Lease, other: object) -> None:
    """The message lists what is one."""
    assert "psycopg" in refusal(lease, other)


def test_an_engine_is_refused(lease: Lease, database: Database) -> None:
    """It has no transaction."""
    engine = sqlalchemy.create_engine(database.url())
    assert "Connection" in refusal(lease, engine)
    engine.dispose()


def test_another_database_is_refused(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names it, and those for which there are statements."""
    engine = sqlalchemy.create_engine("sqlite://")
    monkeypatch.setattr(engine.dialect, "name", "oracle")
    with engine.connect() as connection:
        assert "'oracle'" in refusal(lease, connection)
    engine.dispose()


def _as_class(mock: Mock, kind: type) -> object:
    """Return an object of a class, whose attributes are those of a mock."""

    def attribute(_self: object, name: str) -> object:
        found: object = getattr(mock, name)
        return found

    def initialize(_self: object) -> None:
        pass

    made: object = type("Made", (kind,), {"__init__": initialize, "__getattribute__": attribute})()
    return made


@pytest.mark.parametrize("table", ["", "a b", "a.b.c", "1a", "a;--", "ä", 'a"', "a.", ".a", "a\n", 7])
def test_a_table_that_is_no_identifier_is_refused(lease: Lease, table: object) -> None:
    """Nothing is sent."""
    with sqlite3.connect(":memory:") as connection:
        assert repr(table) in refusal(lease, connection, table=table)
        assert not connection.in_transaction
    connection.close()


def test_a_lease_that_is_over_sends_nothing(account: str) -> None:
    """The first thing a guard does is to check the lease."""
    with tenure.Client(f"memory://{account}") as client:
        with client.lock(account) as lease:
            pass
        connection = sqlite3.connect(":memory:")
        with pytest.raises(LeaseLost):
            lease.guard(connection)
        assert not connection.in_transaction
        connection.close()


def test_a_store_without_tokens_has_no_guards(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that does not grow would refuse nobody."""
    capabilities = Mock(tokens=False)
    monkeypatch.setattr(lease._session.store, "capabilities", capabilities, raising=False)
    connection = sqlite3.connect(":memory:")
    assert "no fencing token" in refusal(lease, connection)
    connection.close()


def test_the_form_of_the_connection_must_be_that_of_the_client(lease: Lease, account: str) -> None:
    """A blocking connection would block the event loop, and an asyncio one has no loop."""

    async def main() -> str:
        async with tenure.AsyncClient(f"memory://{account}-asyncio") as client, client.lock(account) as other:
            connection: Any = sqlite3.connect(":memory:")
            with pytest.raises(UsageError) as refused:
                await other.guard(connection)
            connection.close()
            return str(refused.value)

    assert "AsyncClient" in asyncio.run(main())
    assert "AsyncClient" in refusal(lease, _as_class(Mock(), psycopg.AsyncConnection))


def test_without_a_connection_a_guard_is_that_of_etcd(lease: Lease) -> None:
    """The message says what to do with other stores."""
    with pytest.raises(UsageError, match="SQL database, give guard\\(\\) the connection"):
        lease.guard()


@dataclass
class Money:
    """A row as some user wants it."""

    value: int


def money_from(_cursor: object, row: tuple[int]) -> Money:
    """Make a row of a SQLite cursor."""
    return Money(*row)


def test_the_user_may_have_rows_and_cursors_of_any_kind(
    lease: Lease, request: pytest.FixtureRequest, tmp_path: Path, account: str
) -> None:
    """A guard uses none of them."""
    with database_of("postgresql", request, tmp_path).connect(row_factory=class_row(Money)) as first:
        first.cursor_factory = psycopg.RawCursor
        lease.guard(first)
    second = database_of("mariadb", request, tmp_path).connect(cursorclass=pymysql.cursors.SSDictCursor)
    lease.guard(second)
    second.close()
    third = database_of("sqlite", request, tmp_path).connect()
    third.row_factory = money_from
    lease.guard(third)
    third.close()


def test_the_name_of_a_fence_has_the_namespace(database: Database, account: str) -> None:
    """So programs that share a database share no fences by accident, if they share no locks."""
    with tenure.Client(f"memory://{account}", namespace="shop") as client, client.lock(account) as lease:
        connection = database.connect()
        lease.guard(connection)
        connection.commit()
        connection.close()
    stored = f"shop:{account}"
    assert database.fences()[stored.encode() if database.name == "mariadb" else stored] == lease.token


NAMES = [
    "a",
    "a ",
    "A",
    "á",
    "a\u0301",
    "a\0",
    "a\\0",
    "a\\",
    "a%s",
    "a'",
    'a"',
    "a:b",
    "a{name}",
    "\U0001f600",
    "a" * 500,
]


def test_names_that_differ_have_fences_that_differ(database: Database, account: str) -> None:
    """Whatever case, accents, spaces at the end or NUL mean to the database."""
    with tenure.Client(f"memory://{account}-1") as early, tenure.Client(f"memory://{account}-2") as late:
        leases = {name: early.lock(account[:11] + name).acquire() for name in NAMES}
        for name, old in leases.items():
            with late.lock(account[:11] + name) as new:
                transact(database, new)
            with pytest.raises(StaleTokenError):
                transact(database, old)
            for other in NAMES[NAMES.index(name) + 1 :]:
                transact(database, leases[other])
            old.release()


def transact(database: Database, lease: Lease) -> None:
    """Guard one transaction and commit."""
    connection = database.connect()
    try:
        lease.guard(connection)
        connection.commit()
    finally:
        connection.close()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_lock_and_the_data_live_in_different_stores(
    store: str, database: Database, account: str, tmp_path: Path
) -> None:
    """The token alone connects them."""
    url = f"memory://{account}" if store == "memory" else f"sqlite://{tmp_path}/locks.db"
    with tenure.Client(url) as client, tenure.Client(f"memory://{account}-late") as late:
        with client.lock(account) as old:
            with late.lock(account) as new:
                transact(database, new)
            with pytest.raises(StaleTokenError):
                transact(database, old)
        with client.lock(account) as next_one:
            transact(database, next_one)


def test_a_guard_in_a_pipeline_waits_for_its_reply(
    account: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A pipeline of psycopg knows no results until it is asked: the late holder is refused in it all the same."""
    database = database_of("postgresql", request, tmp_path)
    connection = database.connect()
    leases: list[Lease] = []
    for number in range(2):
        client = tenure.Client(f"memory://{account}-{number}")
        leases.append(client.lock(account, ttl=120).acquire())
    old, new = leases
    with connection.pipeline():
        new.guard(connection)
        with pytest.raises(StaleTokenError):
            old.guard(connection)
    connection.close()
    for lease in leases:
        lease.release()
