"""A network that loses replies, cuts, delays and swallows, between clients and one Redis server."""

import os
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest

from tenure import Client, LeaseLost, LeaseState, LockTimeout, Outcome, OutcomeUnknown
from tenure.stores.redis import scripts
from tenure.stores.redis.scripts import Script
from tenure_testing.conformance.kit import Kit
from tests.faults.resource import Numbers
from tests.faults.scenes import API_FORMS, client_at, play
from tests.redis.load import Crew, Job
from tests.redis.servers import tidy
from tests.servers import Proxy, RedisServer

redis: Any = import_module("redis")  # so that type checkers don't take tests/redis for it
redis_asyncio: Any = import_module("redis.asyncio")

SPARED = 4
"""Chunks of a handshake that are not disturbed."""

ACQUISITIONS = int(os.environ.get("TENURE_ACQUISITIONS", "3000"))

AMPLE = 10.0
"""How long a request may take, in seconds, where the machine may be busy and that is not the point."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer, None, None]:
    """Run a server of this module's own."""
    with tidy(RedisServer(tmp_path_factory.mktemp("redis"))) as running:
        yield running


@pytest.fixture
def proxy(server: RedisServer) -> Generator[Proxy, None, None]:
    """Put a proxy in front of it."""
    with Proxy(server.address, spared=SPARED) as running:
        yield running


def url_of(proxy: Proxy) -> str:
    """Return the way through the proxy."""
    host, port = proxy.address
    return f"redis://{host}:{port}"


@pytest.fixture
def url(proxy: Proxy) -> str:
    """Return the way through the proxy."""
    return url_of(proxy)


