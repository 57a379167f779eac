"""Every error that a Redis server may answer: what it means for a lock, and that it passes when its reason does."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tenure import Client, LeaseState, LockTimeout, Outcome, OutcomeUnknown, StoreError, StoreUnavailable
from tenure.runtimes.clocks import steady
from tenure.stores.redis.links.errors import LASTING, PASSING, to_store_error
from tenure.stores.redis.links.link import RedisAddress
from tenure.stores.redis.links.link import ReplyError as ReplyErrorOfLink
from tenure.stores.redis.names import slot_of
from tenure.stores.redis.options import deployment_of
from tenure.stores.redis.store import RedisStore
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, client_at, play
from tests.redis.servers import clean, tidy
from tests.redis.test_resharding import Move
from tests.servers import Cluster, ClusterNode, RedisServer, wait_until
from tests.servers.resp import ReplyError

BRIEF = 0.2
"""For how long a client rides out an error, in seconds, where the test waits for it to give up."""

AMPLE = 10.0
"""How long a request may take, in seconds, for every error comes at once: unless the machine is busy."""

GRAIN = 0.01
"""How exactly a renewer wakes up, in seconds."""

LONG = 60.0
"""For how long a client would ride out what passes, in seconds, where nothing does."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer, None, None]:
    """Run a server whose configuration these tests change, and change back."""
    with tidy(RedisServer(tmp_path_factory.mktemp("redis"))) as running:
        yield running


@contextmanager
def configured(server: RedisServer, **settings: str) -> Generator[None, None, None]:
    """Change the configuration for a while."""
    names = {name: name.replace("_", "-") for name in settings}
    before = {name: server.command("CONFIG", "GET", name) for name in names.values()}
    for name, value in settings.items():
        server.command("CONFIG", "SET", names[name], value)
    try:
        yield
    finally:
        for name, reply in before.items():
            assert isinstance(reply, list)
            server.command("CONFIG", "SET", name, reply[1])


# -- all of them -------------------------------------------------------------------------------------------------


MEANINGS = {**PASSING, **LASTING}


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("code", sorted(MEANINGS))
def test_every_code_is_explained(server: RedisServer, code: str, form: str) -> None:
    """Whatever error a server answers, the user is told what it means for a lock and what to do, with its own words."""

    async def scene(kit: Kit) -> None:
        store = RedisStore(deployment_of(urlsplit(server.url)), kit._runtime())
        link, until = store._servers.link(RedisAddress(*server.address)), kit.now() + 10
        with pytest.raises(ReplyErrorOfLink, match=f"^{code} in its own words$") as caught:
            await link.command("DEBUG", "ERROR", f"{code} in its own words", until=until)
        said = to_store_error(RedisAddress(*server.address), caught.value)
        assert isinstance(said, StoreUnavailable) == (code in PASSING)
        assert f"{code} in its own words" in str(said)
        assert MEANINGS[code] in str(said)
        await store.close()

    play(form, server.url, scene)


# -- those that pass ---------------------------------------------------------------------------------------------


@contextmanager
def full(server: RedisServer) -> Generator[None, None, None]:
    """Have no memory left, and nothing that may be evicted."""
    with configured(server, maxmemory="1"):
        yield


@contextmanager
def lonely(server: RedisServer) -> Generator[None, None, None]:
    """Ask for more replicas than there are."""
    with configured(server, min_replicas_to_write="1"):
        yield


@contextmanager
def subordinate(server: RedisServer) -> Generator[None, None, None]:
    """Be a replica, of a server that is not there."""
    server.command("REPLICAOF", "127.0.0.1", "1")
    try:
        yield
    finally:
        server.command("REPLICAOF", "NO", "ONE")


@contextmanager
def orphaned(server: RedisServer) -> Generator[None, None, None]:
    """Be a replica that does not serve what may be old."""
    with configured(server, replica_serve_stale_data="no"), subordinate(server):
        yield


@contextmanager
def busy(server: RedisServer) -> Generator[None, None, None]:
    """Run a script that does not end."""
    with configured(server, busy_reply_threshold="1"), server.connect() as wire:
        wire.send("EVAL", "while true do end", 0)
        try:
            yield
        finally:
            server.command("SCRIPT", "KILL")
            with pytest.raises(ReplyError, match="killed"):
                wire.receive()


@contextmanager
def crowded(server: RedisServer) -> Generator[None, None, None]:
    """Take in nobody else, and send away who is there."""
    with server.connect() as wire:
        wire.command("CONFIG", "SET", "maxclients", 1)
        wire.command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
        wire.command("CLIENT", "KILL", "TYPE", "PUBSUB", "SKIPME", "YES")
        try:
            yield
        finally:
            wire.command("CONFIG", "SET", "maxclients", 1000)


Fault = Callable[[RedisServer], AbstractContextManager[None]]

