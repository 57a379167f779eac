"""A user needs what docs/redis.md lists for its kind of server, and nothing of it is too much."""

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

from tenure import AsyncClient, Client, LockTimeout, StoreError, StoreUnavailable
from tenure.stores.redis import servers
from tenure.stores.redis.links.aio_pipeline import SilenceLimits
from tenure.stores.redis.links.listener import RedisListener
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, Scene, play
from tests.redis.servers import DOCUMENT, PASSWORD, USER, ValkeyServer, clean, documented_user, tidy
from tests.servers import Cluster, RedisServer, SentinelGroup

SECRET = quote(PASSWORD, safe="")

SERVERS = {"redis": RedisServer, "valkey": ValkeyServer}

RARELY = {"unsubscribe", "asking"}
"""Needed when a master is replaced and when a slot moves, which does not happen here."""


def documented_additions(kind: str) -> list[str]:
    """Return what docs/redis.md adds for a kind of server: the code in the line of its table."""
    (line,) = re.findall(rf"^\| {kind} \|.*$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    return re.findall(r"\+[a-z|-]+", line.replace(r"\|", "|"))


def courtesy(server: RedisServer) -> list[str]:
    """Return what it takes besides where redis-py introduces itself: not where Redis is too old to know of that."""
    about = server.info("server")
    new = "valkey_version" in about or tuple(map(int, about["redis_version"].split(".")[:2])) >= (7, 2)
    return documented_additions("Valkey.*") if new else []


def commands_of(permissions: Iterable[str]) -> set[str]:
    """Return the commands that are allowed."""
    return {word[1:] for word in permissions if word.startswith("+")}


async def everything(kit: Kit) -> None:
    """Do all that a client can do."""
    here, there, elsewhere = (kit.client() for _ in range(3))

    async def wait(client: AsyncClient) -> None:
        async with client.lock("before", ttl=20):  # so that it knows the server, and asks in the usual way
            pass
        async with client.lock("name", ttl=20):
            pass

    lease = await here.lock("name", ttl=20).acquire()
    waiting = [kit.start(partial(wait, client)) for client in (there, elsewhere)]
    await kit.waiters(here, "name", 2)
    late = kit.client()
    await late.names()  # so that its time is not spent on connections
    leaving = kit.start(lambda: late.lock("name", ttl=20).acquire(timeout=0.05))
    with pytest.raises(LockTimeout):
        await leaving.result()
    assert await here.names() == ["name"]
    await lease.extend()
    await lease.release()
    for running in waiting:
        await running.result()
    await here.lock("name", ttl=20).acquire()
    await there.revoke("name", force=True)
    quick = await here.lock("quick", ttl=20, min_hold=10).acquire()
    await there.revoke("quick")
    await quick.release()
    writing = await here.rwlock("both", ttl=20).write().acquire()
    await writing.downgrade()
    await here.semaphore("permits", 2, ttl=20).resize(3)
    raw = await kit.raw()
    await raw.withdraw(raw.request("name"), unsure=True)
    left = await kit.raw()
    await raw.acquire_free(raw.request("many", capacity=3))
    await left.acquire(left.request("many", capacity=3, weight=3))
    await left.close()
    await raw.acquire(raw.request("many", capacity=3))


def everything_at(*servers: RedisServer) -> Scene:
    """Return a scene that does all, and then hears nothing, until somebody asks whether a server is there."""

    async def scene(kit: Kit) -> None:
        await everything(kit)

        async def asked() -> bool:
            return any("cmdstat_ping" in server.info("commandstats") for server in servers)

        await kit.until(asked, "a ping")

    return scene


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have silent connections looked after, and idle channels dropped, at once."""
    monkeypatch.setattr(servers, "IDLE_CHANNEL", -1.0)
    monkeypatch.setattr(RedisListener, "quiet", 0.05)
    monkeypatch.setattr(SilenceLimits.__init__, "__defaults__", (1.0, 0.05, 5.0))


@contextmanager
def watched(*servers: RedisServer) -> Generator[set[str], None, None]:
    """Collect what servers are asked to do; see that nothing was refused to anybody."""
    used: set[str] = set()
    for server in servers:
        server.command("CONFIG", "RESETSTAT")
        server.command("ACL", "LOG", "RESET")
        server.command("SCRIPT", "FLUSH")
    yield used
    for server in servers:
        stats = server.info("commandstats")
        used |= {name.removeprefix("cmdstat_") for name, counts in stats.items() if not counts.startswith("calls=0,")}
        assert server.command("ACL", "LOG") == []


@pytest.mark.parametrize("kind", SERVERS)
def test_the_documented_permissions_are_what_it_takes(tmp_path: Path, kind: str) -> None:
    """All that a client does is allowed by the documented line, and each word of the line is needed."""
    with tidy(SERVERS[kind](tmp_path)) as server:
        server.command(*documented_user(), *courtesy(server))
        with watched(server) as used:
            for form in API_FORMS:
                play(form, server.url_for(USER, SECRET), everything_at(server))
        assert commands_of(documented_user()) - RARELY <= used


@pytest.mark.parametrize("form", API_FORMS)
def test_the_documented_additions_for_replicas(tmp_path: Path, form: str) -> None:
    """With `replicas=` it takes one word more."""
    with tidy(RedisServer(tmp_path / "master")) as server:
        follow = ("--replicaof", *map(str, server.address))
        with RedisServer(tmp_path / "replica", options=follow):
            additions = documented_additions("`replicas=`")
            server.command(*documented_user(), *additions, *courtesy(server))
            with watched(server) as used:
                play(form, f"{server.url_for(USER, SECRET)}?replicas=1", everything_at(server))
            assert commands_of(additions) <= used


@pytest.mark.parametrize("form", API_FORMS)
def test_the_documented_additions_for_a_cluster(redis_cluster: Cluster, form: str) -> None:
    """In a Cluster it takes some words more, and some less."""
    additions = documented_additions("Cluster")
    for node in redis_cluster.nodes:
        node.command(*documented_user(), *additions, *courtesy(node))
    try:
        with clean(redis_cluster.nodes), watched(*redis_cluster.nodes) as used:
            play(form, redis_cluster.url.replace("://", f"://{USER}:{SECRET}@"), everything_at(*redis_cluster.nodes))
        assert commands_of(additions) - RARELY <= used
    finally:
        for node in redis_cluster.nodes:
            node.command("ACL", "DELUSER", USER)


@pytest.mark.parametrize("form", API_FORMS)
def test_the_documented_user_of_sentinels(redis_sentinel: SentinelGroup, form: str) -> None:
    """A Sentinel is asked one thing only."""
    additions = documented_additions("Sentinels")
    for sentinel in redis_sentinel.sentinels:
        sentinel.command("ACL", "SETUSER", "guide", "on", f">{PASSWORD}", *additions, *courtesy(sentinel))
    try:
        with clean(redis_sentinel.servers):
            play(form, f"{redis_sentinel.url}?sentinel_username=guide&sentinel_password={SECRET}", everything)
        assert [sentinel.command("ACL", "LOG") for sentinel in redis_sentinel.sentinels] == [[], [], []]
    finally:
        for sentinel in redis_sentinel.sentinels:
            sentinel.command("ACL", "DELUSER", "guide")


WITHOUT = {"~tenure:*": "resetkeys", "&tenure:*": "resetchannels"}


@pytest.fixture(scope="module", params=SERVERS)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer]:
    """Run a server of either kind."""
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.mark.parametrize("lacks", ["+evalsha", "+time", "+hset", "+subscribe", "+info", "~tenure:*", "&tenure:*"])
def test_a_user_who_may_too_little_is_told_so(plain: RedisServer, lacks: str) -> None:
    """Whoever lacks a command, the keys or the channels is told at once, and sent to the documentation."""
    plain.command("ACL", "DELUSER", USER)
    plain.command(*documented_user())
    plain.command("ACL", "SETUSER", USER, WITHOUT.get(lacks, lacks.replace("+", "-")))
    told = pytest.raises(StoreError, match=r"denies this user|allow this user|docs/redis\.md")
    with Client(plain.url_for(USER, SECRET)) as client, told as caught:
        client.lock(lacks).acquire()
    assert not isinstance(caught.value, StoreUnavailable)
