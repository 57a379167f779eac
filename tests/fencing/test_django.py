"""A guard in a transaction of Django, over its own connections."""

import asyncio
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import tenure
from tenure import Lease, StaleTokenError, UsageError
from tests.fencing.conftest import DATABASES, database_of
from tests.fencing.databases import Database, Postgres, Sqlite

django: Any = import_module("django")  # it has no types
django_db: Any = import_module("django.db")
transaction: Any = import_module("django.db.transaction")
settings: Any = import_module("django.conf").settings
Django = Any
"""A connection of Django."""

conninfo: Any = import_module("psycopg.conninfo")

if not settings.configured:
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    django.setup()


def arguments_of(database: Database) -> dict[str, Any]:
    """Return how Django is told of a database."""
    if isinstance(database, Sqlite):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(database.path), "OPTIONS": {"timeout": 60}}
    assert isinstance(database, Postgres)
    given = conninfo.conninfo_to_dict(database.libpq_url)
    login = {"NAME": given["dbname"], "USER": given["user"], "PASSWORD": given.get("password", "")}
    return {"ENGINE": "django.db.backends.postgresql", "HOST": given["host"], "PORT": given["port"], **login}


@pytest.fixture(params=[each for each in DATABASES if each != "mariadb"])  # Django needs mysqlclient, which is compiled
def database(request: pytest.FixtureRequest, tmp_path: Any) -> Database:  # noqa: ANN401 - of pytest
    """Return each database for which Django has a driver here."""
    return database_of(request.param, request, tmp_path)


@pytest.fixture
def connection(database: Database) -> Iterator[Any]:
    """Return Django's connection to a database, as `django.db.connection` is one."""
    utils: Any = import_module("django.utils.connection")
    django_db.connections.settings["guarded"] = django_db.connections.configure_settings(
        {"default": {}, "guarded": arguments_of(database)}
    )["guarded"]
    yield utils.ConnectionProxy(django_db.connections, "guarded")
    django_db.connections["guarded"].close()
    del django_db.connections["guarded"]


@pytest.fixture
def lease(account: str) -> Iterator[Lease]:
    """Return a lease of a lock in memory."""
    with tenure.Client(f"memory://{account}") as client, client.lock(account, ttl=120) as lease:
        yield lease


def atomic(**options: Any) -> Any:  # noqa: ANN401 - of Django
    """Return a block of Django's for a transaction, or a savepoint."""
    return transaction.atomic(using="guarded", **options)


@pytest.mark.parametrize("proxy", [True, False])
def test_a_guard_commits_and_rolls_back_with_djangos_transaction(
    database: Database, connection: Django, lease: Lease, account: str, *, proxy: bool
) -> None:
    """The fence is raised with what the block writes, and a stale token is refused."""
    given = connection if proxy else django_db.connections["guarded"]
    database.open_account(account)
    with atomic():
        lease.guard(given)
        transaction.set_rollback(True, using="guarded")
    assert lease.token not in database.fences().values()
    with atomic():
        lease.guard(given)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE accounts SET value = 7 WHERE name = %s", [account])
    assert database.value_of(account) == 7
    assert lease.token in database.fences().values()
    later = lease.token + 1
    database.execute(f"UPDATE tenure_fences SET token = {later} WHERE token = {lease.token}")  # noqa: S608 - numbers
    with pytest.raises(StaleTokenError), atomic():
        lease.guard(given)


def test_djangos_autocommit_is_refused(database: Database, connection: Django, lease: Lease) -> None:
    """Outside of `atomic` each statement commits by itself, so a guard would guard nothing."""
    with pytest.raises(UsageError, match=r"transaction\.atomic\(\)"):
        lease.guard(connection)
    assert lease.token not in database.fences().values()


@pytest.mark.parametrize("tests", [0, 1, 2])
def test_a_savepoint_of_djangos_is_refused(connection: Django, lease: Lease, tests: int) -> None:
    """A savepoint may be rolled back alone. The blocks around a test of TestCase do not count as the user's."""
    around = [atomic() for _ in range(tests)]
    for block in around:
        block._from_testcase = True
        block.__enter__()
    with atomic():
        with atomic(), pytest.raises(UsageError, match="savepoint"):
            lease.guard(connection)
        with atomic(savepoint=False):
            lease.guard(connection)
    for block in reversed(around):
        block.__exit__(None, None, None)


def test_a_savepoint_of_a_connection_without_autocommit_is_refused(connection: Django, lease: Lease) -> None:
    """Then `atomic` is a savepoint in a transaction that the user commits."""
    connection.set_autocommit(False)
    lease.guard(connection)
    connection.rollback()
    with atomic(), pytest.raises(UsageError, match="savepoint"):
        lease.guard(connection)
    connection.rollback()
    connection.set_autocommit(True)


def test_an_async_lease_refuses_djangos_connection(connection: Django, account: str) -> None:
    """Django's connections block."""

    async def main() -> None:
        async with tenure.AsyncClient(f"memory://{account}") as client, client.lock(account) as lease:
            with pytest.raises(UsageError, match="blocking"):
                await lease.guard(connection)

    connection.ensure_connection()
    asyncio.run(main())
