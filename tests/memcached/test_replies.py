"""Replies that are lost, requests that come late, and a server that stands still: no orphan, and no wrong answer."""

import random
from collections import Counter
from functools import partial

import pytest

from tenure import AsyncClient, LockTimeout, Outcome, OutcomeUnknown, StoreUnavailable
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import client_at, play
from tests.faults.tally import Tally
from tests.memcached.scenes import LONG, behind_proxy, both_forms, gather, stats, url_of
from tests.servers import MemcachedServer

RIDE_OUT = 30.0
"""For how long clients repeat requests, in seconds: only a failure uses it up."""


@both_forms
def test_an_acquire_whose_reply_was_lost_is_granted_once(memcached_server: MemcachedServer, form: str) -> None:
    """The repeated request finds the lease of the first one, and does not report the name as busy."""
    with behind_proxy(memcached_server) as proxy:

        async def scene(kit: Kit) -> None:
            here, there = client_at(kit, url_of(proxy)), kit.client()
            for name in ("unknown", "known"):
                if name == "known":
                    await (await here.lock(name, ttl=LONG).acquire()).release()
                proxy.swallow(containing=b"ms ")
                lease = await here.lock(name, ttl=LONG).acquire(timeout=RIDE_OUT)
                assert [each.token for each in (await there.inspect(name)).holders] == [lease.token]
                assert await lease.release() is Outcome.RELEASED
                assert await there.lock(name, ttl=LONG).try_acquire() is not None
            assert proxy.counts.swallowed == 2

        play(form, memcached_server.url, scene)


@both_forms
def test_a_release_whose_reply_was_lost_is_no_error(memcached_server: MemcachedServer, form: str) -> None:
    """The repeated release finds its own record, and takes the name from nobody."""
    with behind_proxy(memcached_server) as proxy:

        async def scene(kit: Kit) -> None:
            here, there = client_at(kit, url_of(proxy)), kit.client()
            lease = await here.lock("name", ttl=LONG).acquire()
            proxy.swallow(containing=b" free ")
            assert await lease.release() is Outcome.RELEASED
            theirs = await there.lock("name", ttl=LONG).try_acquire()
            assert theirs is not None
            assert await lease.release() is Outcome.RELEASED
            theirs.check()
            assert proxy.counts.swallowed == 1

        play(form, memcached_server.url, scene)


@both_forms
@pytest.mark.parametrize("meanwhile", ["taken", "revoked", "flushed"])
def test_a_repeated_release_tells_what_the_first_one_did(
    memcached_server: MemcachedServer, form: str, meanwhile: str
) -> None:
    """Others may have had the name since. Only if somebody revoked or the server forgot a lease, nobody knows."""
    with behind_proxy(memcached_server) as proxy:

        async def scene(kit: Kit) -> None:
            here, there = client_at(kit, url_of(proxy), retry_for=RIDE_OUT), kit.client()
            lease = await here.lock("name", ttl=LONG).acquire()
            if meanwhile == "revoked":
                await there.revoke("name", force=True)
            proxy.swallow(containing=b" free ", cut=False)
            release = kit.start(lease.release)

            async def swallowed() -> bool:
                return proxy.counts.swallowed == 1

            await kit.until(swallowed, "the reply to a release", RIDE_OUT)
            if meanwhile == "flushed":
                memcached_server.flush()
            for _ in range(3):
                await (await there.lock("name", ttl=LONG).acquire(timeout=RIDE_OUT)).release()
            proxy.cut()
            assert await release.result(RIDE_OUT) is (Outcome.RELEASED if meanwhile == "taken" else Outcome.UNKNOWN)

        play(form, memcached_server.url, scene)


@both_forms
def test_a_renewal_whose_reply_was_lost_is_repeated(memcached_server: MemcachedServer, form: str) -> None:
    """The first one has changed the CAS value; the second finds the lease by its request."""
    with behind_proxy(memcached_server) as proxy:

        async def scene(kit: Kit) -> None:
            here, there = client_at(kit, url_of(proxy)), kit.client()
            lease = await here.lock("name", ttl=5.0).acquire()
            proxy.swallow(None, containing=b" held ")
            with pytest.raises(OutcomeUnknown):
                await lease.extend(LONG)
            proxy.heal()
            assert await lease.extend(LONG) > LONG / 2
            assert (await there.inspect("name")).holders[0].ttl == LONG
            assert await lease.release() is Outcome.RELEASED

        play(form, memcached_server.url, scene)


@both_forms
def test_a_published_value_whose_reply_was_lost_is_published(memcached_server: MemcachedServer, form: str) -> None:
    """A leader changes its value once, though the request is repeated."""
    with behind_proxy(memcached_server) as proxy:

        async def scene(kit: Kit) -> None:
            here, there = client_at(kit, url_of(proxy)), kit.client()
            term = await here.election("boss", ttl=LONG).campaign("one")
            proxy.swallow(containing=b" held ")
            await term.publish("two")
            leader = await there.election("boss", ttl=LONG).leader()
            assert leader is not None
            assert (leader.value, leader.token) == ("two", term.token)
            await term.release()

        play(form, memcached_server.url, scene)


