"""Five Redis servers that know nothing of each other, as the nodes of a quorum."""

import contextlib
import threading
import time
from collections.abc import Generator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tenure import Client, LockTimeout, Outcome, StoreError, StoreUnavailable, UsageError
from tenure.contracts.store import StoreSource
from tenure.runtimes.clocks import steady
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.urls import store_source
from tenure.transport.pool import SURELY_OPEN
from tenure_testing.conformance.kit import Kit
from tests import virtual
from tests.faults.scenes import API_FORMS, client_at, play
from tests.servers import Proxy, RedisServer, five_nodes, wait_until

redis: Any = import_module("redis")  # so that type checkers don't take tests/redis for it

TTL = 10.0

ROUNDS = 10

TEST_TIMEOUT = 30.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure, and shorter than a quarantine."""


@pytest.fixture
def servers(tmp_path: Path) -> Generator[list[RedisServer]]:
    """Run servers that this test may kill."""
    with five_nodes(tmp_path) as nodes:
        yield nodes


def source(servers: list[RedisServer]) -> StoreSource:
    """Return the quorum of all of them."""
    return store_source("redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in servers) + "?guard=observed")


def is_free(client: Client) -> bool:
    """Tell whether nobody holds the name."""
    return not client.inspect("name").holders


def test_tokens_increase_from_lease_to_lease(servers: list[RedisServer]) -> None:
    """Also when the counters of the nodes are far apart, so that they have to be asked a second time."""
    for number, server in enumerate(servers):
        with Client(server.url) as alone:
            alone.session().highest_token = alone.session().runtime.wall() + 1_000_000 * number
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
    with Client(store=source(servers), retry_for=1.0) as client:
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


def test_an_error_says_what_every_node_said(servers: list[RedisServer]) -> None:
    """Who holds it there, or what is wrong with the node; the same in the message, and without secrets."""
    with Client(store=source(servers), owner="holder") as holder, Client(store=source(servers)) as other:
        other.lock("before", ttl=TTL).acquire().release()  # it is connected before the time of the next request counts
        with holder.lock("name", ttl=TTL), pytest.raises(LockTimeout, match="held by holder") as refused:
            other.lock("name", ttl=TTL).acquire(timeout=1.0)
        assert [vote.node for vote in refused.value.votes] == [f"redis://127.0.0.1:{server.port}" for server in servers]
        said = [vote.said for vote in refused.value.votes]
        assert said.count("held by holder") >= 3, said  # one that was connected late may not have been asked
        for server in servers[:3]:
            server.kill()
        with pytest.raises(StoreUnavailable) as unavailable:
            other.lock("name", ttl=TTL).acquire(timeout=0.5)
    assert len(unavailable.value.votes) == len(servers)
    assert sum("cannot reach" in vote.said or "closed" in vote.said for vote in unavailable.value.votes) >= 1


def test_a_node_under_two_names_votes_once(servers: list[RedisServer], caplog: pytest.LogCaptureFixture) -> None:
    """It is recognised by its run id."""
    port, other = servers[0].port, servers[1].port
    url = f"redlock://127.0.0.1:{port},localhost:{port},127.0.0.1:{other}?guard=observed"
    with Client(url, retry_for=0.5) as client:
        client.lock("name", ttl=TTL).acquire().release()
        servers[1].kill()
        with pytest.raises(StoreUnavailable, match="would vote twice"):
            client.lock("other", ttl=TTL).acquire(timeout=3.0)
    assert "would vote twice" in caplog.text


def test_nodes_are_named_one_by_one(servers: list[RedisServer]) -> None:
    """By URLs, or by clients of redis-py."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis(port=server.port)) for server in servers[:2]]
        nodes = [*(f"{server.url}?guard=observed" for server in servers[2:]), *clients]
        with Client(quorum=nodes) as client, client.lock("name", ttl=TTL) as lease:
            assert lease.token > 0
        assert repr(client).startswith("<Client a quorum of redis://127.0.0.1")


def test_a_node_that_has_all_on_the_disk_votes_at_once(tmp_path: Path) -> None:
    """It is exempt from the quarantine by its uptime, also after a restart; and it remembers what it granted."""
    options = ["--appendonly", "yes", "--appendfsync", "always"]
    with five_nodes(tmp_path, options) as nodes:
        url = "redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in nodes)
        with Client(url) as client, Client(url, owner="newcomer") as newcomer:
            lease = client.lock("name", ttl=TTL).acquire(timeout=TEST_TIMEOUT)
            for server in nodes[:3]:
                server.kill()
                server.start()
            newcomer.inspect("name")  # it is connected before the time of the next request counts
            with pytest.raises(LockTimeout, match="held by"):
                newcomer.lock("name", ttl=TTL).acquire(timeout=0.5)
            with newcomer.lock("other", ttl=TTL, timeout=TEST_TIMEOUT) as other:
                assert other.token > lease.token
            lease.release()


def test_a_node_that_is_new_gives_no_vote(servers: list[RedisServer]) -> None:
    """For all that a client can know it restarted, and forgot; the error says for how long it gives none."""
    url = "redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
    with Client(url) as client:
        client.inspect("name")  # it is connected before the time of the next request counts
        with pytest.raises(LockTimeout, match="grants nothing for another") as refused:
            client.lock("name", ttl=TTL).acquire(timeout=1.0)
        said = [vote.said for vote in refused.value.votes]
        assert sum("gives no vote for another" in each for each in said) >= 3, said
        with pytest.raises(UsageError, match="longer than this store's max_ttl"):
            client.lock("name", ttl=30.1)
        with pytest.raises(UsageError, match="quorum"):
            client.semaphore("name", 2)