FAULTS: dict[str, tuple[Fault, str, Outcome]] = {
    "OOM": (full, "is out of memory", Outcome.RELEASED),
    "NOREPLICAS": (lonely, "fewer good replicas", Outcome.UNKNOWN),
    "READONLY": (subordinate, "is a replica", Outcome.UNKNOWN),
    "MASTERDOWN": (orphaned, "is a replica", Outcome.UNKNOWN),
    "BUSY": (busy, "BUSY", Outcome.UNKNOWN),
    "maxclients": (crowded, "max number of clients", Outcome.UNKNOWN),
}


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_that_passes(server: RedisServer, fault: str, form: str) -> None:
    """An acquisition says what is wrong if it gives up, and else goes on when that has passed; a release is quiet."""
    disturb, why, released = FAULTS[fault]

    async def scene(kit: Kit) -> None:
        hasty = client_at(kit, server.url, retry_for=BRIEF, operation_timeout=AMPLE / 5)
        patient = client_at(kit, server.url)
        held = await patient.lock("held", ttl=20).acquire()
        with disturb(server):
            with pytest.raises(StoreUnavailable, match=why):
                await hasty.lock("name", ttl=20).acquire()
            if fault == "MASTERDOWN":
                with pytest.raises(StoreUnavailable, match=r"has lost its master.*MASTERDOWN"):
                    await hasty.inspect("name")
            running = kit.start(lambda: patient.lock("name", ttl=20).acquire())
            assert await held.release() is released
            assert not running.done()
        lease = await running.result()
        lease.check()
        assert await lease.release() is Outcome.RELEASED

    play(form, server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_full_server_still_lets_go(server: RedisServer, form: str) -> None:
    """Without memory nothing new is granted; but what is held is kept, handed over, released, taken; waiters leave."""

    async def scene(kit: Kit) -> None:
        client, waiter = (client_at(kit, server.url, retry_for=BRIEF, operation_timeout=AMPLE) for _ in range(2))
        held = await client.lock("held", ttl=20).acquire()
        other = await client.lock("other", ttl=20).acquire()
        waiting = kit.start(lambda: waiter.lock("held", ttl=20).acquire())
        leaving = kit.start(lambda: waiter.lock("other", ttl=20).acquire(timeout=1.5))
        for name in ("held", "other"):
            await kit.waiters(client, name, 1)
        with full(server):
            assert await held.extend(30) > 25
            assert await held.release() is Outcome.RELEASED
            (await waiting.result()).check()
            with pytest.raises((LockTimeout, StoreUnavailable)):  # or it has asked again before
                await leaving.result()
            assert not (await client.inspect("other")).waiters
            assert len(await client.revoke("other", force=True)) == 1
            assert await other.lost.wait(AMPLE)

    play(form, server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_lease_ends_on_time_where_it_cannot_be_renewed(server: RedisServer, form: str) -> None:
    """While a server refuses renewals a lease is at risk, not lost; it is lost when its time is up, and not before."""

    async def scene(kit: Kit) -> None:
        client, ttl = client_at(kit, server.url), 3.0
        lease = await client.lock("name", ttl=ttl).acquire()
        believed_until = kit.now() + lease.remaining()

        async def at_risk() -> bool:
            return lease.state is LeaseState.AT_RISK

        with lonely(server):
            await kit.until(at_risk, "a lease at risk")
            assert await lease.lost.wait(AMPLE)
            assert kit.now() >= believed_until - GRAIN
        assert await lease.release() is not Outcome.UNKNOWN

    play(form, server.url, scene)


def test_a_server_that_cannot_save(tmp_path: Path) -> None:
    """A server whose last snapshot failed refuses locks, and says so."""
    folder = tmp_path / "snapshots"
    folder.mkdir()
    with (
        RedisServer(tmp_path / "server", options=("--dir", str(folder))) as server,
        Client(server.url, retry_for=BRIEF) as client,
    ):
        folder.rmdir()
        server.command("CONFIG", "SET", "save", "3600 1")
        server.command("BGSAVE")
        wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err", "a snapshot that fails")
        with pytest.raises(StoreUnavailable, match=r"cannot save to disk.*MISCONF"):
            client.lock("name").acquire()
        server.command("CONFIG", "SET", "save", "")
        client.lock("name").acquire().release()


@pytest.mark.parametrize("form", API_FORMS)
def test_a_server_that_loads_its_data(tmp_path: Path, form: str) -> None:
    """While a server loads its data an acquisition waits, and is granted once it is there."""
    delays = ("--key-load-delay", "20", "--loading-process-events-interval-bytes", "1024")
    with RedisServer(tmp_path / "server", options=(*delays, "--dbfilename", "data")) as server:

        async def scene(kit: Kit) -> None:
            client, hasty = kit.client(), client_at(kit, server.url, retry_for=BRIEF, operation_timeout=AMPLE)
            await (await client.lock("name", ttl=20).acquire()).release()
            server.command("DEBUG", "POPULATE", 15_000, "filler")
            server.command("SAVE")
            server.kill()
            server.launch()
            wait_until(lambda: "Loading RDB" in server.log().rsplit("Server initialized", 1)[1], "a server that loads")
            with pytest.raises(StoreUnavailable, match="is still loading"):
                await hasty.lock("name", ttl=20).acquire()
            running = kit.start(lambda: client.lock("name", ttl=20).acquire(timeout=30))
            server.await_ready()
            (await running.result()).check()

        play(form, f"{server.url}?guard=off", scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_master_that_is_deposed_while_replicas_are_awaited(server: RedisServer, form: str) -> None:
    """A grant whose server becomes a replica before another has it does not count."""

    async def scene(kit: Kit) -> None:
        client = client_at(kit, f"{server.url}?replicas=1", retry_for=0, operation_timeout=AMPLE)

        async def awaits_replicas() -> bool:
            return server.info("clients")["blocked_clients"] == "1"

        await (await kit.client().lock("name", ttl=20).acquire()).release()  # now the server knows the scripts
        running = kit.start(lambda: client.lock("name", ttl=20).acquire())
        await kit.until(awaits_replicas, "a WAIT")
        with subordinate(server), pytest.raises(OutcomeUnknown, match="changed its role"):
            await running.result()

    play(form, server.url, scene)


# -- those that last ---------------------------------------------------------------------------------------------


def refused(url: str, match: str, **options: Any) -> str:  # noqa: ANN401 - options of a client
    """See a lock refused for good, at once; return the message."""
    began = steady()
    with Client(url, retry_for=LONG, **options) as client, pytest.raises(StoreError, match=match) as caught:
        client.lock("name").acquire()
    assert not isinstance(caught.value, StoreUnavailable)
    assert steady() - began < LONG / 2, "what asking again cannot mend is not asked again"
    return str(caught.value)


def test_wrong_credentials(server: RedisServer) -> None:
    """No password, a wrong one, an unknown user: refused at once, and the message holds no password."""
    secret = uuid4().hex
    server.command("ACL", "SETUSER", "somebody", "on", f">{secret}", "~*", "&*", "+@all")
    assert "wrong-one" not in refused(server.url_for("somebody", "wrong-one"), "refused the credentials")
    assert secret not in refused(server.url_for("nobody", secret), "refused the credentials")
    server.command("ACL", "SETUSER", "somebody", "reset")
    with server.connect() as wire:
        wire.command("ACL", "SETUSER", "default", "resetpass", f">{secret}")
        try:
            refused(server.url, r"credentials|requires a password")
        finally:
            wire.command("ACL", "SETUSER", "default", "nopass")


def test_a_key_that_is_not_ours(server: RedisServer) -> None:
    """A key of another type where a lock would live is left alone, and named."""
    server.command("SET", "tenure:{name}", "mine", "PX", 60_000)
    refused(server.url, "is not ours")
    assert server.command("GET", "tenure:{name}") == "mine"
    server.command("DEL", "tenure:{name}")


def test_a_node_of_a_cluster_is_no_single_server(redis_cluster: Cluster) -> None:
    """Whoever writes redis:// for a Cluster is told what to write."""
    other = next(node for node in redis_cluster.nodes if node is not redis_cluster.master_of(slot_of("name")))
    with Client(other.url) as client, pytest.raises(StoreError, match=r"write redis\+cluster://"):
        client.lock("name").acquire()


def test_a_cluster_without_slots(tmp_path: Path) -> None:
    """A node that serves nothing is not taken for a cluster, nor for a server."""
    with ClusterNode(tmp_path, node_timeout=1) as node:
        for scheme, why in (("redis+cluster", "CLUSTER INFO"), ("redis", "does not cover all slots|part of a cluster")):
            url = node.url.replace("redis", scheme)
            with Client(url, retry_for=BRIEF) as client, pytest.raises(StoreError, match=why):
                client.lock("name").acquire()


def test_a_slot_on_the_move(redis_cluster: Cluster) -> None:
    """A name in a slot that is just moving is asked for again, and granted when the move is over."""
    url = redis_cluster.url
    with (
        clean(redis_cluster.nodes),
        Client(url, retry_for=BRIEF, operation_timeout=AMPLE) as client,
        Client(url) as patient,
    ):
        client.lock("on the move").acquire().release()
        move = Move(redis_cluster, slot_of("on the move"))
        move.begin()
        with pytest.raises(StoreUnavailable, match=r"is just moving this slot.*TRYAGAIN"):
            client.lock("on the move").acquire()
        move.give_up()
        patient.lock("on the move").acquire().release()
