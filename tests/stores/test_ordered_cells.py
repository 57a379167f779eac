"""Cells in ZooKeeper and etcd: versions never recur, and the time is the server's."""

import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from tenure import Client, StoreError, StoreUnavailable
from tenure.contracts.cells import Cell
from tenure.core.requests import Settings
from tenure.core.session import Session
from tenure.core.slots import take_slot
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.etcd.http import EtcdReply, JsonObject
from tenure.stores.ordered.store import OrderedCellStore
from tenure.stores.urls import store_source
from tenure.stores.zookeeper import cells as zookeeper_cells
from tenure.stores.zookeeper.directory import ZooKeeperDirectory
from tenure.stores.zookeeper.nodes import ZooKeeperNodes
from tenure.table.limit import SmoothRule
from tests.servers import EtcdServer, ZooKeeperServer

HOUR = 3600 * 1_000_000


class SkewedRuntime(ThreadsRuntime):
    """A runtime whose wall clock is wrong."""

    def __init__(self) -> None:
        """Start with the right time."""
        super().__init__()
        self.skew = 0
        right = self.wall
        self.wall = lambda: right() + self.skew


class Cells:
    """Cells of a store without the protocol of a client."""

    def __init__(self, url: str) -> None:
        """Open the store."""
        self.runtime = SkewedRuntime()
        store = store_source(url).make(self.runtime)
        assert isinstance(store, OrderedCellStore)
        self.store = store
        drive(store.open(lambda _: None, self.until()))

    def read(self, name: str) -> Cell:
        """Return a cell."""
        return drive(self.store.read_cell(name, self.until()))

    def write(self, name: str, value: bytes, version: int) -> Cell:
        """Write a cell."""
        return drive(self.store.write_cell(name, value, version, 0, self.until()))

    def tidy(self) -> None:
        """Delete the nodes of removed cells."""
        directory = self.store.directory
        assert isinstance(directory, ZooKeeperDirectory)
        drive(directory.cells.remove_unused(self.until()))

    def until(self) -> float:
        """Return when a request has to be over."""
        return self.runtime.now() + 20.0


@pytest.fixture
def etcd(etcd_server: EtcdServer, space: str) -> Iterator[Cells]:
    """Open a store on etcd."""
    cells = Cells(f"{etcd_server.url}/{space}")
    yield cells
    drive(cells.store.close())


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeperServer, space: str) -> Iterator[Cells]:
    """Open a store on ZooKeeper."""
    cells = Cells(f"{zookeeper_server.url}/{space}")
    yield cells
    drive(cells.store.close())


@pytest.mark.parametrize("skew", [-HOUR, 0, HOUR])
@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
def test_the_time_is_the_servers(request: pytest.FixtureRequest, kind: str, skew: int) -> None:
    """A client whose clock is wrong by an hour is told the right second."""
    cells: Cells = request.getfixturevalue(kind)
    cells.runtime.skew = skew
    version = 0
    for value in (b"one", b"two", b""):
        before = time.time() - 1
        written, read = cells.write("cell", value, version), cells.read("cell")
        assert before <= written.now / 1e6 <= read.now / 1e6 + 1 <= time.time() + 2
        version = written.version


def test_clocks_that_disagree_do_not_move_a_cell_back_and_forth(etcd_server: EtcdServer, space: str) -> None:
    """What one client has written, another one never sees at an earlier time; a limit would count that twice."""
    clients = [Cells(f"{etcd_server.url}/{space}") for _ in range(2)]
    clients[0].runtime.skew, clients[1].runtime.skew = 700_000, -700_000
    version, latest = 0, 0
    for number in range(40):
        for cells in clients:
            seen = cells.read("cell")
            assert seen.now >= latest
            written = cells.write("cell", b"%d" % number, version)
            version, latest = written.version, max(latest, seen.now)
    for cells in clients:
        drive(cells.store.close())


def test_a_limit_holds_though_clocks_disagree(etcd_server: EtcdServer, space: str) -> None:
    """Two clients whose clocks differ by more than a second share one limit."""
    rule, passed = SmoothRule(5, 1_000_000, 1), 0
    sessions: list[Session] = []
    for skew in (700_000, -700_000):
        runtime = SkewedRuntime()
        runtime.skew = skew
        store = store_source(f"{etcd_server.url}/{space}").make(runtime)
        sessions.append(Session(runtime, store, Settings("owner")))
    began = time.monotonic()
    while time.monotonic() < began + 3.0:
        for each in sessions:
            passed += drive(take_slot(each, "limit:l", rule, 1, 0.0)).refused is None
    assert passed <= 5 * (time.monotonic() - began + 2.0) + 1
    for each in sessions:
        drive(each.close())


