"""Ensembles of three servers, of either kind, behind one face; and what tests do to them and to sessions there."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Container, Generator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Store, StoreSource
from tenure.stores.etcd.directory import EtcdDirectory
from tenure.stores.etcd.keys import TOMBSTONE
from tenure.stores.ordered.store import OrderedStore
from tenure.stores.urls import store_source
from tenure.stores.zookeeper.directory import ZooKeeperDirectory
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import client_at
from tests.servers import EtcdEnsemble, EtcdServer, Proxy, ZooKeeperEnsemble, ZooKeeperServer

Address = tuple[str, int]
AnyServer = ZooKeeperServer | EtcdServer


class Ensemble(ABC):
    """Three servers, one of which leads."""

    kind: str
    keepable: float
    """A session that a busy machine can still keep: its client trusts it for more than two seconds."""

    @property
    @abstractmethod
    def servers(self) -> Sequence[AnyServer]:
        """All of them."""

    @abstractmethod
    def leader(self) -> AnyServer:
        """Return the leader, once there is one."""

    @abstractmethod
    def mend(self) -> None:
        """Make it whole again."""

    @abstractmethod
    def in_use(self, store: OrderedStore) -> AnyServer | None:
        """Return the server that a client asks; None while it has no connection."""

    @abstractmethod
    def end_session(self, store: OrderedStore) -> None:
        """Have the servers end a client's session, as its time does."""

    @abstractmethod
    def left(self, space: str) -> list[str]:
        """Return what lies in a part of the store: nodes or keys, but what is always there."""

    def followers(self) -> list[AnyServer]:
        """Return the others."""
        leader = self.leader()
        return [server for server in self.servers if server is not leader]

    def _at(self, port: int) -> AnyServer:
        return next(server for server in self.servers if server.port == port)

    def url(self, space: str, session: float, addresses: Sequence[Address] = ()) -> str:
        """Return where clients connect, with locks in a part of the store, and for how long a session lasts."""
        hosts = ",".join(f"{host}:{port}" for host, port in addresses or [each.address for each in self.servers])
        return f"{self.kind}://{hosts}/{space}?session_timeout={session:g}"


class ZooKeepers(Ensemble):
    """ZooKeeper servers."""

    kind = "zookeeper"
    keepable = 5.0

    def __init__(self, group: ZooKeeperEnsemble) -> None:
        """Use these."""
        self.group = group

    @property
    def servers(self) -> Sequence[AnyServer]:
        """All of them."""
        return self.group.servers

    def leader(self) -> AnyServer:
        """Return the leader."""
        return self.group.leader()

    def mend(self) -> None:
        """Make it whole again."""
        self.group.mend()

    def in_use(self, store: OrderedStore) -> AnyServer | None:
        """Return the server that a client is connected to."""
        assert isinstance(store.directory, ZooKeeperDirectory)
        handler = store.directory._session.link._handler
        assert handler is not None
        assert handler.wire is not None
        try:
            return self._at(handler.wire.getpeername()[1])
        except OSError:
            return None

    def end_session(self, store: OrderedStore) -> None:
        """Close it over another connection."""
        assert isinstance(store.directory, ZooKeeperDirectory)
        client = store.directory._session.link._client
        assert client is not None
        self._with(None, client_id=client.client_id)

    def left(self, space: str) -> list[str]:
        """Return all nodes but the roots and the mark of the stored form."""
        root = f"/{space}/tenure"

        def walk(client: Any, path: str) -> list[str]:  # noqa: ANN401 - kazoo has no types
            children = [f"{path}/{each}" for each in client.get_children(path)] if client.exists(path) else []
            return children + [each for child in children for each in walk(client, child)]

        found: list[str] = []

        def look(client: Any) -> None:  # noqa: ANN401 - kazoo has no types
            client.sync(f"/{space}")
            found.extend(walk(client, root))

        self._with(look)
        return [path for path in found if path not in {f"{root}/~channels", f"{root}/~form"}]

    def _with(self, work: Any, **options: Any) -> None:  # noqa: ANN401 - kazoo has no types
        hosts = ",".join(f"{host}:{port}" for host, port in (each.address for each in self.servers))
        client = import_module("kazoo.client").KazooClient(hosts=hosts, **options)
        try:
            client.start(10.0)
            if work is not None:
                work(client)
        finally:
            client.stop()
            client.close()


