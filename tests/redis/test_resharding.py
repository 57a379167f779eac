"""A slot of a Cluster moves to another node while its locks are in use."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count, islice

import pytest

from tenure import AsyncClient, Client, Outcome
from tenure.stores.redis.names import slot_of
from tenure_testing.conformance.adapter import adapt
from tests.faults.resource import Numbers
from tests.hazards.helpers import eventually
from tests.redis.load import Crew, Job
from tests.redis.servers import clean
from tests.servers import Cluster, ClusterNode

TTL = 3.0
"""That of all leases, in seconds: a busy machine can keep them."""


class Move:
    """The move of a slot, step by step, as `redis-cli --cluster reshard` does it."""

    def __init__(self, cluster: Cluster, slot: int) -> None:
        """Prepare to move a slot from its master to another one."""
        self.slot = slot
        self.source = cluster.master_of(slot)
        masters = [node for node in cluster.nodes if node.is_master() and node is not self.source]
        self.target = masters[0]
        self._masters = [self.target, self.source, *masters[1:]]

    def begin(self) -> None:
        """From now on the source sends on whoever asks for keys that it lacks."""
        self._setslot(self.target, "IMPORTING", self.source)
        self._setslot(self.source, "MIGRATING", self.target)

    def carry(self) -> None:
        """Move the keys that are there by now."""
        while keys := self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, 10):
            assert isinstance(keys, list)
            host, port = self.target.address
            self.source.command("MIGRATE", host, port, "", 0, 5000, "REPLACE", "KEYS", *keys)

    def end(self) -> None:
        """Tell all masters where the slot is now."""
        for node in self._masters:
            self._setslot(node, "NODE", self.target)

    def give_up(self) -> None:
        """Leave the slot where it is, if nothing was carried yet."""
        for node in (self.target, self.source):
            node.command("CLUSTER", "SETSLOT", self.slot, "STABLE")

    def _setslot(self, node: ClusterNode, what: str, about: ClusterNode) -> None:
        node.command("CLUSTER", "SETSLOT", self.slot, what, about.command("CLUSTER", "MYID"))


def names_in(slot: int, amount: int) -> list[str]:
    """Return names that live in a slot."""
    return list(islice((name for name in map(str, count()) if slot_of(name) == slot), amount))


@pytest.fixture
def cluster(redis_cluster: Cluster) -> Generator[Cluster, None, None]:
    """Use the cluster, and look at what is left. A slot that has moved is quarantined for the longest ttl in use."""
    with clean(redis_cluster.nodes):
        yield redis_cluster


@contextmanager
def waited_for(url: str, name: str) -> Generator[None, None, None]:
    """Have somebody wait for a name, so that it has a queue."""
    with Crew(url, Job([name], ttl=TTL), Numbers(), threads=1, tasks=0), Client(url) as client:
        eventually(lambda: client.inspect(name).waiters, "a waiter")
        yield


@pytest.mark.filterwarnings("ignore::tenure.BlockedEventLoop")  # blocking clients are used in a loop on purpose
@pytest.mark.parametrize("form", ["threads", "asyncio"])
def test_a_lease_is_renewed_at_both_ends_of_a_move(cluster: Cluster, form: str) -> None:
    """While a slot moves, a lease that has moved already is renewed at its new node, as ASK tells."""
    url = f"{cluster.url}?max_ttl={TTL}"

    async def hold(client: AsyncClient, name: str) -> None:
        lease = await client.lock(name, ttl=TTL).acquire()
        with waited_for(url, name):
            await lease.extend()
            move = Move(cluster, slot_of(name))
            move.begin()
            move.carry()
            for _ in range(3):
                assert await lease.extend() > 0.5 * TTL
            before = lease.remaining()
            while lease.remaining() <= before:  # renewals in the background find it as well
                lease.check()
                before = min(before, lease.remaining())
                await asyncio.sleep(0.01)
            move.end()
            assert await lease.extend() > 0.5 * TTL
            assert await lease.release() is Outcome.RELEASED

    async def in_a_loop() -> None:
        async with AsyncClient(url) as client:
            await hold(client, "by a task")

    if form == "asyncio":
        asyncio.run(in_a_loop())
    else:
        with Client(url) as client:
            asyncio.run(hold(adapt(client), "by a thread"))


def test_a_slot_moves_under_load(cluster: Cluster) -> None:
    """However often a slot moves, its locks exclude, their tokens grow, and no update is lost."""
    names = names_in(4321, 2)
    numbers = Numbers()
    url = f"{cluster.url}?max_ttl={TTL}"
    with Crew(url, Job(names, ttl=TTL, timeout=None), numbers) as crew:
        for _ in range(2):
            crew.await_holds(20)
            move = Move(cluster, slot_of(names[0]))
            move.begin()
            move.carry()
            move.end()
        record = crew.end()
    assert not record.overlaps()
    assert not record.repeated_tokens()
    assert numbers.total() == record.counts["written"] == len(record.holds)
    assert not record.counts["lost"]