def theirs(kit: Kit, url: str) -> object:
    """Return a client of redis-py, which would repeat everything ten times by itself."""
    return (redis_asyncio if kit.form == API_FORMS[1] else redis).Redis.from_url(url)


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("given", ["a URL", "a client"])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_lost_message_changes_nothing(server: RedisServer, proxy: Proxy, lost: str, given: str, form: str) -> None:
    """Whichever message of an operation is lost, it is carried out once, and answered as if nothing had been lost."""
    url, carried_out = url_of(proxy), lost == "reply"

    def lose(script: Script) -> None:
        harm = proxy.swallow if carried_out else proxy.lose
        harm(1, containing=script.digest.encode())

    async def scene(kit: Kit) -> None:
        client = client_at(kit, url if given == "a URL" else theirs(kit, url))
        other, hurried, judge = client_at(kit, url), client_at(kit, url), client_at(kit, server.url)
        await (await client.lock("name", ttl=20).acquire()).release()
        await other.inspect("name")
        await hurried.inspect("name")
        for script in scripts.ALL:
            server.command("SCRIPT", "LOAD", script.text)  # so that no lost message is a NOSCRIPT

        lose(scripts.ACQUIRE)
        lease = await client.lock("name", ttl=20).acquire()
        view = await judge.inspect("name")
        assert [holder.token for holder in view.holders] == [lease.token] == [view.last_token]

        lose(scripts.ACQUIRE)
        waiting = kit.start(lambda: other.lock("name", ttl=20).acquire())
        await kit.waiters(judge, "name", 1)

        lose(scripts.WITHDRAW)
        with pytest.raises(LockTimeout):
            await hurried.lock("name", ttl=20).acquire(timeout=0.05)
        await kit.waiters(judge, "name", 1)  # it leaves in the background, again and again

        lose(scripts.RENEW)
        assert await lease.extend(30) > 20
        assert lease.state is LeaseState.HELD
        assert (await judge.inspect("name")).holders[0].expires_in > 20

        lose(scripts.RELEASE)
        assert await lease.release() is Outcome.RELEASED
        assert await lease.release() is Outcome.RELEASED
        second = await waiting.result()
        second.check()
        assert [holder.token for holder in (await judge.inspect("name")).holders] == [second.token]

    play(form, url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_who_never_gets_an_answer_leaves_nothing(server: RedisServer, proxy: Proxy, url: str, form: str) -> None:
    """An acquisition of which no reply comes back raises, and leaves no orphan and no place in the queue."""

    async def scene(kit: Kit) -> None:
        client = client_at(kit, url, retry_for=0)
        judge = client_at(kit, server.url, operation_timeout=AMPLE)
        await (await client.lock("warm", ttl=20).acquire()).release()
        held = await judge.lock("held", ttl=20).acquire()
        proxy.swallow(None, containing=scripts.ACQUIRE.digest.encode(), cut=False)
        for name in ("free", "held"):
            with pytest.raises(OutcomeUnknown):
                await client.lock(name, ttl=20).acquire()
        began = kit.now()
        await kit.free(judge, "free")
        await kit.waiters(judge, "held", 0)
        assert kit.now() - began < 20, "nothing is left to its ttl"
        held.check()

    play(form, url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_holder_that_is_cut_off_knows_in_time(server: RedisServer, proxy: Proxy, url: str, form: str) -> None:
    """Behind a network that swallows everything a lease is lost at its deadline, before anybody else has the lock."""

    async def scene(kit: Kit) -> None:
        here, there = client_at(kit, url), client_at(kit, server.url)
        lease = await here.lock("name", ttl=2.5).acquire()
        waiting = kit.start(lambda: there.lock("name", ttl=20).acquire())
        await kit.waiters(there, "name", 1)
        proxy.blackhole()
        second = await waiting.result()
        with pytest.raises(LeaseLost):
            lease.check()
        assert await lease.lost.wait(AMPLE)
        assert second.token > lease.token
        proxy.blackhole(up=False, down=False)
        await here.inspect("name")  # the store is reached again: a lost lease is released by short tries only
        assert await lease.release() is Outcome.TAKEN_OVER
        second.check()

    play(form, url, scene)


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("refuse", [False, True], ids=["a moment", "a while"])
def test_a_waiter_that_was_cut_off_comes_back(
    server: RedisServer, proxy: Proxy, url: str, refuse: bool, form: str
) -> None:
    """Whose channel is cut subscribes again and asks: a grant that it could not hear does not keep it waiting."""

    async def scene(kit: Kit) -> None:
        here, there = client_at(kit, url), client_at(kit, server.url)
        lease = await there.lock("name", ttl=20).acquire()
        waiting = kit.start(lambda: here.lock("name", ttl=20).acquire())
        await kit.waiters(there, "name", 1)
        if refuse:
            proxy.refuse()
        proxy.cut()
        if refuse:

            async def is_alone() -> bool:
                return [waiter.alive for waiter in (await there.inspect("name")).waiters] == [False]

            await kit.until(is_alone, "the server's word that the waiter is cut off")
        await lease.release()
        if refuse:
            assert not (await there.inspect("name")).holders, "nobody is there to be granted"
            proxy.accept()
        (await waiting.result()).check()

    play(form, url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_waiter_whose_channel_alone_is_cut_comes_back(server: RedisServer, form: str) -> None:
    """The server may cut a slow listener: the lock is handed over all the same, in the release."""

    async def scene(kit: Kit) -> None:
        client, other = client_at(kit, server.url), client_at(kit, server.url)
        for _ in range(3):
            lease = await client.lock("name", ttl=20).acquire()
            waiting = kit.start(lambda: other.lock("name", ttl=20).acquire())
            await kit.waiters(client, "name", 1)
            assert server.command("CLIENT", "KILL", "TYPE", "PUBSUB")

            async def heard_again() -> bool:
                with suppress(OutcomeUnknown):  # one connection may serve for both
                    return [waiter.alive for waiter in (await client.inspect("name")).waiters] == [True]
                return False

            await kit.until(heard_again, "a subscription")
            await lease.release()
            later = await waiting.result()
            assert later.token > lease.token
            await later.release()

    play(form, server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_slow_line_shortens_what_is_believed(server: RedisServer, proxy: Proxy, url: str, form: str) -> None:
    """A lease counts from before it was asked for: whatever the way there and back took is not believed."""

    async def scene(kit: Kit) -> None:
        client, judge = client_at(kit, url), client_at(kit, server.url)
        await (await client.lock("warm", ttl=5).acquire()).release()
        proxy.delay(up=0.1, down=0.1)
        lease = await client.lock("name", ttl=5).acquire()
        looked = kit.now()
        believed_until = looked + lease.remaining()  # or a little longer
        (holder,) = (await judge.inspect("name")).holders
        assert believed_until < kit.now() + holder.expires_in
        assert lease.remaining() < 5 - 0.2
        assert await lease.release() is Outcome.RELEASED

    play(form, url, scene)


def test_thousands_of_acquisitions_where_replies_are_lost(server: RedisServer, proxy: Proxy, url: str) -> None:
    """Threads and tasks, with two of a hundred messages lost: no lost update, no wrong answer, nothing left behind."""
    names, workers = ["one", "two", "three"], 8
    numbers = Numbers()
    proxy.swallow(None, probability=0.013)
    proxy.lose(None, probability=0.007)
    job = Job(names, timeout=None, rounds=ACQUISITIONS // workers)
    with Crew(url, job, numbers, threads=workers // 2, tasks=workers // 2) as crew:
        record = crew.end(stop=False)
    proxy.heal()
    assert proxy.counts.swallowed + proxy.counts.lost > ACQUISITIONS / 100
    assert len(record.holds) == job.rounds * workers
    assert numbers.total() == record.counts["written"] == len(record.holds)
    assert not record.overlaps()
    assert not record.repeated_tokens()
    assert set(record.counts) <= {"written", Outcome.RELEASED.name, Outcome.UNKNOWN.name}
    assert record.counts[Outcome.UNKNOWN.name] < len(record.holds) / 1000
    with Client(server.url) as client:
        for name in names:
            client.lock(name, ttl=20).acquire(timeout=2 * job.ttl).release()
            view = client.inspect(name)
            assert not view.holders
            assert not view.waiters
