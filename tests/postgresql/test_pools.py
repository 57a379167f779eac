"""Clients of a user's pool or engine: they take over how to connect, and leave its connections alone."""

import asyncio
from collections.abc import Callable
from uuid import uuid4

import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool, NullConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from tenure import AsyncClient, Client, UsageError
from tenure.stores.postgresql import postgresql_source
from tenure.stores.postgresql.options import deployment_of_pool
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
