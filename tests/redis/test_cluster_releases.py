"""A release in a Cluster for whose reply no `with` waits goes to the node that holds the name."""

from typing import Any
from uuid import uuid4

import pytest

from tenure import Client, EventKind, LockEvent
from tenure.stores.redis.names import slot_of
from tenure.stores.redis.store import RedisStore
from tenure.stores.redis.topology import Cluster as ClusterTopology
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, client_at, play
from tests.hazards.helpers import eventually
from tests.planting import planted
from tests.redis.test_resharding import Move
from tests.servers import Cluster
from tests.stores.test_releases_sent import QUICK, WITHIN, quick_at, until


def spy(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list of whether each release was sent."""
    right, sent = RedisStore.send_release, list[bool]()

    def send_release(*args: Any) -> bool:  # noqa: ANN401 - those of the method
        sent.append(right(*args))
        return sent[-1]

    monkeypatch.setattr(RedisStore, "send_release", send_release)
    return sent


def sent_to_each_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, form: str = API_FORMS[0]) -> None:
    """Acquire and release names of all nodes: the first release to each node waits."""
    sent = spy(monkeypatch)
    names = [f"name {number}" for number in range(20)]

    async def scene(kit: Kit) -> None:
        told: list[LockEvent] = []
        quick = client_at(kit, cluster.url, on_event=told.append, **QUICK)
        for name in [*names, *names]:
            async with quick.lock(name, timeout=0):
                pass
        await until(kit, told, *["released"] * 40)

    play(form, cluster.url, scene)
    assert (sent.count(False), sent.count(True)) == (3, 37)


@pytest.mark.parametrize("form", API_FORMS)
def test_all_but_the_first_release_to_a_node_are_sent(
    redis_cluster: Cluster, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each frees its name before the next request for it, and its outcome is told."""
    sent_to_each_node(redis_cluster, monkeypatch, form)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_node_that_forgot_the_lease_tells_so(redis_cluster: Cluster, form: str) -> None:
    """The loss is an event, as on one server."""

    async def scene(kit: Kit) -> None:
        told: list[LockEvent] = []
        quick = await quick_at(kit, redis_cluster.url, told, **QUICK)
        for _ in range(2):  # the first release to its node waits
            async with quick.lock("name"):
                pass
        await until(kit, told, "released", "released")
        async with quick.lock("name") as lease:
            with redis_cluster.master_of(slot_of(f"{kit.space}:name")).connect() as wire:
                keys: Any = wire.command("KEYS", f"*{kit.space}:name*")
                wire.command("DEL", *keys)
        await until(kit, told, "released", "released", "refused")
        assert lease.state == "lost"

    play(form, redis_cluster.url, scene)


def sent_to_a_node_of_before(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Release a lease of a name whose slot has moved since; it is free at the new node, and counts as released."""
    name, told, ends = uuid4().hex, list[LockEvent](), [EventKind.RELEASED, EventKind.LOST]
    sent = spy(monkeypatch)

    def causes() -> list[str]:
        return [each.cause for each in told if each.event in ends]

    with Client(cluster.url, on_event=told.append, **QUICK) as quick, Client(cluster.url) as other:
        for _ in range(2):
            with quick.lock(name):
                pass
        eventually(lambda: causes() == ["released"] * 2, "they are told", WITHIN)
        with quick.lock(name):
            move = Move(cluster, slot_of(name))
            move.begin()
            move.carry()
            move.end()
        eventually(lambda: not other.lock(name).locked(), "the name is free", WITHIN)
        eventually(lambda: causes() == ["released"] * 3, "it is told", WITHIN)
    assert sent[-1]


def test_a_release_follows_its_name_to_another_node(redis_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old node answers that the name has moved: the release is repeated where it is."""
    sent_to_a_node_of_before(redis_cluster, monkeypatch)


BUGS: dict[str, tuple[type, str, str, str, Any]] = {
    "an error is not repeated": (
        RedisStore,
        "send_release",
        "told(codec.outcome_of(release, value) if type(value) is int else None)",
        "told(codec.outcome_of(release, value)) if type(value) is int else None",
        sent_to_a_node_of_before,
    ),
    "one node is known for all names": (ClusterTopology, "known_for", "slot_of(name)", "0", sent_to_each_node),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, redis_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a release that is not told in time, or that waits though its node has the script."""
    owner, method, right, wrong, check = BUGS[bug]
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    monkeypatch.setattr("tests.redis.test_cluster_releases.WITHIN", 3.0)
    with pytest.raises(AssertionError):
        check(redis_cluster, monkeypatch)
