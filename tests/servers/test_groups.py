"""Sentinel groups and clusters replace a dead master, and can be made whole again."""

import pytest

from tests.servers import Cluster, SentinelGroup


def test_sentinels_replace_a_dead_master(redis_sentinel: SentinelGroup) -> None:
    """The sentinels agree on a new master, and the old master returns as its replica."""
    old = redis_sentinel.kill_master()
    new = redis_sentinel.await_failover(old)
    assert new is not old
    redis_sentinel.revive(old)
    assert new.command("SET", "name", "value") == "OK"
    assert new.command("WAIT", 2, 10_000) == 2
    assert {server.port for server in redis_sentinel.replicas()} == {
        server.port for server in redis_sentinel.servers if server is not new
    }


def test_the_next_test_finds_a_complete_group(redis_sentinel: SentinelGroup) -> None:
    """The fixture starts the group anew if the previous test has damaged it."""
    assert redis_sentinel.is_complete()
    assert len(redis_sentinel.replicas()) == 2
    assert redis_sentinel.addresses == [sentinel.address for sentinel in redis_sentinel.sentinels]


@pytest.mark.parametrize("slot", [0, 9000])
def test_a_cluster_replaces_a_dead_master(redis_cluster: Cluster, slot: int) -> None:
    """The replica of a dead master serves its slot, and the old master returns as a replica."""
    old = redis_cluster.master_of(slot)
    replica = redis_cluster.replica_of(old)
    old.kill()
    assert redis_cluster.await_failover(slot, old) is replica
    redis_cluster.mend()
    assert redis_cluster.is_whole()
    assert redis_cluster.replica_of(replica) is old


def test_a_cluster_serves_every_slot(redis_cluster: Cluster) -> None:
    """Each of the three masters serves its slots."""
    masters = {redis_cluster.master_of(slot).port for slot in range(0, 16384, 100)}
    assert len(masters) == 3
    assert masters < {port for _, port in redis_cluster.addresses}
