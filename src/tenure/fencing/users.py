"""The user's connections and transactions, as far as a guard needs them.

No driver is imported here: a connection comes from a driver that the user has imported, and is known by its class. One
class serves the blocking and the asyncio form of a driver, for `resolved` awaits a result only if it is awaitable.
"""

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol, cast

from tenure.errors import UsageError
from tenure.fencing.dialects import DIALECTS, MYSQL, POSTGRESQL, SQLITE, Dialect


class SqlConnection(Protocol):
    """A connection of psycopg, PyMySQL, mysqlclient, sqlite3 or Django, or a Session or Connection of SQLAlchemy."""

    def commit(self) -> None:
        """Commit the transaction. The guard never calls this."""
        ...

    def rollback(self) -> None:
        """Roll the transaction back. The guard never calls this."""
        ...


class AsyncSqlConnection(Protocol):
    """An AsyncConnection of psycopg, a connection of asyncmy, or SQLAlchemy's AsyncSession or AsyncConnection."""

    def commit(self) -> Coroutine[Any, Any, None]:
        """Commit the transaction. The guard never calls this."""
        ...

    def rollback(self) -> Coroutine[Any, Any, None]:
        """Roll the transaction back. The guard never calls this."""
        ...


class Foreign(Protocol):
    """An object of a library that may not be installed, so that its types are not known here."""

    def __getattr__(self, name: str, /) -> Any: ...  # noqa: ANN401 - that is the point

    def __setattr__(self, name: str, value: object, /) -> None: ...


async def resolved(result: object) -> Foreign:
    """Return a result of a driver, and await it first if its driver is one for asyncio."""
    return cast("Foreign", await result if inspect.isawaitable(result) else result)


class Standing(Enum):
    """Whether a connection is in a transaction."""

    OPEN = auto()
    """It is in a transaction, which may have done something already."""
    FRESH = auto()
    """It is in none, or in one that has done nothing; its next statement begins one if there is none."""
    TO_BEGIN = auto()
    """It is in none, and a read would not begin one."""
    AUTOCOMMIT = auto()
    """It is in none, and each statement commits by itself."""


def _psycopg_standing(connection: Foreign) -> Standing:
    if connection.info.transaction_status:
        return Standing.OPEN
    return Standing.AUTOCOMMIT if connection.autocommit else Standing.FRESH


def _sqlite_standing(connection: Foreign) -> Standing:
    if connection.in_transaction:
        return Standing.OPEN
    by_itself = connection.isolation_level is None if _is_legacy(connection) else connection.autocommit
    return Standing.AUTOCOMMIT if by_itself else Standing.TO_BEGIN


def _is_legacy(connection: Foreign) -> bool:
    """Return whether `isolation_level` says how transactions begin, as always before Python 3.12."""
    return getattr(connection, "autocommit", -1) == -1


IN_TRANSACTION = 1
"""The bit of MySQL's server status that says that a transaction is open."""


def _mysql_standing(connection: Foreign) -> Standing:
    status = getattr(connection, "server_status", None)  # mysqlclient does not show it
    if status is not None and status & IN_TRANSACTION:
        return Standing.OPEN
    if connection.get_autocommit():
        return Standing.AUTOCOMMIT
    return Standing.OPEN if status is None else Standing.FRESH


def _psycopg_cursor(connection: Foreign) -> object:
    """Make a plain cursor, whatever kinds of cursors and rows the user has set for the connection."""
    psycopg = cast("Foreign", sys.modules["psycopg"])
    make = psycopg.AsyncCursor if isinstance(connection, psycopg.AsyncConnection) else psycopg.Cursor
    return make(connection, row_factory=psycopg.rows.tuple_row)


def _mysql_cursor(connection: Foreign) -> object:
    """Make a plain cursor, whatever kind the user has set for the connection."""
    root = _known_class(connection, DRIVERS)[0]
    return connection.cursor(cast("Foreign", sys.modules[f"{root}.cursors"]).Cursor)


def _sqlite_cursor(connection: Foreign) -> object:
    """Make a cursor with plain rows, whatever the user has set for the connection."""
    cursor = cast("Foreign", connection.cursor())
    cursor.row_factory = None
    return cursor


@dataclass(slots=True, frozen=True)
class Driver:
    """How to use the connections of one driver."""

    dialect: Dialect
    placeholder: str
    """How its statements mark a value; {} is the name of the value."""
    standing: Callable[[Foreign], Standing]
    cursor: Callable[[Foreign], object]
    form: str
    """The form of the API that its connections are for: SYNC or ASYNC."""


