"""Processes that are killed or stopped, clients that are cut off, sessions that end: on real ensembles.

What a client has vanishes with its session. So a holder that dies is followed when its session has ended, and one that
lives knows that its lease is lost before that can be.
"""

import signal
from collections.abc import Sequence

import pytest

from tenure import AsyncClient, AsyncLease, StoreUnavailable
from tenure.runtimes.clocks import steady
from tenure_testing.conformance.kit import Kit
from tests.faults.resource import SharedNumbers
from tests.faults.scenes import API_FORMS, play
from tests.hazards.helpers import Script
from tests.ordered.ensembles import Ensemble, Party, note, proxies
from tests.servers import Proxy, RedisServer

in_both_forms = pytest.mark.parametrize("form", API_FORMS)

in_one_form_each = pytest.mark.parametrize(
    ("ensemble", "form"), [("zookeeper", "threads"), ("etcd", "asyncio")], indirect=["ensemble"]
)
"""For what takes as long as a session, and is decided by the servers and the core, of which there is one."""

LONG = 60.0
"""A session, and a ttl, that outlive every test: what a client would find by renewing them, it finds too late."""

AMPLE = 10.0
"""How long a request may take, in seconds, of clients whose way is not disturbed: the machine may be busy."""

TEST_TIMEOUT = 15.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure. Renewals of what is LONG come
later, or have to be asked for."""


async def at_last(client: AsyncClient) -> tuple[AsyncLease, float]:
    """Acquire the name of these scenes; return also by when that was done, at the latest."""
    lease = await client.lock("name", ttl=LONG).acquire()
    return lease, steady()


HOLDER = """
import asyncio, sys, time, tenure
from tenure.runtimes.clocks import steady
url, form = sys.argv[1:]

def block():
    with tenure.Client(url, operation_timeout=10) as client:
        lease = client.lock("name", ttl=60).acquire()
        while True:
            print(steady() + lease.remaining(), flush=True)
            time.sleep(0.01)

async def loop():
    async with tenure.AsyncClient(url, operation_timeout=10) as client:
        lease = await client.lock("name", ttl=60).acquire()
        while True:
            print(steady() + lease.remaining(), flush=True)
            await asyncio.sleep(0.01)

block() if form == "threads" else asyncio.run(loop())
"""
"""Says again and again until when its lease is certainly its own."""


@in_one_form_each
def test_a_killed_holder_is_followed_when_its_session_ends(ensemble: Ensemble, space: str, form: str) -> None:
    """By the first who waits, and not before its lease was over."""
    session = ensemble.keepable

    async def scene(kit: Kit) -> None:
        first, second = (Party(kit, ensemble.url(space, LONG), operation_timeout=AMPLE).client for _ in range(2))
        script = Script(HOLDER, ensemble.url(space, session), form)
        try:
            assert script.hear()
            waiting = kit.start(lambda: at_last(first))
            await kit.waiters(second, "name", 1)
            next_one = kit.start(lambda: second.lock("name", ttl=LONG).acquire())
            await kit.waiters(first, "name", 2)
            killed = steady()
            script.send(signal.SIGKILL)
            claims, _ = script.end()
            lease, followed = await waiting.result(session + TEST_TIMEOUT)
        finally:
            script.kill()
        believed = float(claims.split()[-1])
        note(
            f"{ensemble.kind} {form}: session {session:g} s, believed {believed - killed:.3f} s, "
            f"followed after {followed - killed:.3f} s"
        )
        assert believed < followed
        assert not next_one.done()
        await lease.release()
        assert (await next_one.result()).token > lease.token

    play(form, ensemble.url(space, LONG), scene)


STOPPED = """
import asyncio, logging, sys, time, tenure
from tests.faults.resource import SharedNumbers
logging.disable()
url, form, port, space = sys.argv[1:]
numbers = SharedNumbers(int(port), space)

def report(lease):
    value = numbers.read("name", lease.token)
    print(lease.token, flush=True)
    yield
    try:
        lease.check()
        print("held", flush=True)
    except tenure.LeaseLost:
        print("lost", flush=True)
    try:
        numbers.write("name", lease.token, value + 1)
        print("written", flush=True)
    except tenure.StaleTokenError:
        print("refused", flush=True)
    numbers.close()

