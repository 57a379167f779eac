"""What the benchmarks of ZooKeeper and etcd count is counted right."""

from pathlib import Path
from typing import cast
from unittest import mock

import pytest

from bench.ensembles.contenders import (
    ASYNC_HANDLES,
    BLOCKING,
    FLOORS,
    HANDLES,
    KAZOO,
    KAZOO_AGAIN,
    MEANINGS,
    PAIRS,
    PEERS,
    QUEUES,
    counting_wakes,
)
from bench.ensembles.pair import Round, best_peer
from bench.ensembles.queue import Drain, Held, handoffs, overlaps
from bench.ensembles.queue import Round as Queue
from bench.ensembles.servers import ETCD, ONE, ZOOKEEPER, Case, EtcdMeters, ZooKeeperMeters
from tenure.stores.ordered.store import OrderedStore
from tests.servers import EtcdServer, ZooKeeperServer

HELD: list[Held] = [(2.0, 2.5), (0.0, 1.0), (2.75, 3.0)]


def test_a_hand_off_is_from_a_release_begun_to_the_next_one_who_has_the_lock() -> None:
    """Whoever told it first."""
    assert handoffs(HELD) == [1.0, 0.25]
    assert overlaps(HELD) == 0
    assert overlaps([*HELD, (2.25, 2.3)]) == 1


def test_events_are_counted_for_each_release_that_somebody_waited_for() -> None:
    """The last one wakes nobody; requests are counted for each who had the lock."""
    queue = Queue(Drain(HELD, wakes=4, client=0.3), requests=18.0, sent=2.0)
    assert (queue.wakes, queue.each, round(queue.client, 3)) == (2.0, 6.0, 0.1)


@pytest.mark.parametrize("kind", [ZOOKEEPER, ETCD])
def test_every_contender_is_described_and_can_be_opened(kind: str) -> None:
    """Its peers and its floor are among those that are measured."""
    openers = {*BLOCKING, *HANDLES, *ASYNC_HANDLES}
    assert {*PAIRS[kind], *QUEUES[kind]} <= openers & set(MEANINGS)
    assert {*PEERS[kind], FLOORS[kind]} <= set(PAIRS[kind])


def test_the_fastest_peer_is_compared_with() -> None:
    """By its median, not by its luckiest round."""
    slow, fast = KAZOO, KAZOO_AGAIN
    times = {slow: [1.0, 5.0, 6.0], fast: [3.0, 3.0, 3.0]}
    found = {Case(label, ONE): [Round(each, 0.0, 0.0) for each in rounds] for label, rounds in times.items()}
    assert best_peer(ZOOKEEPER, ONE, found) == Case(fast, ONE)


def test_wakes_are_counted_and_passed_on() -> None:
    """Whoever is counted is woken all the same."""
    told: list[str] = []
    wakes: list[None] = []

    def woken(_store: OrderedStore, request_id: str) -> None:
        told.append(request_id)

    with mock.patch.object(OrderedStore, "woken", woken), counting_wakes(wakes):
        OrderedStore.woken(cast("OrderedStore", None), "request")
    assert (told, len(wakes)) == (["request"], 1)


def test_meters_of_zookeeper(tmp_path: Path) -> None:
    """What the benchmark itself asks is not counted. No other test uses its server."""
    with ZooKeeperServer(tmp_path) as server:
        meters = ZooKeeperMeters([server])
        before = meters.requests()
        assert meters.watches() == meters.events() == 0
        assert meters.version.startswith("ZooKeeper 3.")
        assert meters.requests() == before


def test_meters_of_etcd(tmp_path: Path) -> None:
    """A request is counted as one."""
    with EtcdServer(tmp_path) as server:
        meters = EtcdMeters([server])
        before = meters.requests()
        server.revision()
        assert meters.requests() == before + 1
        assert meters.version.startswith("etcd ")
