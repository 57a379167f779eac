"""The ZooKeeper or etcd servers of both benchmarks, and their counters."""

import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.servers import EtcdEnsemble, EtcdServer, ZooKeeperEnsemble, ZooKeeperServer

ZOOKEEPER = "zookeeper"
ETCD = "etcd"

ONE = "one server"
THREE = "ensemble of 3"

TEST_TIMEOUT = 20.0
"""How long a busy server may take to return its counters, in seconds."""

Address = tuple[str, int]


@dataclass(slots=True, frozen=True)
class Case:
    """One contender on some servers."""

    label: str
    place: str

    def __str__(self) -> str:
        return f"{self.place}, {self.label}"


class Meters(Protocol):
    """The counters of some servers."""

    @property
    def version(self) -> str:
        """The program of the servers, and its version."""
        ...

    def requests(self) -> float:
        """Return the number of client requests since some instant."""
        ...

    def watches(self) -> float:
        """Return the present number of watches."""
        ...

    def events(self) -> float:
        """Return the number of events sent to clients."""
        ...


@dataclass(slots=True)
class ZooKeeperMeters:
    """The counters of ZooKeeper servers."""

    servers: Sequence[ZooKeeperServer]
    _own_requests: int = 0
    """The number of the benchmark's own requests, which the servers count as well."""

    @property
    def version(self) -> str:
        """The program of the servers, and its version."""
        self._own_requests += 1
        reply = self.servers[0].say("srvr", TEST_TIMEOUT)
        return "ZooKeeper " + reply.partition("version: ")[2].partition("-")[0]

    def requests(self) -> float:
        """Return the number of requests, including pings."""
        return self._sum("zk_packets_received") - self._own_requests

    def watches(self) -> float:
        """Return the number of watches."""
        return self._sum("zk_watch_count")

    def events(self) -> float:
        """Return the number of events sent."""
        return sum(
            self._sum(f"zk_sum_node_{what}_watch_count") for what in ("created", "deleted", "changed", "children")
        )

    def _sum(self, name: str) -> float:
        self._own_requests += len(self.servers)
        return sum(_read(server.say("mntr", TEST_TIMEOUT)).get(name, 0.0) for server in self.servers)


@dataclass(slots=True)
class EtcdMeters:
    """The counters of etcd servers."""

    servers: Sequence[EtcdServer]

    @property
    def version(self) -> str:
        """The program of the servers, and its version."""
        return f"etcd {self.servers[0].status()['version']}"

    def requests(self) -> float:
        """Return the number of received messages, also on streams. The gateway forwards its requests by gRPC."""
        return self._sum("grpc_server_msg_received_total")

    def watches(self) -> float:
        """Return the number of watches."""
        return self._sum("etcd_debugging_mvcc_watcher_total")

    def events(self) -> float:
        """Return the number of events sent."""
        return self._sum("etcd_debugging_mvcc_events_total")

    def _sum(self, name: str) -> float:
        metrics = (_metrics(server.address) for server in self.servers)
        return sum(value for each in metrics for key, value in each.items() if key.partition("{")[0] == name)


@dataclass(slots=True)
class Place:
    """Some servers of one kind."""

    kind: str
    addresses: list[Address]
    meters: Meters
    one: Address = field(init=False)
    """The server of the pair benchmark: a follower, if there are followers."""

    def __post_init__(self) -> None:
        self.one = self.addresses[0]

    def url(self, number: int = 0) -> str:
        """Return the URL of one of the servers, in rotation."""
        return url_of(self.kind, self.addresses[number % len(self.addresses)])


def url_of(kind: str, address: Address) -> str:
    """Return the URL of the store at one server."""
    return f"{kind}://{address[0]}:{address[1]}"


@contextmanager
def running(kind: str, folder: Path, *, ensembles: bool) -> Generator[Mapping[str, Place]]:
    """Run one server, and an ensemble of three if it is measured."""
    run_one, run_three = (_one_zookeeper, _three_zookeepers) if kind == ZOOKEEPER else (_one_etcd, _three_etcds)
    with ExitStack() as stack:
        places = {ONE: stack.enter_context(run_one(folder / "one"))}
        if ensembles:
            places[THREE] = stack.enter_context(run_three(folder / "three"))
        yield places


@contextmanager
def _one_zookeeper(folder: Path) -> Generator[Place]:
    with ZooKeeperServer(folder) as server:
        yield Place(ZOOKEEPER, [server.address], ZooKeeperMeters([server]))


@contextmanager
def _three_zookeepers(folder: Path) -> Generator[Place]:
    """Run an ensemble. A follower comes first, so that all contenders use servers with the same role."""
    with ZooKeeperEnsemble(folder) as ensemble:
        servers = [*ensemble.followers(), ensemble.leader()]
        yield Place(ZOOKEEPER, [each.address for each in servers], ZooKeeperMeters(servers))


@contextmanager
def _one_etcd(folder: Path) -> Generator[Place]:
    with EtcdServer(folder) as server:
        yield Place(ETCD, [server.address], EtcdMeters([server]))


@contextmanager
def _three_etcds(folder: Path) -> Generator[Place]:
    """Run an ensemble. A follower comes first, as in ZooKeeper."""
    with EtcdEnsemble(folder) as ensemble:
        servers = [*ensemble.followers(), ensemble.leader()]
        yield Place(ETCD, [each.address for each in servers], EtcdMeters(servers))


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


def _metrics(address: Address) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=TEST_TIMEOUT) as answer:
        return _read(answer.read().decode())