def test_whoever_is_granted_leaves_the_queue_of_a_node_that_refused(servers: list[RedisServer]) -> None:
    """Whether or not its refusal came before the name was released: else the node would keep its vote for nobody."""
    with Client(servers[0].url) as other, Client(store=source(servers)) as client, other.lock("name", ttl=TTL):
        for _ in range(ROUNDS):
            client.lock("name", ttl=TTL).acquire().release()
            wait_until(lambda: not other.inspect("name").waiters, "an empty queue")


def test_a_release_reaches_nodes_that_know_no_scripts(servers: list[RedisServer]) -> None:
    """Also those that are not waited for, and though the client asks nothing more: they are told what it means."""
    with Client(store=source(servers)) as client, contextlib.ExitStack() as stack:
        lease = client.lock("name", ttl=30.0).acquire()
        assert lease.extend() > 25.0  # so that no vote lapses in the time that the test waits
        for server in servers:
            server.command("SCRIPT", "FLUSH")
        lease.release()
        for node in [stack.enter_context(Client(server.url)) for server in servers]:
            wait_until(partial(is_free, node), "a node that has heard of the release")


@pytest.mark.parametrize("heard", [True, False])
def test_a_queue_is_left_at_a_node_that_does_not_answer(servers: list[RedisServer], heard: bool) -> None:
    """It hears of it when it is back, whether or not its refusal had been heard before."""
    paused = servers[0]
    with Client(paused.url) as other, Client(store=source(servers)) as client, other.lock("name", ttl=30.0):
        client.lock("warm", ttl=TTL).acquire().release()  # connected to all
        if not heard:
            paused.pause()
        lease = client.lock("name", ttl=TTL).acquire()
        if heard:
            wait_until(lambda: other.inspect("name").waiters, "the place in the queue")
            paused.pause()
        lease.release()
        paused.resume()
        wait_until(lambda: not other.inspect("name").waiters, "an empty queue")


@pytest.mark.parametrize("act", ["renew", "acquire", "list"])
@pytest.mark.parametrize("form", API_FORMS)
def test_nodes_that_take_connections_and_answer_nothing_keep_no_request_from_the_others(
    servers: list[RedisServer], form: str, act: str
) -> None:
    """A request that needs new connections to the first two nodes reaches the other three within its bound."""

    async def scene(kit: Kit) -> None:
        client = client_at(kit, url, operation_timeout=5.0)
        lease = await client.lock("name", ttl=30.0).acquire(timeout=TEST_TIMEOUT)
        alone = [client_at(kit, server.url) for server in servers]

        async def all_voted() -> bool:
            await lease.extend()
            return all([(await each.inspect("name")).holders for each in alone])

        await kit.until(all_voted, "the votes of all nodes")
        for proxy in proxies:
            proxy.blackhole()
            proxy.cut()
        cut = steady()
        while steady() < cut + SURELY_OPEN:  # then the client looks at a connection before it uses it
            await kit.pause(0.01)
        if act == "renew":
            await lease.extend()
        elif act == "acquire":
            await (await client.lock("other", ttl=30.0).acquire(timeout=0)).release()
        else:
            assert await client.names() == ["name"]
        assert await lease.release() is Outcome.RELEASED

    with Proxy(("127.0.0.1", servers[0].port)) as one, Proxy(("127.0.0.1", servers[1].port)) as two:
        proxies = [one, two]
        ports = [*(proxy.address[1] for proxy in proxies), *(server.port for server in servers[2:])]
        url = "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports) + "?guard=observed"
        play(form, url, scene)


def test_a_login_that_is_refused_is_told_at_once(tmp_path: Path) -> None:
    """Asking again would not mend it; and the password is not repeated."""
    with five_nodes(tmp_path, ["--requirepass", "right"]) as nodes:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in nodes)
        began = time.monotonic()
        with (
            Client(f"redlock://:wr0ng@{hosts}", retry_for=60.0) as client,
            pytest.raises(StoreError, match="credentials") as refused,
        ):
            client.lock("name", ttl=TTL).acquire()
        assert not isinstance(refused.value, StoreUnavailable)
        assert time.monotonic() < began + TEST_TIMEOUT
        assert "wr0ng" not in str(refused.value)
        assert "wr0ng" not in repr(client)


def test_a_request_that_is_late_by_itself_excludes_no_node() -> None:
    """A process that stands still after it has looked at the clock knows nothing of the nodes."""
    with virtual.stopped_clock() as clock:
        store: Any = store_source("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3").make(ThreadsRuntime())
        (node, *_) = store._nodes
        node.ailment = ""

        async def stand_still(name: str, until: float) -> object:
            clock.advance(1.0)
            return await node.store.inspect(name, until)

        async def fail(_name: str, _until: float) -> object:
            raise StoreUnavailable("it is gone")

        for late in (0.0, 0.5):
            with pytest.raises(StoreUnavailable, match="timed out before it was sent"):
                drive(node.attempt(stand_still, "name", clock.time + late))
            assert not node.ailment
        with pytest.raises(StoreUnavailable, match="it is gone"):
            drive(node.attempt(fail, "name", clock.time + 1.0))
        assert node.ailment
        drive(store.close())
