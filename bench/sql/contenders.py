"""All measured locks in PostgreSQL, MySQL and memcached, and their floors.

An opener takes the URL of the server and a number of members, and yields a handle for each member: the members are the
threads of one process, and share what the library lets threads share. The other libraries are imported only in the
processes that use them.
"""

import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from bench.contenders import NAME, Handle, LeaseHandle, PlainHandle
from bench.sql import floor
from bench.sql.servers import MEMCACHED, MYSQL, POSTGRESQL
from tenure import Client
from tenure.errors import UsageError
from tenure.stores.urls import store_source

TTL = 30.0
TEST_TIMEOUT = 20.0
"""How long a request may take on a busy machine, in seconds."""

Opener = Callable[[str, int], AbstractContextManager[list[Handle]]]

THREADS = "tenure threads"
ASYNCIO = "tenure asyncio"
ADVISORY = "tenure advisory"
ADVISORY_ASYNCIO = "tenure advisory, asyncio"
GET_LOCK = "tenure get_lock"
GET_LOCK_ASYNCIO = "tenure get_lock, asyncio"
POLLING = "tenure threads, polling"
PALS = "PALs"
DLOCK = "sqlalchemy-dlock"
TOOZ = "tooz"
SHERLOCK = "sherlock"

ROWS = (THREADS, ASYNCIO)
"""The contenders that keep leases: in rows, or in the items of memcached."""
SESSIONS = {POSTGRESQL: (ADVISORY, ADVISORY_ASYNCIO), MYSQL: (GET_LOCK, GET_LOCK_ASYNCIO), MEMCACHED: ()}
"""The contenders whose locks end with their sessions."""
OPTIONS = {
    ADVISORY: "mode=advisory",
    ADVISORY_ASYNCIO: "mode=advisory",
    GET_LOCK: "mode=get_lock",
    GET_LOCK_ASYNCIO: "mode=get_lock",
    POLLING: "notify=off",
}
"""The option of the URL that makes a contender what it is."""
POLLS = {POSTGRESQL: (), MYSQL: (POLLING,), MEMCACHED: ()}
"""The contender whose waiters poll although they could be woken."""
AWAITED = (ASYNCIO, ADVISORY_ASYNCIO, GET_LOCK_ASYNCIO)

PEERS = {POSTGRESQL: (PALS, DLOCK, TOOZ), MYSQL: (DLOCK, TOOZ), MEMCACHED: (TOOZ, SHERLOCK)}

MEANINGS = {
    THREADS: "tenure.Client, one a process",
    ASYNCIO: "tenure.AsyncClient, one a process",
    ADVISORY: "tenure.Client, ?mode=advisory: without a table, a lease is a lock of its session",
    ADVISORY_ASYNCIO: "tenure.AsyncClient, ?mode=advisory",
    GET_LOCK: "tenure.Client, ?mode=get_lock: without a table, a lease is a lock of its session",
    GET_LOCK_ASYNCIO: "tenure.AsyncClient, ?mode=get_lock",
    POLLING: "tenure.Client, ?notify=off: its waiters poll",
    PALS: "pals.Locker on a pool of SQLAlchemy and psycopg: a session lock, no lease",
    DLOCK: "sqlalchemy_dlock.create_sadlock on a connection of SQLAlchemy: a session lock, no lease",
    TOOZ: "a lock of tooz.coordination; its PostgreSQL and MySQL locks connect anew for each acquisition",
    SHERLOCK: "sherlock.MCLock on pylibmc: an item that is added and deleted, polls every 100 ms (its default)",
}


@dataclass(slots=True)
class Lineup:
    """The contenders of a kind that this version of Tenure can open, and why the others are left out."""

    labels: list[str]
    notes: list[str]


def lineup(kind: str, url: str, labels: tuple[str, ...]) -> Lineup:
    """Return which of some contenders can be measured on a server."""
    found = Lineup([], [])
    for label in labels:
        if label == SHERLOCK and find_spec("pylibmc") is None:
            found.notes.append(f"{label} is left out on {kind}: there is no pylibmc for this Python")
            continue
        try:
            if label.startswith("tenure"):
                store_source(url_of(label, url))
        except UsageError as error:
            found.notes.append(f"{label} is left out on {kind}: {str(error).rstrip('.')}")
        else:
            found.labels.append(label)
    return found


def url_of(label: str, url: str) -> str:
    """Return the URL of one of Tenure's contenders."""
    return f"{url}?{OPTIONS[label]}" if label in OPTIONS else url


# -- Tenure's -------------------------------------------------------------------------------------------------


