"""The servers that the benchmarks start, where clients find them, and what they count."""

import os
import queue
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.workers import Worker
from tests.servers import (
    EtcdEnsemble,
    EtcdServer,
    MariaDbServer,
    MemcachedServer,
    PostgresServer,
    RedisServer,
    ZooKeeperEnsemble,
    ZooKeeperServer,
    five_nodes,
)
from tests.servers.resp import RespWire

FILES, REDIS, QUORUM, MEMCACHED = "files", "redis", "quorum", "memcached"
POSTGRESQL, MYSQL, ZOOKEEPER, ETCD = "postgresql", "mysql", "zookeeper", "etcd"

ONE, THREE = "one server", "ensemble of 3"
TEST_TIMEOUT = 20.0
"""How long a busy server may take to return its counters, in seconds."""


@dataclass(slots=True)
class Place:
    """Some servers of one kind, or a folder of files, as clients and meters see them."""

    url: str
    """The URL for clients. In an ensemble it names a follower, so that all contenders use servers of one role."""
    servers: Sequence[Any] = ()
    """Those whose processor time is counted."""
    version: str = ""
    """The program and its version, for people to read."""
    urls: Sequence[str] = ()
    """All servers of an ensemble."""
    pid: int = 0
    """The process of the only server."""

    def processor(self) -> dict[str, float]:
        """Return the processor seconds of the `servers`, by the clocks of their processes: they do nothing for it."""
        worked = [time.clock_gettime((~server.pid << 3) | 2) for server in self.servers]
        return {"servers": sum(worked)} if worked else {}

    def requests(self, _sent: Sequence[str]) -> dict[str, float]:
        """Return the number of `requests`; of those with some commands, if the servers tell them apart."""
        return {}

    def begin(self, sent: Sequence[str]) -> dict[str, float]:
        """Return all counters before some work."""
        return {**self.requests(sent), **self.processor()}

    def used(self, before: Mapping[str, float], sent: Sequence[str], times: float = 1.0) -> dict[str, float]:
        """Return how much they have grown, for each of so many times."""
        after = {**self.processor(), **self.requests(sent)}
        return {name: (after[name] - value) / max(1.0, times) for name, value in before.items()}

    def sweep(self, _key: str) -> int:
        """Delete a key that a peer may have left, and return the number of servers that had it."""
        return 0


@dataclass(slots=True)
class RedisPlace(Place):
    """One Redis server, or the nodes of a quorum, with a connection to each for commands that are not measured."""

    wires: Sequence[RespWire] = ()
    asked: int = 0

    def requests(self, sent: Sequence[str]) -> dict[str, float]:
        """Return the number of commands, without the benchmark's own."""
        counts: dict[str, float] = {"info": -self.asked}
        for server in self.servers:
            for name, said in server.info("commandstats").items():
                command = name.removeprefix("cmdstat_")
                counts[command] = counts.get(command, 0) + int(said.partition("calls=")[2].partition(",")[0])
        self.asked += len(self.servers)
        return {"requests": sum(counts.get(name, 0) for name in sent)}

    def sweep(self, key: str) -> int:
        """Delete a key from the nodes."""
        return sum(wire.command("DEL", key) == 1 for wire in self.wires) if key else 0


@dataclass(slots=True)
class ZooKeeperPlace(Place):
    """ZooKeeper servers."""

    asked: int = 0
    """The number of the benchmark's own requests, which the servers count as well."""

    def requests(self, _sent: Sequence[str] = ()) -> dict[str, float]:
        """Return the number of requests, including pings."""
        return {"requests": self._sum("zk_packets_received") - self.asked}

    def watches(self) -> float:
        """Return the present number of watches."""
        return self._sum("zk_watch_count")

    def events(self) -> float:
        """Return the number of events sent to clients."""
        return sum(
            self._sum(f"zk_sum_node_{what}_watch_count") for what in ("created", "deleted", "changed", "children")
        )

    def _sum(self, name: str) -> float:
        self.asked += len(self.servers)
        return sum(_read(server.say("mntr", TEST_TIMEOUT)).get(name, 0.0) for server in self.servers)


