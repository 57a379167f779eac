"""The databases that guarded transactions write to: what a test needs of each, whatever driver it uses."""

import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import psycopg
import pymysql

from tenure.fencing.schema import fences_ddl
from tests.servers.waiting import wait_until

ACCOUNTS = "CREATE TABLE IF NOT EXISTS accounts (name VARCHAR(64) PRIMARY KEY, value BIGINT NOT NULL)"
Row = tuple[Any, ...]


class Database(ABC):
    """A database with the table of fences and a table of accounts, as an administrator sees it."""

    name: ClassVar[str]
    dialect: ClassVar[str]

    def prepare(self) -> None:
        """Make both tables, if they are not there."""
        self.execute(ACCOUNTS)
        self.execute(fences_ddl(self.dialect))

    @abstractmethod
    def connect(self, **options: object) -> Any:  # noqa: ANN401 - of any driver
        """Return a connection of the blocking driver, as a user opens one."""

    @abstractmethod
    def url(self, driver: str = "") -> str:
        """Return the URL for SQLAlchemy, with the default driver or another one."""

    @abstractmethod
    def waiting(self) -> int:
        """Return how many transactions wait for a lock."""

    def execute(self, sql: str) -> list[Row]:
        """Execute a statement over a connection of its own, and commit."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(sql)
            rows = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
        finally:
            connection.close()
        return rows

    def open_account(self, name: str, value: int = 0) -> None:
        """Add an account. A name needs no quoting."""
        self.execute(f"INSERT INTO accounts VALUES ('{name}', {value})")  # noqa: S608 - a name of this test

    def value_of(self, name: str) -> int:
        """Return what is on an account by all that is committed."""
        ((value,),) = self.execute(f"SELECT value FROM accounts WHERE name = '{name}'")  # noqa: S608 - as above
        return int(value)

    def fences(self, table: str = "tenure_fences") -> dict[str | bytes, int]:
        """Return the committed token of each fence."""
        return dict(self.execute(f"SELECT name, token FROM {table}"))  # noqa: S608 - as above

    def await_waiting(self, count: int = 1) -> None:
        """Return when so many transactions wait for a lock."""
        wait_until(lambda: self.waiting() >= count, "transactions that wait for a lock")


class Postgres(Database):
    """The database of a PostgreSQL server."""

    name = "postgresql"
    dialect = "postgresql"

    def __init__(self, url: str) -> None:
        """Use the server at a URL."""
        self.libpq_url = url

    def connect(self, **options: object) -> Any:  # noqa: ANN401 - of any driver
        """Return a connection of psycopg."""
        given: dict[str, Any] = dict(options)
        return psycopg.connect(self.libpq_url, **given)

    def url(self, driver: str = "psycopg") -> str:
        """Return the URL for SQLAlchemy."""
        return self.libpq_url.replace("postgresql://", f"postgresql+{driver}://")

    def waiting(self) -> int:
        """Return how many transactions wait for a lock."""
        ((count,),) = self.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return int(count)


class MariaDb(Database):
    """The database of a MariaDB server."""

    name = "mariadb"
    dialect = "mysql"

    def __init__(self, url: str, admin: dict[str, Any]) -> None:
        """Use the server at a URL; `admin` has the arguments of the administrator's connections."""
        parts = urlsplit(url)
        self.arguments: dict[str, Any] = {
            "host": parts.hostname or "",
            "port": parts.port or 0,
            "user": parts.username or "",
            "password": parts.password or "",
            "database": parts.path.lstrip("/"),
        }
        self._admin = {**self.arguments, **admin}
        self._url = url

    def connect(self, **options: object) -> Any:  # noqa: ANN401 - of any driver
        """Return a connection of PyMySQL."""
        given: dict[str, Any] = {**self.arguments, **options}
        return pymysql.connect(**given)

    def url(self, driver: str = "pymysql") -> str:
        """Return the URL for SQLAlchemy."""
        return self._url.replace("mysql://", f"mysql+{driver}://")

    def waiting(self) -> int:
        """Return how many transactions wait for a lock."""
        with self.connect(**self._admin) as connection, connection.cursor() as cursor:
            # Not from innodb_trx: that is a copy, which is never new for those who look at it every few milliseconds.
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
            return int(cursor.fetchone()[1])


class Sqlite(Database):
    """A SQLite file."""

    name = "sqlite"
    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        """Use a file, which need not exist."""
        self.path = path

    def connect(self, **options: object) -> Any:  # noqa: ANN401 - of any driver
        """Return a connection of the standard library that waits for others, from any thread."""
        given: dict[str, Any] = {"timeout": 60, "check_same_thread": False, **options}
        return sqlite3.connect(self.path, **given)

    def url(self, driver: str = "pysqlite") -> str:
        """Return the URL for SQLAlchemy."""
        return f"sqlite+{driver}:///{self.path}?timeout=60&check_same_thread=false"

    def waiting(self) -> int:
        """Return 1: nothing shows who waits for a file."""
        return 1