def _acquisitions(server: MemcachedServer, form: str, rounds: int) -> None:
    """Acquire and release through a proxy that swallows a tenth of all replies."""
    workers, names = 4, ("one", "two", "名")
    tallies = {name: Tally() for name in names}
    ends: list[Outcome] = []  # several threads append to it, where counting would lose some of them

    async def scene(kit: Kit) -> None:
        clients = [client_at(kit, url_of(proxy), retry_for=RIDE_OUT, operation_timeout=10.0) for _ in range(2)]
        for client in clients:
            await client.names()
        proxy.swallow(None, probability=0.1)
        works = [partial(_work, clients[place % 2], place) for place in range(workers)]
        await gather(kit.start, works)
        proxy.heal()
        assert await kit.client().names() == [], "no lease is left behind"

    async def _work(client: AsyncClient, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(rounds // workers):
            name = chance.choice(names)
            lease = await client.lock(name, ttl=LONG * 10).acquire(timeout=120.0)
            tallies[name].enter(lease.token)
            lease.check()
            tallies[name].leave()
            ends.append(await lease.release())

    with behind_proxy(server) as proxy:
        play(form, server.url, scene)
        assert proxy.counts.swallowed > rounds / 20
    outcomes = Counter(ends)
    assert outcomes[Outcome.RELEASED] + outcomes[Outcome.UNKNOWN] == rounds
    assert outcomes[Outcome.UNKNOWN] <= rounds / 50  # all replies to one release were swallowed
    assert [tally.most for tally in tallies.values()] == [1, 1, 1]
    assert all(tally.tokens_grow for tally in tallies.values())


@both_forms
def test_a_thousand_acquisitions_survive_lost_replies(memcached_server: MemcachedServer, form: str) -> None:
    """One holder at a time, growing tokens, no release is answered wrongly, and nothing left at the end."""
    _acquisitions(memcached_server, form, 1_000)


@both_forms
@pytest.mark.timeout(600)
def test_ten_thousand_acquisitions_survive_lost_replies(memcached_server: MemcachedServer, form: str) -> None:
    """The same, for longer."""
    _acquisitions(memcached_server, form, 10_000)


@both_forms
def test_a_paused_server_keeps_nothing_of_a_request_that_was_given_up(
    memcached_server: MemcachedServer, form: str
) -> None:
    """A request that is carried out after its caller gave up is withdrawn, long before its ttl is over."""

    async def scene(kit: Kit) -> None:
        here = client_at(kit, memcached_server.url, operation_timeout=0.2, retry_for=0.5)
        await here.names()
        memcached_server.pause()
        for timeout in (0, 0.3):
            with pytest.raises((StoreUnavailable, LockTimeout)):
                await here.lock("ghost", ttl=LONG).acquire(timeout=timeout)
        memcached_server.resume()
        there = kit.client()
        await (await there.lock("ghost", ttl=LONG).acquire(timeout=LONG / 4)).release()

        async def free() -> bool:
            return (await there.names()) == []

        await kit.until(free, "a name that no late request holds")

    play(form, memcached_server.url, scene)


@both_forms
def test_a_cancelled_request_leaves_its_reply_to_nobody(memcached_server: MemcachedServer, form: str) -> None:
    """Requests that time out one after another do not shift the replies of those that follow."""
    with behind_proxy(memcached_server) as proxy:

        async def scene(kit: Kit) -> None:
            here = client_at(kit, url_of(proxy), operation_timeout=0.5, retry_for=0.0)
            leases = [await here.lock(f"name {number}", ttl=LONG).acquire() for number in range(3)]
            proxy.blackhole(up=False, down=True)
            for number in range(3):
                with pytest.raises(StoreUnavailable):
                    await here.inspect(f"name {number}")
            proxy.heal()

            async def answers() -> bool:
                try:
                    await here.inspect("name 0")
                except StoreUnavailable:
                    return False
                return True

            await kit.until(answers, "an answer")
            for number, lease in enumerate(leases):
                view = await here.inspect(f"name {number}")
                assert (view.name, view.last_token) == (f"name {number}", lease.token)

        play(form, memcached_server.url, scene)


@both_forms
def test_an_uncontended_pair_is_two_commands(memcached_server: MemcachedServer, form: str) -> None:
    """One command acquires and one releases, from the second time on; the first acquisition looks as well."""

    async def scene(kit: Kit) -> None:
        lock = kit.client().lock("name", ttl=LONG)
        await (await lock.acquire()).release()
        before = stats(memcached_server)
        for _ in range(10):
            await (await lock.acquire()).release()
        after = stats(memcached_server)
        assert after["cmd_set"] - before["cmd_set"] == 20
        assert after["cmd_get"] == before["cmd_get"]

    play(form, memcached_server.url, scene)


@both_forms
def test_a_waiter_polls_less_and_less(memcached_server: MemcachedServer, form: str) -> None:
    """A waiter of a name that stays held looks a bounded number of times, and stores nothing."""

    async def scene(kit: Kit) -> None:
        lease = await kit.client().lock("name", ttl=LONG).acquire()
        waiting = kit.client()
        await waiting.inspect("another")  # opens the client, so that all of the wait goes into looking
        before = stats(memcached_server)
        with pytest.raises(LockTimeout):
            await waiting.lock("name", ttl=LONG).acquire(timeout=2.0)
        after = stats(memcached_server)
        assert 3 < after["cmd_get"] - before["cmd_get"] < 60
        assert after["cmd_set"] - before["cmd_set"] <= 1  # the first request adds, if there is nothing
        await lease.release()

    play(form, memcached_server.url, scene)