def test_times_far_apart_are_a_clock_that_was_set_back(etcd: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the old time to come again."""
    with monkeypatch.context() as patch:
        patch.setattr("tenure.stores.etcd.http.EtcdReply", _a_lifetime_ahead)
        written = etcd.write("cell", b"x", 0)
    assert written.now > time.time() * 1e6 + HOUR
    assert abs(etcd.read("cell").now - time.time() * 1e6) < 20e6


def _a_lifetime_ahead(status: int, said: JsonObject, _date: str) -> EtcdReply:
    return EtcdReply(status, said, "Wed, 25 Nov 2099 12:00:00 GMT")


def test_a_key_of_others_is_no_cell(etcd: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do."""
    etcd.write("cell", b"x", 0)
    monkeypatch.setattr("tenure.stores.etcd.cells.DIGITS", 40)
    with pytest.raises(StoreError, match="remove it"):
        etcd.read("cell")


def test_a_gateway_without_a_clock_is_refused(etcd: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what is missing."""
    monkeypatch.setattr("tenure.stores.etcd.http.EtcdReply", _without_date)
    with pytest.raises(StoreError, match="drops the header `Date`"):
        etcd.read("cell")


def _without_date(status: int, said: JsonObject, _date: str) -> EtcdReply:
    return EtcdReply(status, said)


def test_the_node_of_a_removed_cell_goes_and_its_version_does_not_come_again(
    zookeeper: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays for a while; and the node of a cell that was made again stays."""
    seen: set[int] = set()
    for _ in range(3):
        written = zookeeper.write("cell", b"x", 0)
        assert written.written
        assert written.version not in seen
        seen.add(written.version)
        assert zookeeper.write("cell", b"", written.version).written
        zookeeper.tidy()
        again = zookeeper.write("cell", b"y", 0)  # in the node that is still there
        assert again.version not in seen
        seen.add(again.version)
        with monkeypatch.context() as patch:
            patch.setattr(zookeeper_cells, "EMPTY_FOR", 0.0)
            zookeeper.tidy()
            assert zookeeper.read("cell").value == b"y"
            zookeeper.write("cell", b"", again.version)
            zookeeper.tidy()
        assert all(not zookeeper.write("cell", b"z", old).written for old in seen)


def test_a_node_that_could_not_be_deleted_is_deleted_later(zookeeper: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty node is not left behind because the server did not answer once."""
    written = zookeeper.write("cell", b"x", 0)
    zookeeper.write("cell", b"", written.version)
    monkeypatch.setattr(zookeeper_cells, "EMPTY_FOR", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(ZooKeeperNodes, "each", Mock(side_effect=StoreUnavailable("no answer")))
        with pytest.raises(StoreUnavailable):
            zookeeper.tidy()
    directory = zookeeper.store.directory
    assert isinstance(directory, ZooKeeperDirectory)
    path = directory.cells._path("cell")
    assert drive(directory._nodes.get(path, zookeeper.until())) is not None
    zookeeper.tidy()
    assert drive(directory._nodes.get(path, zookeeper.until())) is None


def test_a_write_behind_a_faster_client_is_refused(zookeeper: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other client writes after the version was compared."""
    first = zookeeper.write("cell", b"one", 0)
    get = ZooKeeperNodes.get
    overtaken = False

    async def overtake(nodes: ZooKeeperNodes, path: str, until: float) -> object:
        nonlocal overtaken
        found = await get(nodes, path, until)
        if not overtaken:
            overtaken = True
            assert (await zookeeper.store.write_cell("cell", b"theirs", first.version, 0, until)).written
        return found

    monkeypatch.setattr(ZooKeeperNodes, "get", overtake)
    refused = zookeeper.write("cell", b"ours", first.version)
    assert (refused.written, refused.value) == (False, b"theirs")


def test_a_process_that_stood_still_does_not_write(zookeeper: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that it has compared may be gone by then, and another may have as many writes."""
    first = zookeeper.write("cell", b"one", 0)
    monkeypatch.setattr(zookeeper_cells, "LATEST_WRITE", -1.0)
    with pytest.raises(StoreUnavailable, match="stood still"):
        zookeeper.write("cell", b"two", first.version)
    assert zookeeper.read("cell").value == b"one"


@pytest.mark.parametrize("kind", ["etcd_server", "zookeeper_server"])
def test_counters_of_two_namespaces_are_apart(request: pytest.FixtureRequest, kind: str, space: str) -> None:
    """And no counter is listed among the locks."""
    url = request.getfixturevalue(kind).url
    with Client(url, namespace=f"a{space}") as here, Client(url, namespace=f"b{space}") as there:
        assert [here.counter("hits").add(), here.counter("hits").add(), there.counter("hits").add()] == [1, 2, 1]
        assert here.names() == []