def block():
    with tenure.Client(url, operation_timeout=10) as client:
        lease = client.lock("name", ttl=60).acquire()
        for _ in report(lease):
            sys.stdin.readline()
        while True:  # until it has found the ensemble again
            try:
                client.inspect("name")
                break
            except tenure.StoreUnavailable:
                time.sleep(0.01)
        print(lease.release().name, flush=True)

async def loop():
    async with tenure.AsyncClient(url, operation_timeout=10) as client:
        lease = await client.lock("name", ttl=60).acquire()
        for _ in report(lease):
            await asyncio.to_thread(sys.stdin.readline)
        while True:
            try:
                await client.inspect("name")
                break
            except tenure.StoreUnavailable:
                await asyncio.sleep(0.01)
        print((await lease.release()).name, flush=True)

block() if form == "threads" else asyncio.run(loop())
"""


@in_one_form_each
def test_a_stopped_holder_finds_out_and_is_fenced_off(
    ensemble: Ensemble, space: str, form: str, redis_server: RedisServer
) -> None:
    """A holder that was stopped past its session is followed, knows it when it goes on, and writes nothing more."""
    session = ensemble.keepable

    async def scene(kit: Kit) -> None:
        other = Party(kit, ensemble.url(space, LONG), operation_timeout=AMPLE).client
        numbers = SharedNumbers(redis_server.port, space)
        script = Script(STOPPED, ensemble.url(space, session), form, str(redis_server.port), space)
        try:
            token = int(script.hear())
            waiting = kit.start(lambda: other.lock("name", ttl=LONG).acquire())
            await kit.waiters(other, "name", 1)
            script.send(signal.SIGSTOP)
            lease = await waiting.result(session + TEST_TIMEOUT)
            assert lease.token > token
            assert numbers.read("name", lease.token) == 0
            script.send(signal.SIGCONT)
            script.say()
            assert script.end() == ("lost\nrefused\nTAKEN_OVER\n", "")
            numbers.write("name", lease.token, 1)
            lease.check()
        finally:
            script.kill()
            numbers.close()

    play(form, ensemble.url(space, LONG), scene)


async def true_of(told: Sequence[object]) -> bool:
    """Tell whether something was told."""
    return bool(told)


def partition(walls: Sequence[Proxy]) -> None:
    """Let nothing through."""
    for wall in walls:
        wall.blackhole()


def heal(walls: Sequence[Proxy]) -> None:
    """Let everything through, also what was sent meanwhile."""
    for wall in walls:
        wall.heal()


@in_both_forms
def test_a_holder_that_is_cut_off(ensemble: Ensemble, space: str, form: str) -> None:
    """It is told while it hears of nobody; who follows does not before its deadline; back again, it can work again."""

    async def scene(kit: Kit) -> None:
        with proxies(ensemble.servers) as walls:
            url = ensemble.url(space, ensemble.keepable, [wall.address for wall in walls])
            holder, other = Party(kit, url), Party(kit, ensemble.url(space, LONG), operation_timeout=AMPLE).client
            told: list[float] = []
            lease = await holder.client.lock("name", ttl=LONG, on_lost=lambda _: told.append(steady())).acquire()
            before = holder.store.directory.session()
            waiting = kit.start(lambda: at_last(other))
            await kit.waiters(other, "name", 1)
            partition(walls)
            cut = deadline = looked = steady()
            while (left := lease.remaining()) > 0:
                deadline = looked + left
                await kit.pause(0.005)
                looked = steady()
            await kit.until(lambda: true_of(told), "told that the lease is lost", TEST_TIMEOUT)
            assert lease.lost
            follower, followed = await waiting.result(ensemble.keepable + TEST_TIMEOUT)
            note(
                f"{ensemble.kind} {form}: believed {deadline - cut:.3f} s, told {told[0] - deadline:+.3f} s later, "
                f"followed after {followed - cut:.3f} s of {ensemble.keepable:g} s"
            )
            assert deadline < followed, "nobody follows who is sure of his lease"
            heal(walls)
            again_waiting = kit.start(lambda: holder.client.lock("name", ttl=LONG).acquire())
            await kit.waiters(other, "name", 1)
            await follower.release()
            again = await again_waiting.result()
            assert again.token > follower.token > lease.token
            assert holder.store.directory.session() != before
            await again.release()
            await holder.client.close()

    play(form, ensemble.url(space, LONG), scene)


@in_both_forms
@pytest.mark.parametrize("released", [True, False], ids=["released-meanwhile", "released-afterwards"])
def test_a_waiter_that_is_cut_off(ensemble: Ensemble, space: str, form: str, released: bool) -> None:
    """Its session over, it stands in the queue again when it is back, gets the name when it is free, and once."""

    async def scene(kit: Kit) -> None:
        with proxies(ensemble.servers) as walls:
            url = ensemble.url(space, LONG, [wall.address for wall in walls])
            waiter, other = Party(kit, url), Party(kit, ensemble.url(space, LONG), operation_timeout=AMPLE).client
            lease = await other.lock("name", ttl=LONG).acquire()
            waiting = kit.start(lambda: waiter.client.lock("name", ttl=LONG).acquire())
            await kit.waiters(other, "name", 1)
            partition(walls)
            ensemble.end_session(waiter.store)
            await kit.waiters(other, "name", 0)
            if released:
                await lease.release()
            heal(walls)
            if not released:
                await kit.waiters(other, "name", 1)
                await lease.release()
            mine = await waiting.result(TEST_TIMEOUT)
            mine.check()
            view = await other.inspect("name")
            assert [holder.token for holder in view.holders] == [mine.token]
            assert not view.waiters
            await mine.release()
            await waiter.client.close()
            assert not (await other.inspect("name")).holders

    play(form, ensemble.url(space, LONG), scene)


@in_both_forms
def test_a_server_that_stops_is_left_before_its_clients_lose_anything(
    ensemble: Ensemble, space: str, form: str
) -> None:
    """Who holds by way of a follower that is stopped goes on by way of another, however short its requests are.

    The lease outlives many requests: on a busy machine the servers that run do not answer all of these in time either.
    """
    ttl, brief = LONG / 2, 0.5

    async def scene(kit: Kit) -> None:
        url, followers = ensemble.url(space, LONG), ensemble.followers()
        while True:
            party = Party(kit, url, operation_timeout=brief, retry_for=TEST_TIMEOUT)
            lease = await party.client.lock("name", ttl=ttl).acquire()
            server = ensemble.in_use(party.store)
            if server in followers:
                break
            await lease.release()
        assert server is not None
        server.pause()
        stopped = steady()
        while True:
            lease.check()
            try:
                await lease.extend()
                break
            except StoreUnavailable:
                await kit.pause(0.005)
        note(f"{ensemble.kind} {form}: extended by way of another after {steady() - stopped:.3f} s")
        waiting = kit.start(lambda: Party(kit, url, operation_timeout=AMPLE).client.lock("name", ttl=ttl).acquire())
        await lease.release()
        assert (await waiting.result(ttl + TEST_TIMEOUT)).token > lease.token
        await party.client.close()
        server.resume()

    play(form, ensemble.url(space, LONG), scene)


@in_both_forms
def test_a_session_that_the_servers_end(ensemble: Ensemble, space: str, form: str) -> None:
    """Who waited goes on in another session, and is granted; who held is told that the lease is lost, unasked."""

    async def scene(kit: Kit) -> None:
        one, two = (Party(kit, ensemble.url(space, LONG), operation_timeout=AMPLE) for _ in range(2))
        told: list[float] = []
        lease = await one.client.lock("name", ttl=LONG, on_lost=lambda _: told.append(steady())).acquire()
        waiting = kit.start(lambda: two.client.lock("name", ttl=LONG).acquire())
        await kit.waiters(one.client, "name", 1)
        session = two.store.directory.session()
        ensemble.end_session(two.store)

        async def again() -> bool:
            return bool((await one.client.inspect("name")).waiters) and two.store.directory.session() != session

        await kit.until(again, "the waiter in another session")
        lease.check()
        ensemble.end_session(one.store)
        mine = await waiting.result()
        assert await lease.lost.wait(TEST_TIMEOUT)
        await kit.until(lambda: true_of(told), "told that the lease is lost", TEST_TIMEOUT)
        assert mine.token > lease.token
        mine.check()
        again_lease = kit.start(lambda: one.client.lock("name", ttl=LONG).acquire())
        await kit.waiters(two.client, "name", 1)
        await mine.release()
        assert (await again_lease.result()).token > mine.token

    play(form, ensemble.url(space, LONG), scene)
