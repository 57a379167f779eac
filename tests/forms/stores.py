"""What each store keeps, and how a later release would leave it: for tests that look past the client."""

import base64
import contextlib
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from kazoo.client import KazooClient

from tenure.contracts.cells import CellStore, cell_name
from tenure.contracts.store import Store
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.redis.names import NODE, state_key
from tenure.stores.urls import store_source
from tenure.stores.zookeeper.options import ROOT
from tests.servers import (
    EtcdServer,
    MariaDbServer,
    MemcachedServer,
    PostgresServer,
    RedisServer,
    ZooKeeperServer,
)
from tests.servers.etcd import after, encoded
from tests.servers.mariadb import PASSWORD

LATER = "form 2 0.2.0 "
"""The mark of the made-up next form."""


LONG = 3600
"""The longest ttl in Redis, in seconds: the longer it is, the longer is the marker not written."""

TABLES = ("tenure_names", "tenure_meta", "tenure_cells")
"""What a database keeps, but for messages."""


ALL = "SELECT * FROM {table}"

ROW = """
INSERT INTO tenure_names
VALUES ('{name}', 1, 1, {false}, '', '', 0, 0, 0, 0, '', '', 0, 0, 'form 2 0.2.0 ', ''{more})
"""
"""Writes the state of a name as a later form may have it; it looks old."""


class Kept(ABC):
    """What a store keeps."""

    url: str
    numbered = True
    """Whether the store keeps a number apart from its values."""
    at_once = True
    """Whether a running client looks at the number whenever it acquires; else it does so now and then."""
    queues = True
    """Whether `inspect` shows waiters."""
    together = True
    """Whether several names are acquired in one step."""
    cells = True
    secret = ""
    """A part of the URL that no error may have."""

    @abstractmethod
    def mark(self) -> str:
        """Return the mark that the store keeps; "" if there is none."""

    @abstractmethod
    def plant(self, name: str) -> None:
        """Write the state of a name as a later form may have it."""

    @abstractmethod
    def dump(self) -> list[object]:
        """Return all that is kept, but for what belongs to sessions."""

    def plant_cell(self, name: str) -> None:
        """Write a counter as a later form may have it."""
        with self._store() as (store, until):
            assert isinstance(store, CellStore)
            assert drive(store.write_cell(cell_name("counter", "", name), LATER.encode() + b"{}", 0, 0, until)).written

    @contextlib.contextmanager
    def _store(self) -> Generator[tuple[Store, float], None, None]:
        runtime = ThreadsRuntime()
        store = store_source(self.url).make(runtime)
        until = runtime.now() + 20.0
        drive(store.open(lambda _: None, until))
        yield store, until
        drive(store.close())


class KeptInRedis(Kept):
    """One server, of this test alone: its marker is that of all names."""

    def __init__(self, server: RedisServer) -> None:
        """Look at a server."""
        self.url = f"{server.url}?max_ttl={LONG}"
        self._server = server

    def mark(self) -> str:
        """Return what the marker begins with."""
        return beginning(str(self._server.command("GET", NODE) or ""))

    def plant(self, name: str) -> None:
        """Write a state."""
        self._server.command("HSET", state_key(name), "=", f"{LATER}\x01\x02")

    def dump(self) -> list[object]:
        """Return all keys."""
        keys = self._server.command("KEYS", "*")
        assert isinstance(keys, list)
        return [(str(key), self._server.command("DUMP", key)) for key in keys]


class KeptInQuorum(Kept):
    """Three servers, of this test alone."""

    together = False
    cells = False

    def __init__(self, servers: Sequence[RedisServer]) -> None:
        """Look at the servers."""
        self._nodes = [KeptInRedis(server) for server in servers]
        hosts = ",".join(urlsplit(node.url).netloc for node in self._nodes)
        self.url = f"redlock://{hosts}?guard=observed&max_ttl={LONG}"

    def mark(self) -> str:
        """Return the mark of all nodes that have one: of a majority at least."""
        return " and ".join({mark for node in self._nodes if (mark := node.mark())})

    def plant(self, name: str) -> None:
        """Write a state at each node."""
        for node in self._nodes:
            node.plant(name)

    def dump(self) -> list[object]:
        """Return all keys of all nodes."""
        return [(place, each) for place, node in enumerate(self._nodes) for each in node.dump()]


