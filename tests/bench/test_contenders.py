"""The contenders are open to be measured, exclude each other, and what is counted of them is counted right."""

import sys
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import cast
from unittest import mock

import pytest

from bench.contenders import (
    ADD,
    AIOREDLOCK,
    CONTENDERS,
    HAND,
    PLAIN,
    REDLOCK_NG,
    REDLOCK_NG_ASYNCIO,
    TAKE,
    THREADS,
    WAKES,
    Insistent,
    Opened,
    Want,
    able,
    clock,
    opened,
)
from bench.floors import Work, nodes
from bench.harness import QUICK
from bench.peers import apart
from bench.peers.programs import RECIPES
from bench.queue import Drain, Held, counting_wakes, figures_of, handoffs
from bench.servers import (
    ETCD,
    MEMCACHED,
    MYSQL,
    POSTGRESQL,
    QUORUM,
    REDIS,
    ZOOKEEPER,
    EtcdPlace,
    RedisPlace,
    ZooKeeperPlace,
)  # fmt: skip
from bench.workloads import WORKLOADS
from tenure.stores.ordered.store import OrderedStore
from tests.servers import EtcdServer, RedisServer, ZooKeeperServer

HELD: list[Held] = [(2.0, 2.5), (0.0, 1.0), (2.75, 3.0)]

SERVERS = {
    REDIS: "redis_server",
    POSTGRESQL: "postgres_server",
    MYSQL: "mariadb_server",
    MEMCACHED: "memcached_server",
    ZOOKEEPER: "zookeeper_server",
    ETCD: "etcd_server",
}
"""The fixture of each kind of server."""

NO_LOCKS = {*RECIPES, TAKE, ADD, HAND, PLAIN}


def test_every_workload_measures_contenders_that_there_are() -> None:
    """Each is opened in one way, or is a program; and each that there is, is measured."""
    measured = {(each.store, label) for each in WORKLOADS.values() for label in each.labels}
    known = {(store, label) for store, contenders in CONTENDERS.items() for label in contenders}
    assert measured == known
    for store, label in known:
        contender = CONTENDERS[store][label]
        ways = (contender.opens, contender.awaits, RECIPES.get(label))
        assert sum(way is not None for way in ways) == 1, label


def test_all_but_some_workloads_have_bounds() -> None:
    """Those that have none only show figures."""
    limits = {name: each.limits(QUICK) if callable(each.limits) else each.limits for name, each in WORKLOADS.items()}
    without = {name for name, each in limits.items() if not each}
    assert without == {
        "handoff", "threads32", "tasks256", "redis_memory", "mysql_pair", "mysql_handoff", "memcached_handoff",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("store", "label"),
    [
        (store, label)
        for store in SERVERS
        for label, each in CONTENDERS[store].items()
        if label not in NO_LOCKS and "floor" not in each.meaning and not each.missing()
    ],
)
def test_every_lock_excludes_others(request: pytest.FixtureRequest, store: str, label: str) -> None:
    """Members, or else one again and again, take turns."""
    with opened(store, label, request.getfixturevalue(SERVERS[store]).url, Want(2)) as contender:
        shares = contender.contend(0.0, clock() + 0.2, 0.0)
        assert contender.pair(1) > 0
    assert len(shares) == len(contender.handles)
    periods = sorted(period for share in shares for period in zip(share.held[::2], share.held[1::2], strict=True))
    assert periods
    assert all(before[1] <= after[0] for before, after in pairwise(periods))


def test_the_bare_calls_are_those_of_the_client(request: pytest.FixtureRequest) -> None:
    """Else the floor would be another lock's: each call is checked to have granted and released."""
    for store, fixture in SERVERS.items():
        for label, each in CONTENDERS[store].items():
            if "floor" in each.meaning:
                with opened(store, label, request.getfixturevalue(fixture).url) as floor:
                    assert floor.pair(2) > 0


def test_attempts_that_fail_are_counted_as_waits() -> None:
    """Who gave up has waited, but was not granted anything, and releases nothing."""
    answers, released = deque([False, True]), list[None]()

    def acquire() -> bool:
        answers.rotate()
        return answers[0]

    (share,) = Opened([Work(acquire, lambda: released.append(None))]).contend(0.0, clock() + 0.02, 0.0, 1.0)
    assert share.failures > 0
    assert share.grants <= len(share.held) // 2 == len(released)
    assert len(share.waits) == share.failures + len(released)


