"""A master dies under load, and the replica that takes its place has not heard of its last grants.

Replication is cut before the master is killed: the replicas have lost their connections to it, and may make no others.
So what it grants from then on dies with it. Who believed in a lease, and when, is compared between processes by the one
clock of this machine.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, islice, product
from uuid import uuid4

import pytest

from tenure import Client, StoreError
from tenure.runtimes.clocks import steady, wall_micros
from tenure.stores.redis.names import slot_of
from tests.faults.metronome import Metronome
from tests.faults.resource import total
from tests.redis.load import Hold, Job, Record
from tests.redis.processes import Processes
from tests.redis.servers import clean
from tests.servers import Cluster, RedisServer, SentinelGroup, wait_until

TTL = 4.0
"""The ttl of all leases, and the longest: the new master grants nothing for so many seconds."""

BRIEF = 2.0
"""The same, where a lease need not outlive anything."""

AMPLE = 20.0
"""A ttl that surely outlives a failover."""

AMOUNT = 8
"""How many names are locked."""

NAMES = [f"name-{number}" for number in range(AMOUNT)]

FINDING = 1.0
"""How long clients may take to find a new master and renew their leases there, in seconds."""


@dataclass(slots=True)
class Group:
    """A master with its replicas, of either kind."""

    url: str
    names: Sequence[str]
    master: RedisServer
    replicas: Sequence[RedisServer]
    await_failover: Callable[[], object]
    heard: bool = False
    """Whether what nobody hears of is not granted."""


def behind_sentinels(group: SentinelGroup) -> Group:
    """Use the master that Sentinels watch."""
    master = group.master()
    return Group(group.url, NAMES, master, group.replicas(), lambda: group.await_failover(master))


def in_a_cluster(cluster: Cluster) -> Group:
    """Use one master of a Cluster, and names that it serves."""
    slot = 1000
    master = cluster.master_of(slot)
    names = (name for name in map("name-{}".format, count()) if cluster.master_of(slot_of(name)) is master)
    replicas = [cluster.replica_of(master)]
    return Group(cluster.url, [*islice(names, AMOUNT)], master, replicas, lambda: cluster.await_failover(slot, master))


@dataclass(slots=True)
class Crash:
    """A master that died under load; instants by this machine's clock."""

    judge: Client
    processes: Processes
    names: Sequence[str]
    cut: float
    """From when on its grants were heard by nobody."""
    killed: float
    killed_by_wall: int
    over: float = 0.0
    """When there was a new master."""
    record: Record = field(default_factory=Record)
    machine: Metronome = field(default_factory=Metronome)
    written: int = 0
    """The sum of all numbers at the resource."""

    def all_granted(self) -> bool:
        """Tell whether the new master has granted every name: tokens tell the time."""
        with suppress(StoreError):
            return granted_since(self.judge, self.names, self.killed_by_wall)
        return False

    def some_granted(self) -> bool:
        """Tell whether the new master has granted any name."""
        with suppress(StoreError):
            return any(granted_since(self.judge, [name], self.killed_by_wall) for name in self.names)
        return False

    def all_held(self) -> bool:
        """Tell whether the new master knows a holder of every name, longer after the crash than old grants last."""
        with suppress(StoreError):
            return steady() > self.killed + 1.2 * TTL and all(self.judge.inspect(each).holders for each in self.names)
        return False

    def lost(self) -> list[Hold]:
        """Return the leases that died with the master."""
        return [each for each in self.record.holds if self.cut < each.since < self.killed < each.until]

    def in_time(self) -> list[Hold]:
        """Return those of them that had not ended when the new master could be found. A slow machine may have none."""
        ran = [(each, each.until - self.machine.missed(self.over, each.until)) for each in self.lost()]
        return [each for each, until in ran if until > self.over + FINDING]

    def retaken(self) -> list[Hold]:
        """Return those of them that were believed longer than the dead master had granted: the new one renewed them."""
        return [each for each in self.lost() if each.until > self.killed + TTL]


def granted_since(judge: Client, names: Sequence[str], instant: int) -> bool:
    """Tell whether every name was granted after an instant of the wall clock."""
    return all(judge.inspect(name).last_token > instant for name in names)


@contextmanager
def crash(
    group: Group, rules: str, resource: RedisServer, ttl: float = TTL, *, freeze: bool = False
) -> Generator[Crash, None, None]:
    """Kill a master whose last grants nobody has heard of; at the end collect what the workers did.

    `freeze`: have some who hold a lease stand still meanwhile, until they are told to go on.
    """
    space, url = f"failover-{uuid4().hex}", f"{group.url}?{rules}"
    job = Job(group.names, ttl=ttl, timeout=60.0, hold=0.01, workers=4)
    with Client(group.url) as judge, Processes(url, job, resource, space, count=4) as processes:
        processes.await_start()
        processes.rest()
        wait_until(lambda: not any(judge.inspect(name).holders for name in group.names), "a moment of rest")
        group.master.command("ACL", "SETUSER", "default", "-psync", "-sync")
        group.master.command("CLIENT", "KILL", "TYPE", "REPLICA")
        cut, cut_by_wall = steady(), wall_micros()
        processes.keep()
        if not group.heard:
            wait_until(lambda: granted_since(judge, group.names, cut_by_wall), "grants that will be lost")
        if freeze:
            processes.freeze(judge.inspect(name).holders[0].owner for name in group.names)
        group.master.kill()
        crashed = Crash(judge, processes, group.names, cut, steady(), wall_micros())
        group.await_failover()
        crashed.over = steady()
        yield crashed
        crashed.record = processes.end()
    crashed.written = total(resource, space, group.names)