SYNC, ASYNC = "blocking", "asyncio"
PSYCOPG = Driver(POSTGRESQL, "%({})s", _psycopg_standing, _psycopg_cursor, SYNC)
PSYCOPG_ASYNC = Driver(POSTGRESQL, "%({})s", _psycopg_standing, _psycopg_cursor, ASYNC)
MYSQL_SYNC = Driver(MYSQL, "%({})s", _mysql_standing, _mysql_cursor, SYNC)
MYSQL_ASYNC = Driver(MYSQL, "%({})s", _mysql_standing, _mysql_cursor, ASYNC)

DRIVERS: Mapping[tuple[str, str], Driver] = {
    ("psycopg", "Connection"): PSYCOPG,
    ("psycopg", "AsyncConnection"): PSYCOPG_ASYNC,
    ("pymysql", "Connection"): MYSQL_SYNC,
    ("MySQLdb", "Connection"): MYSQL_SYNC,
    ("asyncmy", "Connection"): MYSQL_ASYNC,
    ("sqlite3", "Connection"): Driver(SQLITE, ":{}", _sqlite_standing, _sqlite_cursor, SYNC),
}
"""The drivers, by the package and the name of the class of their connections."""

SQLALCHEMY: Mapping[tuple[str, str], str] = {
    ("sqlalchemy", "Connection"): SYNC,
    ("sqlalchemy", "Session"): SYNC,
    ("sqlalchemy", "scoped_session"): SYNC,
    ("sqlalchemy", "AsyncConnection"): ASYNC,
    ("sqlalchemy", "AsyncSession"): ASYNC,
    ("sqlalchemy", "async_scoped_session"): ASYNC,
}
"""The form of the API that SQLAlchemy's connections and sessions are for."""

DJANGO = {("django", "ConnectionProxy"): SYNC, ("django", "BaseDatabaseWrapper"): SYNC}
"""The classes of Django's connections: `django.db.connection`, and each of `django.db.connections`."""

OTHERS = {**SQLALCHEMY, **DJANGO}

ACCEPTED = (
    "a connection of psycopg, PyMySQL, mysqlclient, asyncmy, sqlite3 or Django, or a Session, Connection, "
    "AsyncSession or AsyncConnection of SQLAlchemy"
)


def _known_class(connection: object, known: Mapping[tuple[str, str], object]) -> tuple[str, str]:
    """Return the first of the classes of an object that is known; ("", "") if none is."""
    classes = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__)
    return next((each for each in classes if each in known), ("", ""))


