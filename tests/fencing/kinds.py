"""The kinds of connections that a guard takes: how a user opens each, and reads and writes over it."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from typing import Any, ClassVar, cast

import psycopg
import sqlalchemy
from sqlalchemy.orm import Session

from tests.fencing.databases import Database, MariaDb, Postgres


class Kind(ABC):
    """One kind of connections to a database. Results may have to be awaited: see `finished`."""

    mark: ClassVar[str] = ":{}"
    is_async: ClassVar[bool] = False

    def __init__(self, database: Database) -> None:
        """Use a database."""
        self.database = database

    @abstractmethod
    async def open(self) -> Any:  # noqa: ANN401 - of any driver
        """Return a new connection or session."""

    @abstractmethod
    async def execute(self, connection: Any, sql: str, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - as above
        """Execute a statement with marks such as {name}; return the first value of its first row."""

    async def close(self, connection: Any) -> None:  # noqa: ANN401 - as above
        """Close it, without a commit."""
        await finished(connection.close())

    def marked(self, sql: str, values: Mapping[str, object]) -> str:
        """Return a statement in the style of the driver."""
        return sql.format_map({name: self.mark.format(name) for name in values})


async def finished(result: Any) -> Any:  # noqa: ANN401 - of any driver
    """Await a result if it is awaitable."""
    return await cast("Awaitable[Any]", result) if hasattr(result, "__await__") else result


class Driver(Kind):
    """Connections of a blocking driver."""

    async def open(self) -> Any:  # noqa: ANN401 - of any driver
        """Return a new connection."""
        return self.database.connect()

    async def execute(self, connection: Any, sql: str, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - as above
        """Execute a statement by a cursor."""
        cursor = connection.cursor()
        await finished(cursor.execute(self.marked(sql, values), dict(values)))
        row = await finished(cursor.fetchone()) if cursor.description else None
        await finished(cursor.close())
        return row[0] if row else None


class PercentDriver(Driver):
    """Connections of psycopg or PyMySQL."""

    mark = "%({})s"


class PsycopgAsync(PercentDriver):
    """Connections of psycopg for asyncio."""

    is_async = True

    async def open(self) -> Any:  # noqa: ANN401 - of any driver
        """Return a new connection."""
        return await psycopg.AsyncConnection.connect(cast("Postgres", self.database).libpq_url)


class Asyncmy(PercentDriver):
    """Connections of asyncmy."""

    is_async = True

    async def open(self) -> Any:  # noqa: ANN401 - of any driver
        """Return a new connection."""
        import asyncmy

        connect: Any = asyncmy.connect  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - has no types
        return await connect(**cast("MariaDb", self.database).arguments)

    async def close(self, connection: Any) -> None:  # noqa: ANN401 - of any driver
        """Close it, without a commit."""
        await connection.ensure_closed()


class AlchemyConnection(Kind):
    """Connections of SQLAlchemy's core."""

    async def open(self) -> Any:  # noqa: ANN401 - of any driver
        """Return a new connection of an engine of its own."""
        return sqlalchemy.create_engine(self.database.url()).connect()

    async def execute(self, connection: Any, sql: str, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - as above
        """Execute a statement as text."""
        result = await finished(connection.execute(sqlalchemy.text(self.marked(sql, values)), dict(values)))
        return result.scalar() if result.returns_rows else None

    async def close(self, connection: Any) -> None:  # noqa: ANN401 - of any driver
        """Close it and the pool of its engine."""
        engine = connection.engine
        await finished(connection.close())
        await finished(engine.dispose())


class AlchemySession(AlchemyConnection):
    """Sessions of SQLAlchemy's ORM."""

    async def open(self) -> Any:  # noqa: ANN401 - of any driver
        """Return a new session over an engine of its own."""
        return Session(sqlalchemy.create_engine(self.database.url()))

    async def close(self, connection: Any) -> None:  # noqa: ANN401 - of any driver
        """Close it and the pool of its engine."""
        engine = connection.bind
        await finished(connection.close())
        await finished(engine.dispose())


ASYNC_DRIVERS = {"postgresql": "psycopg", "mariadb": "asyncmy"}


class AlchemyAsyncSession(AlchemySession):
    """Sessions of SQLAlchemy's ORM for asyncio."""

    is_async = True

    async def open(self) -> Any:  # noqa: ANN401 - of any driver
        """Return a new session over an engine of its own."""
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        return AsyncSession(create_async_engine(self.database.url(ASYNC_DRIVERS[self.database.name])))


class AlchemyAsyncConnection(AlchemyConnection):
    """Connections of SQLAlchemy's core for asyncio."""

    is_async = True

    async def open(self) -> Any:  # noqa: ANN401 - of any driver
        """Return a new connection of an engine of its own."""
        from sqlalchemy.ext.asyncio import create_async_engine

        return await create_async_engine(self.database.url(ASYNC_DRIVERS[self.database.name])).connect()


KINDS: Mapping[str, tuple[type[Kind], str]] = {
    "sqlite3": (Driver, "sqlite"),
    "psycopg": (PercentDriver, "postgresql"),
    "pymysql": (PercentDriver, "mariadb"),
    "psycopg-asyncio": (PsycopgAsync, "postgresql"),
    "asyncmy": (Asyncmy, "mariadb"),
    "sqlalchemy-connection-sqlite": (AlchemyConnection, "sqlite"),
    "sqlalchemy-connection-postgresql": (AlchemyConnection, "postgresql"),
    "sqlalchemy-connection-mariadb": (AlchemyConnection, "mariadb"),
    "sqlalchemy-session-sqlite": (AlchemySession, "sqlite"),
    "sqlalchemy-session-postgresql": (AlchemySession, "postgresql"),
    "sqlalchemy-session-mariadb": (AlchemySession, "mariadb"),
    "sqlalchemy-async-connection-postgresql": (AlchemyAsyncConnection, "postgresql"),
    "sqlalchemy-async-session-postgresql": (AlchemyAsyncSession, "postgresql"),
    "sqlalchemy-async-session-mariadb": (AlchemyAsyncSession, "mariadb"),
}
"""All kinds, each with its database."""