def test_a_peer_that_gives_up_is_asked_again_until_the_timeout() -> None:
    """It gets as long as all others do."""
    asked = iter([None, False, "held"])
    let_go: list[object] = []
    lock = Insistent(lambda: next(asked), let_go.append, 10.0)
    assert lock.acquire()
    lock.release()
    assert let_go == ["held"]
    assert not Insistent(lambda: None, let_go.append, 0.0).acquire()


def test_every_peer_of_a_quorum_has_a_key() -> None:
    """By it, what the peer leaves behind is found."""
    keys = [each.key for each in CONTENDERS[QUORUM].values() if not each.label.startswith(("tenure", "bare"))]
    assert all(keys)
    assert len(set(keys)) == len(keys)


def test_url_of_nodes() -> None:
    """A quorum's URL has all of them."""
    assert nodes("redlock://127.0.0.1:1,127.0.0.1:2?guard=observed") == [
        "redis://127.0.0.1:1/0",
        "redis://127.0.0.1:2/0",
    ]


def test_what_is_not_installed_is_left_out_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of redlock-ng go, and the report says so once; what is there is named with its client."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    apart.folder(AIOREDLOCK).mkdir(parents=True)
    labels, notes = able(QUORUM, [THREADS, REDLOCK_NG, REDLOCK_NG_ASYNCIO, AIOREDLOCK])
    assert labels == [THREADS, AIOREDLOCK]
    assert notes == [apart.lacking(REDLOCK_NG)]
    assert apart.versions() == ["aioredlock 0.7.3 with aioredis 1.3.1"]


def test_a_process_that_has_imported_a_client_is_no_place_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a peer would be measured with a client that is not its own."""
    monkeypatch.setitem(sys.modules, "redis", sys)
    before = list(sys.path)
    with pytest.raises(RuntimeError, match="fresh process"):
        apart.enter(REDLOCK_NG)
    assert sys.path == before


def test_what_cannot_be_installed_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says so and goes on, and no half of it is taken for the whole."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    apart.main()
    assert not any(map(apart.is_there, apart.PINS))


# -- what is counted ----------------------------------------------------------------------------------------------


def test_a_hand_off_is_from_a_release_begun_to_the_next_grant() -> None:
    """Whoever told it first; it is negative if two held the lock at once."""
    assert handoffs(HELD) == [1.0, 0.25]
    assert sum(wait < 0 for wait in handoffs([*HELD, (2.25, 2.3)])) == 1


def test_events_are_counted_for_each_release_that_somebody_waited_for() -> None:
    """The last one wakes nobody; requests are counted for each who had the lock."""
    found = figures_of(Drain(HELD, wakes=4, client=0.3), requests=18.0)
    assert (found["events"], found["requests"], round(found["client"], 3)) == (2.0, 6.0, 0.1)


def test_wakes_are_counted_and_passed_on() -> None:
    """Whoever is counted is woken all the same."""
    told: list[str] = []
    before = len(WAKES)

    def woken(_store: OrderedStore, request_id: str) -> None:
        told.append(request_id)

    with mock.patch.object(OrderedStore, "woken", woken), counting_wakes():
        OrderedStore.woken(cast("OrderedStore", None), "request")
    assert (told, len(WAKES) - before) == (["request"], 1)


def test_commands_of_redis_are_counted_without_those_of_the_benchmark(tmp_path: Path) -> None:
    """Also INFO, which the clients send and by which the benchmark asks. No other test uses this server."""
    with RedisServer(tmp_path) as server:
        place = RedisPlace(server.url, [server])
        before = place.begin(("ping", "info"))
        place.requests(("ping",))
        for word in ("PING", "PING", "INFO"):
            server.command(word)
        used = place.used(before, ("ping", "info"))
    assert used["requests"] == 3
    assert used["servers"] > 0


def test_requests_of_zookeeper_are_counted(tmp_path: Path) -> None:
    """What the benchmark itself asks is not counted. No other test uses its server."""
    with ZooKeeperServer(tmp_path) as server:
        place = ZooKeeperPlace("", [server])
        before = place.begin(())
        assert place.watches() == place.events() == 0
        assert place.used(before, ())["requests"] == 0


def test_requests_of_etcd_are_counted(tmp_path: Path) -> None:
    """A request is counted as one."""
    with EtcdServer(tmp_path) as server:
        place = EtcdPlace("", [server])
        before = place.begin(())
        server.revision()
        assert place.used(before, ())["requests"] == 1