@dataclass(slots=True)
class EtcdPlace(Place):
    """etcd servers."""

    def requests(self, _sent: Sequence[str] = ()) -> dict[str, float]:
        """Return the number of received messages, also on streams. The gateway forwards its requests by gRPC."""
        return {"requests": self._sum("grpc_server_msg_received_total")}

    def watches(self) -> float:
        """Return the present number of watches."""
        return self._sum("etcd_debugging_mvcc_watcher_total")

    def events(self) -> float:
        """Return the number of events sent to clients."""
        return self._sum("etcd_debugging_mvcc_events_total")

    def _sum(self, name: str) -> float:
        found = 0.0
        for server in self.servers:
            url = "http://{}:{}/metrics".format(*server.address)
            with urllib.request.urlopen(url, timeout=TEST_TIMEOUT) as answer:  # noqa: S310 - it is http
                values = _read(answer.read().decode())
            found += sum(value for key, value in values.items() if key.partition("{")[0] == name)
        return found


def _read(lines: str) -> dict[str, float]:
    """Parse lines of a name and a number, and skip other lines."""
    found: dict[str, float] = {}
    for line in lines.splitlines():
        name, _, value = line.rpartition("\t" if "\t" in line else " ")
        try:
            found[name] = float(value)
        except ValueError:
            continue
    return found


# -- how they are started -----------------------------------------------------------------------------------------

Places = Mapping[str, Any]
"""The places of one store by their names; the name of the only one is empty."""
NO_DISK = "which does not wait for the disk"


@contextmanager
def running(store: str, folder: Path, *, ensembles: bool = True) -> Generator[Places]:
    """Run the servers of a store on free ports of the loopback: one, and an ensemble if it is measured."""
    with STORES[store](folder / store, ensembles=ensembles) as places:
        yield places


@contextmanager
def _files(folder: Path, **_: bool) -> Generator[Places]:
    """Make a folder, with a named pipe of one byte, which stays there while the pipe is open."""
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    descriptor = os.open(folder / "pipe", os.O_RDWR)
    os.write(descriptor, b".")
    try:
        yield {"": Place(f"sqlite://{folder / 'locks.db'}")}
    finally:
        os.close(descriptor)


@contextmanager
def _redis(folder: Path, **_: bool) -> Generator[Places]:
    with RedisServer(folder) as server:
        yield {"": RedisPlace(server.url, [server], pid=server.pid)}


@contextmanager
def _nodes(folder: Path, **_: bool) -> Generator[Places]:
    """Run five independent servers; a quorum is of three or of all, and one alone is what it is compared with."""
    with ExitStack() as stack:
        servers = stack.enter_context(five_nodes(folder))
        wires = [stack.enter_context(server.connect()) for server in servers]
        places: dict[str, Place] = {}
        for count in (1, 3, 5):
            nodes = ",".join("{}:{}".format(*server.address) for server in servers[:count])
            url = f"redlock://{nodes}?guard=observed" if count > 1 else servers[0].url  # they are new
            name = f"{count} node{'s' if count > 1 else ''}"
            places[name] = RedisPlace(url, servers[:count], wires=wires[:count])
        yield places


@contextmanager
def _database(kind: Callable[[Path], Any], asking: str, name: str, folder: Path, **_: bool) -> Generator[Places]:
    with kind(folder) as server:
        ((said,),) = server.execute(asking)
        version = f"{name} {said.split()[0].partition('-')[0]}, {NO_DISK}"
        yield {"": Place(server.url, version=version, pid=server.pid)}


@contextmanager
def _memcached(folder: Path, **_: bool) -> Generator[Places]:
    with MemcachedServer(folder) as server:
        yield {"": Place(server.url, [server], "memcached", pid=server.pid)}