class KeptInFile(Kept):
    """A lock file."""

    def __init__(self, path: Path) -> None:
        """Look at a file."""
        self.url = f"sqlite://{path}"
        self._path = path

    def _execute(self, sql: str, *args: object) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=20)) as connection, connection:
            return connection.execute(sql, args).fetchall()

    def mark(self) -> str:
        """Return the mark in the table of settings."""
        return str(self._execute("SELECT form FROM meta")[0][0])

    def plant(self, name: str) -> None:
        """Write a row, which looks old."""
        self._execute("INSERT INTO names VALUES (?, 1, 1, 0, ?)", name, LATER)

    def dump(self) -> list[object]:
        """Return all rows."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=20)) as connection:
            return [*connection.iterdump()]


class KeptInPostgres(Kept):
    """The tables of a database."""

    def __init__(self, server: PostgresServer) -> None:
        """Make a database."""
        self.url = server.create_database(f"forms_{uuid4().hex[:12]}")
        self._server = server

    def _execute(self, sql: str) -> list[Any]:
        with self._server.connect(self.url) as connection:
            done = connection.execute(sql.encode())
            return done.fetchall() if done.description else []

    def mark(self) -> str:
        """Return the mark in the table of settings."""
        form, needs = self._execute("SELECT form, needs FROM tenure_meta")[0]
        return f"form {form} {needs} "

    def plant(self, name: str) -> None:
        """Write a row, which looks old."""
        self._execute(ROW.format(name=name, false="false", more=", 0, 0"))

    def dump(self) -> list[object]:
        """Return all rows."""
        return [row for table in TABLES for row in self._execute(ALL.format(table=table))]


class KeptInMySql(Kept):
    """The tables of a database."""

    secret = PASSWORD

    def __init__(self, server: MariaDbServer) -> None:
        """Make a database."""
        self._name = f"forms_{uuid4().hex[:12]}"
        self.url = server.create_database(self._name)
        self._server = server

    def _execute(self, sql: str) -> list[Any]:
        return self._server.execute(sql.replace("tenure_", f"{self._name}.tenure_"))

    def mark(self) -> str:
        """Return the mark in the table of settings."""
        form, needs = self._execute("SELECT form, needs FROM tenure_meta")[0]
        return f"form {form} {bytes(needs).decode()} "

    def plant(self, name: str) -> None:
        """Write a row, which looks old."""
        self._execute(ROW.format(name=name, false="0", more=""))

    def dump(self) -> list[object]:
        """Return all rows but messages."""
        return [row for table in TABLES for row in self._execute(ALL.format(table=table))]


class KeptInMemcached(Kept):
    """The items of a prefix."""

    numbered = False
    queues = False
    together = False
    cells = False

    def __init__(self, server: MemcachedServer) -> None:
        """Choose a prefix."""
        self._prefix = f"f{uuid4().hex[:12]}"
        self.url = f"{server.url}/{self._prefix}"
        self._server = server

    def mark(self) -> str:
        """Return what the record of the latest form begins with."""
        return max((beginning(text) for _, text in self._kept()), default="")

    def plant(self, name: str) -> None:
        """Store an item."""
        said = self._server.command(f"set {self._prefix}:{name} 0 600 {len(LATER)}\r\n{LATER}\r\n".encode())
        assert said == b"STORED\r\n"

    def dump(self) -> list[object]:
        """Return all items."""
        return [*self._kept()]

    def _kept(self) -> list[tuple[str, str]]:
        every = self._server.keys()
        keys = [key for each in every if (key := unquote(each)).startswith(f"{self._prefix}:")]
        return [
            (key, self._server.command(f"get {key}\r\n".encode(), b"END\r\n").decode().partition("\r\n")[2])
            for key in keys
        ]


class KeptInEtcd(Kept):
    """The keys of a prefix."""

    at_once = False
    together = False

    def __init__(self, server: EtcdServer) -> None:
        """Choose a prefix."""
        self._prefix = f"forms-{uuid4().hex[:12]}"
        self.url = f"{server.url}/{self._prefix}?session_timeout=3"
        self._server = server

    def mark(self) -> str:
        """Return the value of the key of the mark."""
        return dict(self._kept()).get("form", "")

    def plant(self, name: str) -> None:
        """Write an entry."""
        key = f"{self._prefix}/n/{name}/{LATER}c1"
        self._server.command("kv/put", key=encoded(key), value=encoded("{}"))

    def dump(self) -> list[object]:
        """Return all keys but those of sessions, and what ends with sessions."""
        return [*self._kept()]

    def _kept(self) -> list[tuple[str, str]]:
        prefix = f"{self._prefix}/"
        found = self._server.command("kv/range", key=encoded(prefix), range_end=encoded(after(prefix)))
        kvs = [
            (base64.b64decode(each["key"]).decode(), base64.b64decode(each.get("value", "")).decode())
            for each in found.get("kvs", [])
            if "lease" not in each
        ]
        return [(key.removeprefix(prefix), value) for key, value in kvs]


class KeptInZooKeeper(Kept):
    """The nodes below a path."""

    at_once = False
    together = False

    def __init__(self, server: ZooKeeperServer) -> None:
        """Choose a path."""
        path = f"/forms-{uuid4().hex[:12]}"
        self.url = f"{server.url}{path}?session_timeout=4"
        self._root = path + ROOT
        host, port = server.address
        self._hosts = f"{host}:{port}"

    @contextlib.contextmanager
    def _client(self) -> Generator[Any, None, None]:
        client: Any = cast("Any", KazooClient)(self._hosts)
        client.start()
        yield client
        client.stop()
        client.close()

    def mark(self) -> str:
        """Return the data of the node of the mark."""
        with self._client() as client:
            return str(client.get(f"{self._root}/~form")[0].decode())

    def plant(self, name: str) -> None:
        """Write an entry."""
        with self._client() as client:
            client.create(f"{self._root}/{name}/{LATER}c", b"", makepath=True)

    def dump(self) -> list[object]:
        """Return all nodes that belong to no session."""
        with self._client() as client:
            return [*self._below(client, self._root)]

    def _below(self, client: Any, path: str) -> Iterator[tuple[str, bytes]]:  # noqa: ANN401 - kazoo's
        for child in client.get_children(path):
            below = f"{path}/{child}"
            data, stat = client.get(below)
            if not stat.ephemeralOwner:
                yield below, data
                yield from self._below(client, below)


def beginning(text: str) -> str:
    """Return the mark that a text begins with; "" without one."""
    found = re.match(r"form \d+ \S+ ", text)
    return found[0] if found else ""