@pytest.fixture
def sentinels(redis_sentinel: SentinelGroup) -> Generator[SentinelGroup, None, None]:
    """Use the master and its Sentinels."""
    with clean(redis_sentinel.servers):
        yield redis_sentinel


@pytest.fixture
def cluster(redis_cluster: Cluster) -> Generator[Cluster, None, None]:
    """Use the cluster."""
    with clean(redis_cluster.nodes):
        yield redis_cluster


def guarded(group: Group, resource: RedisServer, metronome: Metronome) -> None:
    """Fail over with the guard."""
    with crash(group, f"max_ttl={TTL}", resource) as crashed:
        crashed.machine = metronome
        wait_until(crashed.all_held, "a holder of every name")
    assert crashed.lost()
    assert not crashed.record.overlaps()
    assert len(crashed.retaken()) >= len(crashed.in_time()) / 2
    assert not crashed.record.repeated_tokens()
    assert crashed.written == crashed.record.counts["written"]


def unguarded(group: Group, resource: RedisServer) -> None:
    """Fail over without it, while some holders stand still."""
    with crash(group, "guard=off", resource, AMPLE, freeze=True) as crashed:
        wait_until(crashed.some_granted, "a grant of the new master")
        crashed.processes.thaw()
        wait_until(crashed.all_granted, "grants of the new master")
    assert crashed.record.overlaps()
    assert not crashed.record.disordered_tokens()
    assert crashed.written == crashed.record.counts["written"]


def test_sentinels_with_the_guard(sentinels: SentinelGroup, redis_server: RedisServer, metronome: Metronome) -> None:
    """No two processes believe in a lease at once, though grants were lost; most who had one of those keep it."""
    guarded(behind_sentinels(sentinels), redis_server, metronome)


def test_a_cluster_with_the_guard(cluster: Cluster, redis_server: RedisServer, metronome: Metronome) -> None:
    """The same in a Cluster."""
    guarded(in_a_cluster(cluster), redis_server, metronome)


def test_sentinels_without_the_guard(sentinels: SentinelGroup, redis_server: RedisServer) -> None:
    """These tests can see two holders at once: without the guard there are some. Tokens and the fence hold even so."""
    unguarded(behind_sentinels(sentinels), redis_server)


def test_all_replicas_without_the_guard(sentinels: SentinelGroup, redis_server: RedisServer) -> None:
    """What counts only once all replicas have it is not lost in a failover, even without the guard."""
    group = behind_sentinels(sentinels)
    group.heard = True
    with crash(group, "guard=off&replicas=2", redis_server, AMPLE) as crashed:
        sentinels.revive(group.master)
        wait_until(crashed.all_granted, "grants that all replicas have")
    assert not crashed.lost(), "without replicas nothing was granted"
    assert not crashed.record.overlaps()
    assert not crashed.record.repeated_tokens()
    assert crashed.written == crashed.record.counts["written"]


@pytest.fixture
def demanding(sentinels: SentinelGroup) -> Generator[SentinelGroup, None, None]:
    """Have every server refuse writes that no replica hears of."""
    demand = {"min-replicas-to-write": 1, "min-replicas-max-lag": 2}
    for server, (name, value) in product(sentinels.servers, demand.items()):
        server.command("CONFIG", "SET", name, value)
    yield sentinels
    for server in sentinels.servers:
        server.command("CONFIG", "SET", "min-replicas-to-write", 0)


def test_a_deposed_master(demanding: SentinelGroup, redis_server: RedisServer) -> None:
    """With min-replicas-to-write a master that was deposed and lives on grants nothing more, and all find the new one.

    Else it would go on for ten seconds, until the Sentinels tell it: longer than a new one waits.
    """
    space, names, url = f"deposed-{uuid4().hex}", NAMES, f"{demanding.url}?max_ttl={BRIEF}"
    job = Job(names, ttl=BRIEF, timeout=60.0, hold=0.02, workers=4)
    old = demanding.master()
    with Processes(url, job, redis_server, space, count=4) as processes, Client(url) as newcomer:
        processes.await_start()
        demanding.sentinels[0].command("SENTINEL", "FAILOVER", demanding.service)
        demanding.await_failover(old)
        holds = [hold(newcomer, name) for name in names]
        served = wall_micros()
        wait_until(lambda: granted_since(newcomer, names, served), "all workers at the new master")
        assert old.info("replication")["role"] == "master", "nobody has told it yet"
        record = processes.end()
    record.holds += holds
    assert not record.overlaps()
    assert not record.repeated_tokens()
    assert total(redis_server, space, names) == record.counts["written"]


def hold(client: Client, name: str) -> Hold:
    """Have a lease for a moment."""
    with client.lock(name, ttl=BRIEF) as lease:
        return Hold(name, lease.token, steady(), steady())
