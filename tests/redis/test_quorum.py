"""Five Redis servers that know nothing of each other, as the nodes of a quorum."""

import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from holdfast import Client, StoreUnavailable
from holdfast.stores.store import StoreSource
from holdfast.stores.urls import store_source
from holdfast.testing.servers import RedisServer, five_nodes, wait_until

TTL = 10.0

ROUNDS = 15


@pytest.fixture
def servers(tmp_path: Path) -> Generator[list[RedisServer]]:
    """Run servers that this test may kill."""
    with five_nodes(tmp_path) as nodes:
        yield nodes


def source(servers: list[RedisServer]) -> StoreSource:
    """Return the quorum of all of them."""
    return store_source("redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in servers))


def test_tokens_increase_from_lease_to_lease(servers: list[RedisServer]) -> None:
    """Also when the counters of the nodes are far apart, so that they have to be asked a second time."""
    for number, server in enumerate(servers):
        with Client(server.url) as alone:
            alone.session().note_token(alone.session().runtime.wall() + 1_000_000 * number)
            alone.lock("name", ttl=TTL).acquire().release()
    with Client(store=source(servers)) as client:
        tokens: list[int] = []
        for _ in range(ROUNDS):
            with client.lock("name", ttl=TTL) as lease:
                tokens.append(lease.token)
                assert [holder.owner for holder in client.inspect("name").holders] == [client.session().owner]
    assert tokens == sorted(set(tokens))


def test_eight_contenders_take_turns(servers: list[RedisServer]) -> None:
    """Each gets the name as often as it wants it; never two at once."""
    inside: list[int] = []
    tokens: list[int] = []

    def work(number: int) -> None:
        with Client(store=source(servers)) as client:
            for _ in range(ROUNDS):
                with client.lock("name", ttl=TTL, timeout=60.0) as lease:
                    inside.append(number)
                    assert inside == [number]
                    tokens.append(lease.token)
                    inside.clear()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert len(tokens) == 8 * ROUNDS
    assert tokens == sorted(set(tokens))


def test_three_of_five_are_enough_and_two_are_not(servers: list[RedisServer]) -> None:
    """With two nodes killed everything goes on; with three, an error says which do not vote."""
    with Client(store=source(servers), retry_for=2.0) as client:
        before = client.lock("name", ttl=TTL).acquire()
        for server in servers[:2]:
            server.kill()
        assert before.extend() > TTL / 2
        before.release()
        with client.lock("name", ttl=TTL, timeout=30.0) as lease:
            assert lease.token > before.token
        servers[2].kill()
        with pytest.raises(StoreUnavailable, match="of 5 nodes 2 vote, and 3 must"):
            client.lock("other", ttl=TTL).acquire(timeout=10.0)


def test_whoever_is_granted_leaves_the_queue_of_a_node_that_refused(servers: list[RedisServer]) -> None:
    """Whether or not its refusal came before the name was released: else the node would keep its vote for nobody."""
    with Client(servers[0].url) as other, Client(store=source(servers)) as client, other.lock("name", ttl=TTL):
        for _ in range(ROUNDS):
            client.lock("name", ttl=TTL).acquire().release()
            wait_until(lambda: not other.inspect("name").waiters, "an empty queue")
