"""Clients of a user's pool or engine: they connect as it does, and leave its connections alone."""

import asyncio
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Self
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool, NullConnectionPool
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import QueuePool

from tenure import AsyncClient, Client, StoreError, StoreUnavailable, UsageError
from tenure.stores.postgresql import postgresql_source
from tenure.stores.postgresql.pools import deployment_of_pool
from tests.hazards.helpers import eventually
from tests.servers import PostgresServer

SECRET = "s3cr et'/?"  # noqa: S105 - of a user of a test

MakePool = Callable[[str], object]

POOLS: dict[str, MakePool] = {
    "pool": lambda conninfo: ConnectionPool(conninfo, open=False),
    "null pool": lambda conninfo: NullConnectionPool(conninfo, open=False),
    "async pool": lambda conninfo: AsyncConnectionPool(conninfo, open=False),
    "engine": lambda url: create_engine(url.replace("postgresql", "postgresql+psycopg", 1)),
    "async engine": lambda url: create_async_engine(url.replace("postgresql", "postgresql+psycopg", 1)),
}
"""How to make pools and engines of a URL, none of which is connected yet."""


@pytest.fixture
def schema(postgres_server: PostgresServer) -> str:
    """Return the name of a user with the password SECRET, and of a schema where it may make tables."""
    name = f"pool_{uuid4().hex[:12]}"
    postgres_server.create_user(name, SECRET)
    postgres_server.execute(f'CREATE SCHEMA "{name}" AUTHORIZATION "{name}"')
    return name


@pytest.mark.parametrize("kind", POOLS)
def test_a_client_of_a_pool_locks(postgres_server: PostgresServer, schema: str, kind: str) -> None:
    """Both forms of a client take over the server and the login, and exclude the clients of the server's URL."""
    pool = POOLS[kind](f"{postgres_server.url_for(schema, SECRET)}?application_name={schema}")
    source = postgresql_source(pool, schema=schema)
    assert SECRET not in source.title + repr(deployment_of_pool(pool))

    async def lock() -> int:
        async with AsyncClient(store=source) as client, client.lock("name", timeout=20) as lease:
            return lease.token

    with Client(f"{postgres_server.url}?schema={schema}") as other, Client(store=source) as client:
        with client.lock("name") as lease:
            assert other.lock("name").try_acquire() is None
            assert postgres_server.clients(schema)
        assert asyncio.run(lock()) > lease.token
    eventually(lambda: not postgres_server.clients(schema), "the end of all sessions")


def test_a_pool_is_given_as_it_is(postgres_server: PostgresServer) -> None:
    """A pool or an engine in the place of the URL makes a client."""
    for make in POOLS.values():
        with Client(make(postgres_server.url), namespace="pools") as client, client.lock("name", timeout=20) as lease:
            assert lease.token


def test_no_connection_of_a_pool_is_taken(postgres_server: PostgresServer) -> None:
    """A pool whose only connection is in use serves a client all the same, and so does one that was closed."""
    with ConnectionPool(postgres_server.url, min_size=1, max_size=1, open=True) as pool:
        with pool.connection() as connection, Client(pool, namespace="pools") as client:
            before = pool.get_stats()["requests_num"]
            with client.lock("name", timeout=20) as lease, connection.transaction():
                lease.check()
            assert pool.get_stats()["requests_num"] == before
        client = Client(pool, namespace="pools")
    with client, client.lock("name", timeout=20) as lease:
        assert lease.token


def test_no_connection_of_an_async_pool_is_taken(postgres_server: PostgresServer) -> None:
    """The same with a pool for asyncio."""

    async def main() -> None:
        async with AsyncConnectionPool(postgres_server.url, min_size=1, max_size=1, open=False) as pool:
            async with pool.connection(), AsyncClient(pool, namespace="pools") as client:
                before = pool.get_stats()["requests_num"]
                async with client.lock("name", timeout=20) as lease:
                    lease.check()
                assert pool.get_stats()["requests_num"] == before
            client = AsyncClient(pool, namespace="pools")
        async with client, client.lock("name", timeout=20) as lease:
            assert lease.token

    asyncio.run(main())


# -- pools and engines that connect by code of the user's ----------------------------------------------------------


