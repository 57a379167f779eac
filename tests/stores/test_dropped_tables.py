"""Somebody drops the tables of an open client: it makes them again, and grants nothing that may still be held."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch
from uuid import uuid4

import psycopg
import pymysql
import pytest

from tenure import AsyncClient, Client, LockTimeout, StoreError
from tenure.stores.mysql.database import MySqlDatabase
from tenure.stores.postgresql.database import PgDatabase
from tenure.stores.sql.tables import SqlTables
from tests.planting import planted
from tests.servers.mariadb import PASSWORD, USER

if TYPE_CHECKING:
    from tests.servers import MariaDbServer, PostgresServer

TEST_TIMEOUT = 30.0


class Database(NamedTuple):
    """An empty database, and how to drop what is in it."""

    url: str
    """With a `max_ttl` of five seconds."""
    drop: Callable[[], None]
    owner: type
    run: Callable[[str], None]
    """Runs a statement as its owner."""


@pytest.fixture(params=["postgresql", "mysql", "mysql database"])
def database(request: pytest.FixtureRequest) -> Database:
    """Return a database of either kind. In MySQL its tables are dropped, or the whole database, and made again."""
    name = f"db_{uuid4().hex[:12]}"
    if request.param == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        url = postgres.create_database(name)

        def run_there(statement: str) -> None:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(statement.encode())

        def drop_schema() -> None:
            run_there("DROP SCHEMA public CASCADE")
            run_there("CREATE SCHEMA public")

        return Database(f"{url}?max_ttl=5", drop_schema, PgDatabase, run_there)
    mariadb: MariaDbServer = request.getfixturevalue("mariadb_server")
    url = mariadb.create_database(name)
    tables = ", ".join(f"tenure_{each}" for each in ("names", "meta", "messages", "cells"))
    work = (
        [f"DROP TABLE {tables}"] if request.param == "mysql" else [f"DROP DATABASE {name}", f"CREATE DATABASE {name}"]
    )

    def run(*statements: str) -> None:
        with pymysql.connect(
            host="127.0.0.1", port=mariadb.port, user=USER, password=PASSWORD, database=name
        ) as connection:
            for statement in statements:
                connection.cursor().execute(statement)

    return Database(f"{url}?max_ttl=5", partial(run, *work), MySqlDatabase, run)


def go_on(database: Database) -> None:
    """Keep leases through the loss of the tables, grant nobody else their names, and serve later requests."""
    with Client(database.url, owner="A") as one, Client(database.url, owner="B") as other:
        lease = one.lock("name", ttl=5.0).acquire()
        other.lock("other", ttl=5.0).acquire().release()
        database.drop()
        try:
            with pytest.raises(LockTimeout), other.lock("name", ttl=5.0, timeout=0):
                pass
            other.lock("free", ttl=5.0).acquire(timeout=TEST_TIMEOUT).release()
            assert not lease.lost.is_set()
        finally:
            assert lease.release().kept
        with other.lock("name", ttl=5.0, timeout=TEST_TIMEOUT) as again:
            assert again.token > lease.token


def test_a_client_goes_on_after_its_tables_were_dropped(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """It says so, and its leases and later requests are served as before."""
    with caplog.at_level(logging.WARNING, "tenure"):
        go_on(database)
    assert "are missing" in caplog.text


def test_a_counter_begins_anew_after_its_table_was_dropped(database: Database) -> None:
    """What is dropped is gone, and the client does not fail for that."""
    with Client(database.url) as client:
        counter = client.counter("count")
        counter.add(2)
        database.drop()
        assert counter.add(1) == 1


def test_a_client_of_asyncio_goes_on_after_its_tables_were_dropped(database: Database) -> None:
    """Several tasks find the tables missing at once, and one of them makes them."""

    async def main() -> None:
        async with AsyncClient(database.url) as client:
            lease = await client.lock("name", ttl=5.0).acquire()
            database.drop()
            locks = [client.lock(f"name{number}", ttl=5.0) for number in range(8)]
            leases = await asyncio.gather(*(lock.acquire(timeout=TEST_TIMEOUT) for lock in locks))
            assert min(each.token for each in leases) > lease.token
            for each in [lease, *leases]:
                assert (await each.release()).kept

    asyncio.run(main())


PARTS: dict[type, list[str]] = {
    PgDatabase: [
        *(f"ROUTINE tenure_{each}" for each in ("acquire", "release", "renew", "read", "lock", "write")),
        *(f"ROUTINE tenure_{each}" for each in ("read_cell", "write_cell", "quarantined_since", "next_token")),
        *(f"ROUTINE tenure_{each}" for each in ("begin_quarantine", "refuse_later", "wait_for_log", "silence_factor")),
        *(f"TABLE tenure_{each}" for each in ("names", "waiters", "cells", "meta")),
        "TYPE tenure_snapshot CASCADE",
    ],
    MySqlDatabase: [f"TABLE tenure_{each}" for each in ("names", "cells", "meta", "messages")],
}
"""Of the tables and functions of each database, those that every client needs."""


def use_all(client: Client) -> None:
    """Use the tables and functions that are for requests without a wait."""
    with client.lock("name", timeout=TEST_TIMEOUT) as lease:
        lease.extend()
        assert [each.token for each in client.inspect("name").holders] == [lease.token]
    with client.semaphore("permits", 2, timeout=TEST_TIMEOUT), client.lock("reader", min_hold=0.01):
        client.counter("count").add(1)
    with client.multilock(["one", "two"], timeout=TEST_TIMEOUT):
        assert {"one", "two"} <= set(client.names())


BOTH = pytest.mark.parametrize("database", ["postgresql", "mysql"], indirect=True)


@BOTH
def test_a_client_makes_what_is_missing_beside_its_tables(database: Database) -> None:
    """Somebody drops one table or function, and all others are left."""
    with Client(f"{database.url}&guard=off") as client:
        use_all(client)
        for part in PARTS[database.owner]:
            database.run(f"DROP {part}")
            use_all(client)


@BOTH
def test_a_client_trusts_no_table_that_is_new_beside_others(database: Database) -> None:
    """The table of the names alone is dropped: the leases in it are kept, and are granted to nobody else."""
    go_on(database._replace(drop=partial(database.run, "DROP TABLE tenure_names")))


async def never_make_them(self: PgDatabase | MySqlDatabase, until: float) -> None:
    """Leave the tables missing."""
    raise StoreError("tables are missing")


async def trust_new_ones(self: PgDatabase | MySqlDatabase, until: float) -> None:
    """Take the new tables for those of a new database."""
    await self._open_tables(until)


@pytest.mark.parametrize("bug", [never_make_them, trust_new_ones])
def test_a_planted_bug_is_caught(database: Database, bug: object) -> None:
    """A client that fails for good, or grants what another still holds, is noticed."""
    with (
        patch.object(database.owner, "_open_again", bug),
        pytest.raises((AssertionError, StoreError, pytest.fail.Exception)),
    ):
        go_on(database)


BESIDE = {
    "what is missing beside the settings is not made": (
        "if again or not rows:",
        "if not rows:",
        test_a_client_makes_what_is_missing_beside_its_tables,
    ),
    "a client without a guard makes nothing again": (
        "if again or not rows:",
        "if doubted or not rows:",
        test_a_client_makes_what_is_missing_beside_its_tables,
    ),
    "a new table beside others is trusted": (
        "doubted = again and not self._unguarded",
        "doubted = False",
        test_a_client_trusts_no_table_that_is_new_beside_others,
    ),
}


@BOTH
@pytest.mark.parametrize("bug", BESIDE)
def test_a_planted_bug_beside_other_tables_is_caught(database: Database, bug: str) -> None:
    """A client that heals only what it has lost as a whole is noticed, and one that grants too early then."""
    right, wrong, check = BESIDE[bug]
    with (
        patch.object(SqlTables, "_open_tables", planted(SqlTables, "_open_tables", right, wrong)),
        pytest.raises((AssertionError, StoreError, pytest.fail.Exception)),
    ):
        check(database)