@contextmanager
def leased(url: str, members: int, label: str = THREADS) -> Generator[list[Handle]]:
    """Open a Client, which all members share."""
    with Client(url_of(label, url), operation_timeout=TEST_TIMEOUT) as client:
        client.lock(NAME, TTL).acquire(timeout=TEST_TIMEOUT).release()  # connects, which is not measured
        lock = client.lock(NAME, TTL)
        yield [LeaseHandle(lock) for _ in range(members)]


# -- the peers' -------------------------------------------------------------------------------------------------


@contextmanager
def pals(url: str, members: int) -> Generator[list[Handle]]:
    """Make a Locker, whose pool has a connection for each member."""
    locker = import_module("pals").Locker(None, create_engine_callable=partial(_engine, url, members))
    with _disposing(locker.engine):
        yield [PlainHandle(locker.lock(NAME)) for _ in range(members)]


@contextmanager
def dlock(url: str, members: int) -> Generator[list[Handle]]:
    """Open a connection for each member. Nothing but the lock is done in its transaction, as in autocommit mode."""
    create: Any = import_module("sqlalchemy_dlock").create_sadlock
    with ExitStack() as stack:
        engine = _engine(url, members)
        stack.enter_context(_disposing(engine))
        connections = [stack.enter_context(engine.connect()) for _ in range(members)]
        yield [PlainHandle(_Within(create(each, NAME))) for each in connections]


@dataclass(slots=True)
class _Within:
    """A lock that is waited for with a timeout: MariaDB has no endless GET_LOCK, which MySQL has."""

    lock: Any

    def acquire(self) -> None:
        """Wait for the lock."""
        if not self.lock.acquire(timeout=TEST_TIMEOUT):
            message = f"no lock within {TEST_TIMEOUT} s"
            raise TimeoutError(message)

    def release(self) -> None:
        """Release the lock."""
        self.lock.release()


@contextmanager
def tooz(url: str, members: int) -> Generator[list[Handle]]:
    """Start a coordinator for each member."""
    coordination: Any = import_module("tooz.coordination")
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())  # it uses drivers in deprecated ways
        warnings.simplefilter("ignore", DeprecationWarning)
        handles: list[Handle] = []
        for member in range(members):
            coordinator = coordination.get_coordinator(url, f"member-{id(stack)}-{member}".encode())
            coordinator.start()
            stack.callback(coordinator.stop)
            handles.append(PlainHandle(coordinator.get_lock(NAME.encode())))
        yield handles


@contextmanager
def sherlock(url: str, members: int) -> Generator[list[Handle]]:
    """Open a client of pylibmc for each member, because threads cannot share it."""
    make: Any = import_module("sherlock").MCLock
    client: Any = import_module("pylibmc").Client
    servers = [urlsplit(url).netloc]
    locks = [
        make(f"sherlock-{NAME}", client=client(servers, binary=True), expire=int(TTL), timeout=60)
        for _ in range(members)
    ]
    yield [PlainHandle(lock) for lock in locks]


@contextmanager
def _disposing(engine: Any) -> Generator[None]:  # noqa: ANN401
    try:
        yield
    finally:
        engine.dispose()


def _engine(url: str, members: int) -> Any:  # noqa: ANN401
    driver = url.replace("postgresql://", "postgresql+psycopg://").replace("mysql://", "mysql+pymysql://")
    return import_module("sqlalchemy").create_engine(driver, pool_size=members)


# -- the floors -------------------------------------------------------------------------------------------------


@contextmanager
def bare(url: str, members: int, opener: floor.Opener) -> Generator[list[Handle]]:
    """Open the bare lock of each member."""
    with ExitStack() as stack:
        yield [PlainHandle(stack.enter_context(opener(url))) for _ in range(members)]


SESSION_LOCK = {POSTGRESQL: floor.ADVISORY, MYSQL: floor.GET_LOCK}
"""The floor of each kind that is a lock itself, so that it can be contended for."""

OPENERS: Mapping[str, Mapping[str, Opener]] = {
    POSTGRESQL: {
        THREADS: leased,
        ADVISORY: partial(leased, label=ADVISORY),
        PALS: pals,
        DLOCK: dlock,
        TOOZ: tooz,
        floor.ADVISORY: partial(bare, opener=floor.psycopg_lock),
    },
    MYSQL: {
        THREADS: leased,
        GET_LOCK: partial(leased, label=GET_LOCK),
        POLLING: partial(leased, label=POLLING),
        DLOCK: dlock,
        TOOZ: tooz,
        floor.GET_LOCK: partial(bare, opener=floor.pymysql_lock),
    },
    MEMCACHED: {THREADS: leased, TOOZ: tooz, SHERLOCK: sherlock},
}


@contextmanager
def one(kind: str, label: str, url: str) -> Generator[Handle]:
    """Open the lock of a contender for one member."""
    with OPENERS[kind][label](url, 1) as (handle,):
        yield handle
