"""The floors: bare locks of the servers' own, and Tenure's own statements without its client."""

import itertools
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from bench.contenders import NAME, Plain
from tenure.stores.sql.rows import pack_holder

ADVISORY = "bare advisory lock"
GET_LOCK = "bare GET_LOCK"
CALLS = "bare calls of tenure's functions"
TRIPS = "bare SELECT 1, twice"

MEANINGS = {
    ADVISORY: "floor: pg_advisory_lock + pg_advisory_unlock, one psycopg connection a thread, prepared",
    GET_LOCK: "floor: GET_LOCK + RELEASE_LOCK, one PyMySQL connection a thread",
    CALLS: "floor: the two statements that tenure sends, by libpq alone; no lock, for it waits for nobody",
    TRIPS: "floor: two round trips by libpq alone",
}

Opener = Callable[[str], AbstractContextManager[Plain]]
Pair = Callable[[], object]

KEY = 4_711
MICROS = 1_000_000
TTL = 30 * MICROS
LONGEST_TTL = 60 * MICROS


class PsycopgLock:
    """An advisory lock."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401
        """Use a connection in autocommit mode."""
        self._execute = connection.execute

    def acquire(self) -> None:
        """Wait until the lock is held."""
        self._execute("SELECT pg_advisory_lock(%s)", (KEY,), prepare=True)

    def release(self) -> None:
        """Release the lock."""
        self._execute("SELECT pg_advisory_unlock(%s)", (KEY,), prepare=True)


class PyMySqlLock:
    """A named lock of MySQL."""

    def __init__(self, cursor: Any) -> None:  # noqa: ANN401
        """Use a cursor."""
        self._cursor = cursor

    def acquire(self) -> None:
        """Wait until the lock is held."""
        self._run("SELECT GET_LOCK(%s, 60)")

    def release(self) -> None:
        """Release the lock."""
        self._run("SELECT RELEASE_LOCK(%s)")

    def _run(self, sql: str) -> None:
        self._cursor.execute(sql, (NAME,))
        assert self._cursor.fetchone() == (1,)  # noqa: S101 - else it is not held


@contextmanager
def psycopg_lock(url: str) -> Generator[Plain]:
    """Open an advisory lock on a connection of its own."""
    with closing(import_module("psycopg").connect(url, autocommit=True)) as connection:
        yield PsycopgLock(connection)


@contextmanager
def pymysql_lock(url: str) -> Generator[Plain]:
    """Open a named lock on a connection of its own."""
    parts = urlsplit(url)
    connect = import_module("pymysql").connect
    login = {"user": parts.username, "password": parts.password, "database": parts.path[1:]}
    with closing(connect(host=parts.hostname, port=parts.port, autocommit=True, **login)) as connection:
        yield PyMySqlLock(connection.cursor())


@contextmanager
def libpq(url: str) -> Generator[Any]:
    """Connect by libpq alone."""
    pgconn = import_module("psycopg.pq").PGconn.connect(url.encode())
    try:
        yield pgconn
    finally:
        pgconn.finish()


def calls_pair(pgconn: Any) -> Pair:  # noqa: ANN401
    """Return the two statements of a pair of Tenure on a name of its own. The tables must be there."""
    statements = import_module("tenure.stores.postgresql.statements").PgStatements("", "tenure_")
    acquire, release = statements.acquire, statements.release
    pgconn.exec_(b"SET plan_cache_mode = force_generic_plan")
    for each in (acquire, release):
        pgconn.prepare(each.name, each.text)
    holder = pack_holder("tenure_0123456789abcdef", "host/1234", notify_contended=True).encode()
    numbers = itertools.count(1)
    lease = (b"%d" % TTL, b"0", b"0", b"1000000")
    waiter = (b'"0123456789abcdef","tenure_0123456789abcdef","host/1234"', b"tenure_0123456789abcdef", b"4000000")
    rules = (b"%d" % LONGEST_TTL, b"f")

    def pair() -> None:
        request_id = b"0123456789abcdef0123456789abcdef-%x" % next(numbers)
        granted = pgconn.exec_prepared(acquire.name, (b"bare", request_id, holder, *lease, *waiter, *rules))
        released = pgconn.exec_prepared(release.name, (b"bare", request_id, *rules))
        assert int(granted.get_value(0, 0)) > 0  # noqa: S101 - else this is no floor
        assert released.get_value(0, 0) == b"t"  # noqa: S101

    return pair


def trips_pair(pgconn: Any) -> Pair:  # noqa: ANN401
    """Return two statements that do nothing."""
    pgconn.prepare(b"one", b"SELECT 1")

    def pair() -> None:
        pgconn.exec_prepared(b"one", ())
        pgconn.exec_prepared(b"one", ())

    return pair