class Etcds(Ensemble):
    """etcd servers."""

    kind = "etcd"
    keepable = 3.0

    def __init__(self, group: EtcdEnsemble) -> None:
        """Use these."""
        self.group = group

    @property
    def servers(self) -> Sequence[AnyServer]:
        """All of them."""
        return self.group.servers

    def leader(self) -> AnyServer:
        """Return the leader."""
        return self.group.leader()

    def mend(self) -> None:
        """Make it whole again."""
        self.group.mend()

    def in_use(self, store: OrderedStore) -> AnyServer | None:
        """Return the server that a client asks first."""
        assert isinstance(store.directory, EtcdDirectory)
        return self._at(store.directory._gateway._address().port)

    def end_session(self, store: OrderedStore) -> None:
        """Revoke its lease."""
        assert isinstance(store.directory, EtcdDirectory)
        self.group.servers[0].revoke(str(int(store.directory.session(), 16)))

    def ends_living_sessions(self) -> bool:
        """Tell whether a leader that was stopped may end them when it goes on, though another one renewed them.

        https://github.com/etcd-io/etcd/issues/15247, mended in 3.4.31 and 3.5.13.
        """
        version = self.group.servers[0].version()
        return version < (3, 4, 31) or (3, 5) <= version < (3, 5, 13)

    def left(self, space: str) -> list[str]:
        """Return all keys but the mark of the stored form, and tombstones, whose leases last for half a minute."""
        keys = set(self.group.servers[0].keys(f"{space}/")) - {f"{space}/form"}
        return [key for key in keys if not key.rpartition("/")[2].startswith(TOMBSTONE)]

    def leases(self) -> list[str]:
        """Return the ids of all leases, of whichever test."""
        return self.group.servers[0].leases()

    def longest_lease(self, others: Container[str]) -> float:
        """Return the longest time, in seconds, for which a lease was granted that is not one of `others`."""
        spans = [
            self.group.servers[0].command("lease/timetolive", ID=lease)
            for lease in self.leases()
            if lease not in others
        ]
        return max((float(each.get("grantedTTL", 0)) for each in spans), default=0.0)


# -- clients -----------------------------------------------------------------------------------------------------


def tapped(source: StoreSource, made: list[OrderedStore]) -> StoreSource:
    """Return a source that notes the stores which it makes."""

    def make(runtime: Runtime) -> Store:
        store = source.make(runtime)
        assert isinstance(store, OrderedStore)
        made.append(store)
        return store

    return StoreSource(source.title, source.capabilities, make)


class Party:
    """A client of a scene, and the store below it."""

    def __init__(self, kit: Kit, url: str, **options: Any) -> None:  # noqa: ANN401 - options of a client
        """Make one at `url`."""
        self._made: list[OrderedStore] = []
        options = {"namespace": "", **options}
        self.client = client_at(kit, None, store=tapped(store_source(url), self._made), **options)

    @property
    def store(self) -> OrderedStore:
        """The store, once the client has done something."""
        return self._made[0]


@contextmanager
def proxies(servers: Sequence[AnyServer]) -> Generator[list[Proxy], None, None]:
    """Run a proxy in front of each server."""
    with ExitStack() as closing:
        yield [closing.enter_context(Proxy(server.address)) for server in servers]


def note(line: str) -> None:
    """Say something that is to be seen if the test fails, or by who asks for it."""
    sys.stdout.write(f"{line}\n")