class UserTransaction(ABC):
    """The transaction that the user's connection is in, or is about to begin."""

    dialect: Dialect

    @abstractmethod
    def standing(self) -> Standing:
        """Return whether the connection is in a transaction."""

    @abstractmethod
    async def run(self, statement: str, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - a value of a database
        """Run a statement; return the first value of its first row, None if it has no row."""

    def is_fresh(self) -> bool:
        """Return whether the transaction has certainly done nothing yet."""
        return self.standing() is Standing.FRESH

    async def begin(self) -> None:
        """Make sure that a transaction is open, or is begun by the next statement. Raises UsageError if none can be."""
        standing = self.standing()
        if standing is Standing.AUTOCOMMIT:
            raise UsageError(
                "the connection is in autocommit mode and in no transaction, so a guard would end before anything is "
                "written: begin a transaction (in Django: transaction.atomic()), call lease.guard() as its first "
                "statement, write, then commit."
            )
        if standing is Standing.TO_BEGIN:
            await self.run("BEGIN IMMEDIATE", {})


class DriverTransaction(UserTransaction):
    """The transaction of a driver's connection."""

    def __init__(self, connection: Foreign, driver: Driver) -> None:
        """Take a connection that the user has connected."""
        self.dialect = driver.dialect
        self._connection = connection
        self._driver = driver

    def standing(self) -> Standing:
        """Return whether the connection is in a transaction."""
        return self._driver.standing(self._connection)

    async def run(self, statement: str, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - a value of a database
        """Run a statement; return the first value of its first row, None if it has no row."""
        marks = {name: self._driver.placeholder.format(name) for name in values}
        cursor = cast("Foreign", self._driver.cursor(self._connection))
        try:
            await resolved(cursor.execute(statement.format_map(marks), values))
            row = await resolved(cursor.fetchone()) if _returns_row(statement) else None
        finally:
            await resolved(cursor.close())
        return cast("tuple[Any, ...]", row)[0] if row else None


def _returns_row(statement: str) -> bool:
    """Tell whether a statement of a dialect returns a row: a cursor in a pipeline of psycopg does not know it yet."""
    return statement.startswith("SELECT") or "RETURNING" in statement


class SqlAlchemyTransaction(UserTransaction):
    """The transaction of a connection of SQLAlchemy, over any driver."""

    def __init__(self, connection: Foreign) -> None:
        """Take a Connection or AsyncConnection that is in a transaction."""
        self._connection = connection
        self._sync = cast("Foreign", getattr(connection, "sync_connection", connection))
        if cast("object", self._sync) is None:
            raise UsageError("the AsyncConnection is not connected: enter it with `async with` before lease.guard().")
        name: str = self._sync.dialect.name
        if name not in DIALECTS:
            raise UsageError(f"a guard has no statements for {name!r}: use PostgreSQL, MySQL, MariaDB or SQLite.")
        self.dialect = DIALECTS[name]

    async def begin(self) -> None:
        """Make sure that a transaction is open. Raises UsageError if none can be, or if it is in a savepoint."""
        if self._sync.in_nested_transaction():
            raise UsageError(
                "the connection is in a savepoint, whose rollback would take the guard back: call lease.guard() in "
                "the transaction around it, before its savepoints."
            )
        if not self._sync.in_transaction():
            await resolved(self._connection.begin())
        await super().begin()

    def standing(self) -> Standing:
        """Return whether the connection is in a transaction of its database."""
        pooled = self._sync.connection
        driver = DRIVERS.get(_known_class(pooled.driver_connection, DRIVERS))
        if driver is not None:
            return driver.standing(pooled.driver_connection)
        by_itself = self._sync.dialect.detect_autocommit_setting(pooled.dbapi_connection)
        return Standing.AUTOCOMMIT if by_itself else Standing.OPEN

    async def run(self, statement: str, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - a value of a database
        """Run a statement; return the first value of its first row, None if it has no row."""
        sqlalchemy = cast("Foreign", sys.modules["sqlalchemy"])
        marked = statement.replace(":", r"\:").format_map({name: f":{name}" for name in values})
        result = await resolved(self._connection.execute(sqlalchemy.text(marked), values))
        row = result.first() if result.returns_rows else None
        return row[0] if row else None


async def transaction_of(connection: object, form: str) -> UserTransaction:
    """Return the transaction of a connection or session. Raises UsageError if it is neither, or of the other form."""
    if form == SYNC and _known_class(connection, DJANGO) in DJANGO:
        connection = _below_django(cast("Foreign", connection))
    user = cast("Foreign", connection)
    driver = DRIVERS.get(_known_class(connection, DRIVERS))
    kind = _known_class(connection, OTHERS)
    found = driver.form if driver else OTHERS.get(kind)
    if found is None:
        raise UsageError(f"lease.guard() cannot use an object of {type(connection)!r}: give it {ACCEPTED}.")
    if found != form:
        raise UsageError(
            f"the lease is of a client for {_threads_or_asyncio(form)}, but {type(connection)!r} is for "
            f"{_threads_or_asyncio(found)}: use tenure.Client with blocking connections, and tenure.AsyncClient "
            "with those for asyncio."
        )
    if driver:
        return DriverTransaction(user, driver)
    is_connection = kind[1].endswith("Connection")
    return SqlAlchemyTransaction(user if is_connection else await resolved(user.connection()))


def _below_django(connection: Foreign) -> object:
    """Return the driver's connection of one of Django's. Raises UsageError if it is in a savepoint.

    The blocks around a test of Django's TestCase are not the user's: what stands in them is treated as it is without.
    """
    blocks = connection.atomic_blocks
    tests = sum(1 for block in blocks if getattr(block, "_from_testcase", False))
    if any(savepoint is not None for savepoint in connection.savepoint_ids[tests:]):
        raise UsageError(
            "the connection is in a savepoint, whose rollback would take the guard back: call lease.guard() in the "
            "outermost transaction.atomic(), before those within it."
        )
    connection.ensure_connection()
    return cast("object", connection.connection)


def _threads_or_asyncio(form: str) -> str:
    return "threads" if form == SYNC else form
