"""The server of each kind of store, for one benchmark."""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import MariaDbServer, MemcachedServer, PostgresServer

POSTGRESQL = "postgresql"
MYSQL = "mysql"
MEMCACHED = "memcached"

NO_DISK = ", which does not wait for the disk"


@dataclass(slots=True, frozen=True)
class Place:
    """A running server."""

    kind: str
    url: str
    version: str
    """The program and its version, for people to read."""
    pid: int


@contextmanager
def running(kind: str, folder: Path) -> Generator[Place]:
    """Run a server of a kind, on a free port of the loopback."""
    with SERVERS[kind](folder / kind) as place:
        yield place


@contextmanager
def _postgresql(folder: Path) -> Generator[Place]:
    with PostgresServer(folder) as server:
        ((version,),) = server.execute("SHOW server_version")
        yield Place(POSTGRESQL, server.url, f"PostgreSQL {version.partition(' ')[0]}{NO_DISK}", server.pid)


@contextmanager
def _mysql(folder: Path) -> Generator[Place]:
    with MariaDbServer(folder) as server:
        ((version,),) = server.execute("SELECT version()")
        yield Place(MYSQL, server.url, f"MariaDB {version.partition('-')[0]}{NO_DISK}", server.pid)


@contextmanager
def _memcached(folder: Path) -> Generator[Place]:
    with MemcachedServer(folder) as server:
        yield Place(MEMCACHED, server.url, "memcached", server.pid)


SERVERS: Mapping[str, Callable[[Path], AbstractContextManager[Place]]] = {
    POSTGRESQL: _postgresql,
    MYSQL: _mysql,
    MEMCACHED: _memcached,
}
