"""Somebody drops the tables of an open client: it makes them again, and grants nothing that may still be held."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch
from uuid import uuid4

import psycopg
import pymysql
import pytest

from tenure import AsyncClient, Client, LockTimeout, StoreError
from tenure.stores.mysql.database import MySqlDatabase
from tenure.stores.postgresql.database import PgDatabase
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


@pytest.fixture(params=["postgresql", "mysql", "mysql database"])
def database(request: pytest.FixtureRequest) -> Database:
    """Return a database of either kind. In MySQL its tables are dropped, or the whole database, and made again."""
    name = f"db_{uuid4().hex[:12]}"
    if request.param == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        url = postgres.create_database(name)

        def drop_schema() -> None:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("DROP SCHEMA public CASCADE")
                connection.execute("CREATE SCHEMA public")

        return Database(f"{url}?max_ttl=5", drop_schema, PgDatabase)
    mariadb: MariaDbServer = request.getfixturevalue("mariadb_server")
    url = mariadb.create_database(name)
    tables = ", ".join(f"tenure_{each}" for each in ("names", "meta", "messages", "cells"))
    work = (
        [f"DROP TABLE {tables}"] if request.param == "mysql" else [f"DROP DATABASE {name}", f"CREATE DATABASE {name}"]
    )

    def drop() -> None:
        with pymysql.connect(
            host="127.0.0.1", port=mariadb.port, user=USER, password=PASSWORD, database=name
        ) as connection:
            for statement in work:
                connection.cursor().execute(statement)

    return Database(f"{url}?max_ttl=5", drop, MySqlDatabase)


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