class OwnConnection(psycopg.Connection[Any]):
    """A class of connections that chooses the server by itself."""

    where: ClassVar[str] = ""

    @classmethod
    def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:  # noqa: ANN401 - of psycopg
        """Connect to a server that no argument names."""
        assert conninfo == "host=elsewhere.invalid"
        return super().connect(cls.where, **kwargs)


class OwnAsyncConnection(psycopg.AsyncConnection[Any]):
    """The same for asyncio."""

    where: ClassVar[str] = ""

    @classmethod
    async def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:  # noqa: ANN401 - of psycopg
        """Connect to a server that no argument names."""
        assert conninfo == "host=elsewhere.invalid"
        return await super().connect(cls.where, **kwargs)


def _engine(**options: Any) -> Engine:  # noqa: ANN401 - of SQLAlchemy
    return create_engine("postgresql+psycopg://elsewhere.invalid/db", **options)


def _listening(engine: Engine, url: str) -> None:
    def name_the_server(dialect: object, record: object, args: list[str], keywords: dict[str, Any]) -> None:
        keywords.clear()
        args[:] = [url]

    event.listen(engine, "do_connect", name_the_server)


def _engine_that_listens(url: str) -> object:
    engine = _engine()
    _listening(engine, url)
    return engine


def _async_engine_that_listens(url: str) -> object:
    engine = create_async_engine("postgresql+psycopg://elsewhere.invalid/db")
    _listening(engine.sync_engine, url)
    return engine


def _own_pool(url: str) -> object:
    OwnConnection.where = url
    return ConnectionPool("host=elsewhere.invalid", connection_class=OwnConnection, open=False)


def _own_async_pool(url: str) -> object:
    OwnAsyncConnection.where = url
    return AsyncConnectionPool("host=elsewhere.invalid", connection_class=OwnAsyncConnection, open=False)


ELSEWHERE: dict[str, MakePool] = {
    "creator": lambda url: _engine(creator=lambda: psycopg.connect(url)),
    "pool of an engine": lambda url: _engine(pool=QueuePool(lambda: psycopg.connect(url))),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "connect_args": lambda url: _engine(connect_args=conninfo_to_dict(url)),
    "do_connect": _engine_that_listens,
    "connection_class": _own_pool,
    "async creator": lambda url: create_async_engine(
        "postgresql+psycopg://elsewhere.invalid/db", async_creator=lambda: psycopg.AsyncConnection.connect(url)
    ),
    "async do_connect": _async_engine_that_listens,
    "async connection_class": _own_async_pool,
}
"""Pools and engines whose server is not the one that their text names."""


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_a_client_locks_at_the_server_of_the_users_code(
    postgres_server: PostgresServer, schema: str, kind: str
) -> None:
    """Where code or arguments of the user's decide where a pool or an engine connects, its client connects there."""
    url = f"{postgres_server.url_for(schema, SECRET)}?application_name={schema}"
    source = postgresql_source(ELSEWHERE[kind](url), schema=schema)
    assert SECRET not in source.title

    async def lock() -> None:
        async with AsyncClient(store=source) as client, client.lock("name", timeout=20) as lease:
            lease.check()
            assert await asyncio.to_thread(other.lock("name").try_acquire) is None
            assert postgres_server.clients(schema)

    with Client(f"{postgres_server.url}?schema={schema}") as other:
        if kind.startswith("async"):
            asyncio.run(lock())
        else:
            with Client(store=source) as client, client.lock("name", timeout=20) as lease:
                lease.check()
                assert other.lock("name").try_acquire() is None
                assert postgres_server.clients(schema)
    eventually(lambda: not postgres_server.clients(schema), "the end of all sessions")