@contextmanager
def _ensembles(
    one: Callable[[Path], Any], three: Callable[[Path], Any], made: Callable[..., Place], scheme: str, folder: Path,
    *, ensembles: bool,
) -> Generator[Places]:  # fmt: skip
    with ExitStack() as stack:
        groups = {ONE: [stack.enter_context(one(folder / "one"))]}
        if ensembles:
            ensemble = stack.enter_context(three(folder / "three"))
            groups[THREE] = [*ensemble.followers(), ensemble.leader()]
        version = _version(scheme, groups[ONE][0])
        urls = {name: ["{}://{}:{}".format(scheme, *each.address) for each in group] for name, group in groups.items()}
        yield {name: made(urls[name][0], group, version, urls[name]) for name, group in groups.items()}


def _version(scheme: str, server: Any) -> str:  # noqa: ANN401 - of either kind
    if scheme == ETCD:
        return f"etcd {server.status()['version']}, {NO_DISK}"
    said = server.say("srvr", TEST_TIMEOUT).partition("version: ")[2].partition("-")[0]
    return f"ZooKeeper {said}, {NO_DISK}"


STORES: Mapping[str, Callable[..., AbstractContextManager[Places]]] = {
    FILES: _files,
    REDIS: _redis,
    QUORUM: _nodes,
    POSTGRESQL: partial(_database, PostgresServer, "SHOW server_version", "PostgreSQL"),
    MYSQL: partial(_database, MariaDbServer, "SELECT version()", "MariaDB"),
    MEMCACHED: _memcached,
    ZOOKEEPER: partial(_ensembles, ZooKeeperServer, ZooKeeperEnsemble, ZooKeeperPlace, ZOOKEEPER),
    ETCD: partial(_ensembles, EtcdServer, EtcdEnsemble, EtcdPlace, ETCD),
}


# -- where they run -----------------------------------------------------------------------------------------------


@contextmanager
def placed(server: int, cores: int) -> Generator[None]:
    """Run this process on the first core, and the server of a process id on the last of so many cores; 0: anywhere.

    Left to the system, they are on one core in some rounds and on two in others, where a pair takes up to three times
    as long. A ratio of a round of the one kind to a round of the other says nothing.
    """
    there = sorted(os.sched_getaffinity(0))
    if not cores or len(there) < cores:
        yield
        return
    for thread in Path(f"/proc/{server}/task").iterdir():  # the processes that it starts for connections follow it
        os.sched_setaffinity(int(thread.name), there[cores - 1 : cores])
    os.sched_setaffinity(0, there[:1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, there)


@contextmanager
def busy() -> Generator[None]:
    """Keep each core busy with another process."""
    with ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            stack.enter_context(Worker(_burn))
        yield


def _burn(line: Connection) -> None:
    while not line.poll():
        sum(range(10_000))


@contextmanager
def distant(url: str, delay: float) -> Generator[str]:
    """Yield the URL of a server behind a relay that delays each message, both ways, by so many seconds."""
    if not delay:
        yield url
        return
    scheme, _, rest = url.partition("://")
    address, _, path = rest.partition("/")
    host, _, port = address.rpartition(":")
    with Worker(_relay, (host, int(port)), delay) as worker:
        yield f"{scheme}://127.0.0.1:{worker.answer()}/{path}"


def _relay(line: Connection, server: tuple[str, int], delay: float) -> None:
    """Relay connections. A thread reads and another writes, so that a chunk is not late because of the one before."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line.send(listener.getsockname()[1])
        while True:
            ends = listener.accept()[0], socket.create_connection(server)
            for end in ends:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, target in (ends, ends[::-1]):
                chunks: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                threading.Thread(target=_read_chunks, args=(source, chunks, delay), daemon=True).start()
                threading.Thread(target=_write_chunks, args=(target, chunks), daemon=True).start()


def _read_chunks(source: socket.socket, chunks: "queue.SimpleQueue[tuple[float, bytes]]", delay: float) -> None:
    with suppress(OSError):
        while chunk := source.recv(65_536):
            chunks.put((time.monotonic() + delay, chunk))
    chunks.put((0.0, b""))


def _write_chunks(target: socket.socket, chunks: "queue.SimpleQueue[tuple[float, bytes]]") -> None:
    with suppress(OSError):
        while (item := chunks.get())[1]:
            time.sleep(max(0.0, item[0] - time.monotonic()))
            target.sendall(item[1])
        target.shutdown(socket.SHUT_RDWR)
