"""The databases and kinds of connections for the tests of guards."""

from pathlib import Path
from uuid import uuid4

import pytest

from tests.fencing.databases import Database, MariaDb, Postgres, Sqlite
from tests.fencing.kinds import KINDS, Kind

DATABASES = ("sqlite", "postgresql", "mariadb")


def database_of(name: str, request: pytest.FixtureRequest, folder: Path) -> Database:
    """Return a database that is ready, and start its server if that is needed."""
    if name == "sqlite":
        found: Database = Sqlite(folder / "data.db")
    elif name == "postgresql":
        found = Postgres(request.getfixturevalue("postgres_server").url)
    else:
        found = MariaDb(request.getfixturevalue("mariadb_server").url, {"user": "root", "password": ""})
    found.prepare()
    return found


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    """Return each kind of connections, with its database."""
    make, name = KINDS[request.param]
    return make(database_of(name, request, tmp_path))


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """Return each database."""
    return database_of(request.param, request, tmp_path)


@pytest.fixture
def account() -> str:
    """Return the name of an account and of its lock, for this test alone."""
    return f"account-{uuid4().hex}"