def test_a_pool_that_configures_its_connections_does_so_for_its_client(
    postgres_server: PostgresServer, schema: str
) -> None:
    """The `configure` of a pool may set the role or the schema: the tables are where the pool's connections look."""

    def set_schema(connection: psycopg.Connection[Any]) -> None:
        connection.execute(f"SET search_path = {schema}".encode())
        connection.commit()

    async def set_schema_async(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(f"SET search_path = {schema}".encode())
        await connection.commit()

    pool = ConnectionPool(postgres_server.url, configure=set_schema, open=False)
    async_pool = AsyncConnectionPool(postgres_server.url, configure=set_schema_async, open=False)

    async def lock() -> int:
        async with AsyncClient(async_pool) as client, client.lock("name", timeout=20) as lease:
            return lease.token

    with Client(pool) as client, client.lock("name", timeout=20) as lease:
        assert postgres_server.execute("SELECT to_regclass(%s) IS NOT NULL", f"{schema}.tenure_names") == [(True,)]
    assert asyncio.run(lock()) > lease.token


def test_a_waiter_of_a_users_connection_is_woken(postgres_server: PostgresServer, schema: str) -> None:
    """The connection that listens is made by the user's code as well, so that a release wakes a waiter."""
    url = postgres_server.url_for(schema, SECRET)
    source = postgresql_source(ELSEWHERE["creator"](url), schema=schema)
    with Client(f"{postgres_server.url}?schema={schema}") as other, Client(store=source) as client:
        client.names()  # which makes the tables, as their owner
        lease = other.lock("name", ttl=30).acquire()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(client.lock("name").acquire, timeout=20)
            eventually(lambda: other.inspect("name").waiters, "the waiter")
            lease.release()
            waiting.result().release()


def test_the_encoding_of_a_users_connection_does_not_matter(postgres_server: PostgresServer, schema: str) -> None:
    """A connection that speaks another encoding is told to speak UTF-8, else two names could be one."""
    url = postgres_server.url_for(schema, SECRET)
    source = postgresql_source(_engine(creator=lambda: psycopg.connect(url, client_encoding="latin1")), schema=schema)
    with Client(f"{postgres_server.url}?schema={schema}") as other, Client(store=source) as client:
        lease = client.lock("Stra\u00dfe \u4e16", timeout=20).acquire()
        assert other.names() == ["Stra\u00dfe \u4e16"]
        lease.release()


def test_what_the_users_code_fails_with_is_said(postgres_server: PostgresServer, schema: str) -> None:
    """A refused login, an error of the user's own and a connection that cannot be used are told without secrets."""

    def fail() -> object:
        raise KeyError("hidden")

    def begun() -> object:
        connection = psycopg.connect(postgres_server.url)
        connection.execute("SELECT 1")
        return connection

    wrong = postgres_server.url_for(schema, "hidden")
    for creator, expected, says in (
        (lambda: psycopg.connect(wrong), StoreError, "28P01"),
        (lambda: psycopg.connect("host=127.0.0.1 port=1 password=hidden"), StoreUnavailable, "cannot connect"),
        (fail, StoreUnavailable, "KeyError"),
        (begun, StoreUnavailable, "in a transaction"),
    ):
        with Client(_engine(creator=creator)) as client, pytest.raises(expected, match=says) as caught:
            client.lock("name").acquire(timeout=0)
        assert "hidden" not in str(caught.value)


def test_a_connection_of_the_other_form_is_refused() -> None:
    """The connections of the user's code serve the form of the API that they are made for."""
    url = "host=elsewhere.invalid"
    with Client(ELSEWHERE["async creator"](url)) as client, pytest.raises(UsageError, match="for asyncio"):
        client.lock("name").acquire(timeout=0)

    async def main() -> None:
        async with AsyncClient(ELSEWHERE["creator"](url)) as client:
            with pytest.raises(UsageError, match="blocking"):
                await client.lock("name").acquire(timeout=0)

    asyncio.run(main())


def test_a_listener_that_comes_later_is_noticed(postgres_server: PostgresServer) -> None:
    """A client whose engine connects elsewhere since it was made does not go on to where it connected before."""
    engine = create_engine(postgres_server.url.replace("postgresql", "postgresql+psycopg", 1))
    with Client(engine, namespace="pools") as client:
        _listening(engine, "host=elsewhere.invalid")
        with pytest.raises(StoreError, match="do_connect"):
            client.lock("name").acquire(timeout=0)


def test_arguments_of_engines_are_taken_over_as_they_are() -> None:
    """Each setting of libpq counts, whichever driver has it; what is only the driver's is left out."""
    given = {"sslmode": "require", "options": "-c search_path=locks", "connect_timeout": 3, "keepalives_idle": 9}
    for driver in ("psycopg", "psycopg2"):
        engine = create_engine(f"postgresql+{driver}://me@here/db", connect_args=given)
        deployment = deployment_of_pool(engine)
        assert deployment.hosts == [("here", 5432)]
        assert deployment.login == {
            "user": "me",
            "dbname": "db",
            "sslmode": "require",
            "options": "-c search_path=locks",
        }
    deployment = deployment_of_pool(
        create_engine("postgresql+psycopg://me@here/db", connect_args={"hostaddr": "127.0.0.9"})
    )
    assert deployment.hosts == [("here", 5432)]
    assert deployment.login["hostaddr"] == "127.0.0.9"


def test_an_address_goes_before_its_host(postgres_server: PostgresServer) -> None:
    """`hostaddr` is the server, and `host` its name alone, in both forms."""
    given: dict[str, Any] = conninfo_to_dict(postgres_server.url)
    text = make_conninfo(**{**given, "host": "elsewhere.invalid", "hostaddr": given["host"]})

    async def main() -> None:
        async with AsyncClient(AsyncConnectionPool(text, open=False), namespace="pools") as client:
            await (await client.lock("name").acquire(timeout=20)).release()

    with Client(ConnectionPool(text, open=False), namespace="pools") as client:
        client.lock("name").acquire(timeout=20).release()
    asyncio.run(main())


def test_the_arguments_of_a_pools_connections_count() -> None:
    """`kwargs` goes before the text, as in the pool itself; what only psycopg understands is left out."""
    pool = ConnectionPool(
        "host=one,two port=1,2 dbname=db user=me",
        kwargs={"user": "you", "password": SECRET, "sslmode": "require", "autocommit": True, "row_factory": None},
        open=False,
    )
    deployment = deployment_of_pool(pool)
    assert deployment.hosts == [("one", 1), ("two", 2)]
    assert deployment.login == {
        "dbname": "db",
        "user": "you",
        "password": SECRET,
        "sslmode": "require",
        "target_session_attrs": "read-write",
    }


def test_the_server_of_the_environment_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pool leaves to PGHOST and PGPORT, its client finds there as well."""
    monkeypatch.setenv("PGHOST", "db.example")
    monkeypatch.setenv("PGPORT", "5433")
    for make in (POOLS["pool"], POOLS["engine"]):
        assert deployment_of_pool(make("postgresql:///db")).hosts == [("db.example", 5433)]
        assert deployment_of_pool(make("postgresql://here/db")).hosts == [("here", 5433)]
    assert deployment_of_pool(POOLS["pool"]("hostaddr=127.0.0.2 dbname=db")).hosts == [("127.0.0.2", 5433)]
    monkeypatch.delenv("PGHOST")
    monkeypatch.delenv("PGPORT")
    assert deployment_of_pool(POOLS["pool"]("dbname=db")).hosts == [("localhost", 5432)]


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        (lambda: ConnectionPool(lambda: f"password='{SECRET}'", open=False), "`conninfo` of the pool is a function"),
        (lambda: ConnectionPool("", kwargs=lambda: {"password": SECRET}, open=False), "`kwargs` of the pool is a func"),
        (lambda: ConnectionPool("password=hidden and", open=False), "`conninfo` of the pool can't be understood"),
        (lambda: ConnectionPool("service=locks", open=False), "names a service"),
        (lambda: ConnectionPool("host=a,b,c port=1,2", open=False), "as many ports as hosts"),
        (lambda: ConnectionPool("host=a port=hidden", open=False), "as many ports as hosts"),
        (lambda: ConnectionPool("host=a,b hostaddr=1.1.1.1,1.1.1.2", open=False), "leave one of the two out"),
        (lambda: ConnectionPool("host=a", kwargs={"vault": "hidden"}, open=False), "argument `vault` of the pool"),
        (lambda: ConnectionPool("host=a replication=database", open=False), "argument `replication`"),
        (lambda: create_engine("postgresql+psycopg2://a/b", creator=object), "cannot use connections of psycopg2"),
        (
            lambda: create_engine("postgresql+psycopg2://a/b", connect_args={"ssl": ssl.create_default_context()}),
            "`sslmode`",
        ),
    ],
)
def test_what_cannot_be_taken_over_is_said(pool: Callable[[], object], says: str) -> None:
    """A pool whose server or login is not known now is refused in one sentence that repeats no password."""
    with pytest.raises(UsageError, match=says) as caught:
        Client(pool())
    assert "hidden" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("options", [{"schema": "a-b"}, {"connections": 0}, {"guard": "perhaps"}, {"max_ttl": 0.1}])
def test_the_options_of_a_source_are_checked(options: dict[str, object]) -> None:
    """An option has the values that it has in a URL."""
    with pytest.raises(UsageError, match=f"`{next(iter(options))}` is not valid"):
        postgresql_source(ConnectionPool("host=db", open=False), **options)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
