"""Processes at one Redis server that are killed, stopped, forked and ended at bad moments."""

import signal
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from tenure import AsyncClient, AsyncLease, Client, Fence, StaleTokenError
from tenure.contracts.deadlines import seconds
from tenure.core.access import INTERVAL
from tenure.runtimes.clocks import steady
from tenure_testing.conformance.kit import Kit
from tests.faults.metronome import Metronome
from tests.faults.scenes import API_FORMS, play
from tests.hazards.helpers import TEST_TIMEOUT, Script, eventually
from tests.redis.servers import assert_mortal
from tests.servers import Clock, RedisServer

HOLDER = """
import asyncio, logging, sys, tenure
logging.disable()
url, space, ttl, colour, *names = sys.argv[1:]
leases = []

def judge(lease):
    try:
        lease.check()
        return "held"
    except tenure.LeaseLost:
        return "lost"

def block():
    with tenure.Client(url, namespace=space) as client:
        for name in names:
            leases.append(client.lock(name, ttl=float(ttl)).acquire())
        print(*(lease.token for lease in leases), flush=True)
        sys.stdin.readline()
        print(*(judge(lease) for lease in leases), flush=True)
        print(*(lease.release().name for lease in leases), flush=True)

async def loop():
    async with tenure.AsyncClient(url, namespace=space) as client:
        for name in names:
            leases.append(await client.lock(name, ttl=float(ttl)).acquire())
        print(*(lease.token for lease in leases), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(*(judge(lease) for lease in leases), flush=True)
        print(*[(await lease.release()).name for lease in leases], flush=True)

block() if colour == "threads" else asyncio.run(loop())
"""

WAITER = HOLDER.replace("leases = []", "leases = []; print('ready', flush=True)")


@pytest.fixture(scope="module", autouse=True)
def nothing_immortal(redis_server: RedisServer) -> Iterator[None]:
    """After all tests, look at what is left."""
    yield
    assert_mortal(redis_server)


@pytest.fixture
def space() -> str:
    """Return a namespace of the test's own."""
    return uuid4().hex


def start(code: str, server: RedisServer, space: str, ttl: float, form: str, *names: str) -> Script:
    """Start a process that locks names."""
    return Script(code, server.url, space, str(ttl), form, *names)


TTL = 2.5
"""That of the holder who is killed, in seconds: a busy machine can keep it until then."""

MANY = [f"name-{number}" for number in range(9)]


@pytest.mark.parametrize("form", API_FORMS)
def test_a_killed_holder_is_followed_when_its_lease_ends(
    redis_server: RedisServer, form: str, metronome: Metronome
) -> None:
    """A waiter gets the lock of a killed holder when the lease ends, and not when it would have asked again anyway.

    That is any time in an interval. In the middle of many, it takes a small part of one.
    """

    async def scene(kit: Kit) -> None:
        judge = kit.client()
        ends: dict[str, float] = {}
        late: list[float] = []
        missed: list[float] = []

        async def wait(name: str) -> float:
            await kit.client().lock(name, ttl=20).acquire()
            return steady()

        script = start(HOLDER, redis_server, kit.space, TTL, form, *MANY)
        tokens = script.hear().split()
        waiting = {name: kit.start(lambda name=name: wait(name)) for name in MANY}  # type: ignore[misc]
        for name in MANY:
            await kit.waiters(judge, name, 1)
        script.kill()
        for name in MANY:
            asked = steady()
            (holder,) = (await judge.inspect(name)).holders
            ends[name] = asked + holder.expires_in  # or a little later
        for name, running in waiting.items():
            granted = await running.result()
            late.append(granted - ends[name])
            missed.append(metronome.missed(ends[name], granted))
        for name, token in zip(MANY, tokens, strict=True):
            assert (await judge.inspect(name)).last_token > int(token)
        assert min(late) > -0.002, "nobody follows a lease that has not ended"
        assert statistics.median(map(float.__sub__, late, missed)) < seconds(INTERVAL) / 4

    play(form, redis_server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_killed_waiters_are_skipped_in_the_release(redis_server: RedisServer, space: str, form: str) -> None:
    """Any number of killed waiters delays nobody: the release passes them over in the same step."""
    with Client(redis_server.url, namespace=space) as client:
        lease = client.lock("name", ttl=20).acquire()
        scripts = [start(WAITER, redis_server, space, 5, form, "name") for _ in range(3)]
        eventually(lambda: len(client.inspect("name").waiters) == 3, "three waiters")
        for script in scripts:
            script.kill()
        lease.release()
        with client.lock("name", timeout=0):
            assert not client.inspect("name").waiters


@pytest.mark.parametrize("form", API_FORMS)
def test_a_stopped_holder_finds_out_and_is_fenced_off(redis_server: RedisServer, space: str, form: str) -> None:
    """A holder that was stopped past its ttl is succeeded, knows it at its next check, and is refused by a fence."""
    with Client(redis_server.url, namespace=space) as client:
        script = start(HOLDER, redis_server, space, 0.3, form, "name")
        old = int(script.hear())
        script.send(signal.SIGSTOP)
        with client.lock("name", ttl=20, timeout=TEST_TIMEOUT) as lease:
            fence = Fence()
            fence.touch(lease.token)
            script.send(signal.SIGCONT)
            script.say()
            assert script.end() == ("lost\nTAKEN_OVER\n", "")
            with pytest.raises(StaleTokenError):
                fence.touch(old)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_stopped_waiter_costs_no_more_than_its_ttl(redis_server: RedisServer, space: str, form: str) -> None:
    """A name that was granted to a stopped waiter goes to the next one when that lease ends."""
    with Client(redis_server.url, namespace=space) as client:
        lease = client.lock("name", ttl=20).acquire()
        script = start(WAITER, redis_server, space, 2.0, form, "name")
        assert script.hear() == "ready"
        eventually(lambda: client.inspect("name").waiters, "a waiter")
        script.send(signal.SIGSTOP)
        lease.release()
        (holder,) = client.inspect("name").holders
        with client.lock("name", ttl=20, timeout=TEST_TIMEOUT) as mine:
            assert mine.token > holder.token
            script.send(signal.SIGCONT)
            eventually(lambda: client.inspect("name").waiters, "the waiter, which did not take the old grant")
        assert int(script.hear()) > mine.token
        script.say()
        assert script.end() == ("held\nRELEASED\n", "")


@pytest.mark.parametrize("form", API_FORMS)
def test_a_process_that_ends_in_order_leaves_nothing(redis_server: RedisServer, space: str, form: str) -> None:
    """A process that is interrupted while it holds one name and waits for another leaves neither."""
    with Client(redis_server.url, namespace=space) as client, client.lock("held", ttl=20):
        script = start(WAITER, redis_server, space, 30, form, "name", "held")
        eventually(lambda: client.inspect("held").waiters, "a waiter")
        assert client.inspect("name").holders
        script.send(signal.SIGINT)
        script.end()
        assert not client.inspect("held").waiters
        assert not client.inspect("name").holders


@pytest.mark.parametrize("form", API_FORMS)
def test_a_suspended_machine_loses_the_lease_at_once(
    redis_server: RedisServer, space: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder whose machine slept for an hour knows at its very next check that its lease is over."""
    with Clock(tmp_path) as clock, monkeypatch.context() as patched:
        for name, value in clock.environment().items():
            patched.setenv(name, value)
        script = start(HOLDER, redis_server, space, 30, form, "name")
        assert script.hear()
        clock.set(boot=3600)
        script.say()
        assert script.hear() == "lost"
        script.end()


@pytest.mark.parametrize("form", API_FORMS)
def test_a_release_wakes_one(redis_server: RedisServer, form: str) -> None:
    """However many wait, a release has one of them come, and no more than that asked of the server.

    But each waiter asks again after an interval, whatever happens, and a busy machine may take some of them.
    """
    waiters = 12

    async def scene(kit: Kit) -> None:
        client = kit.client()
        lease = await client.lock("name", ttl=20).acquire()
        first: list[AsyncLease] = []

        async def wait(waiter: AsyncClient) -> None:
            first.append(await waiter.lock("name", ttl=20).acquire())

        for _ in range(waiters):
            kit.start(partial(wait, kit.client()))
        await kit.waiters(client, "name", waiters)

        def requests() -> int:
            return int(redis_server.info("stats")["total_commands_processed"])

        async def granted() -> bool:
            return bool(first)

        began, before = steady(), requests()
        await lease.release()
        await kit.until(granted, "a waiter granted")
        asked = requests() - before
        assert asked < waiters * (1 + (steady() - began) / seconds(INTERVAL))
        assert len(first) == 1

    play(form, redis_server.url, scene)


FORK = """
import os, sys, tenure
client = tenure.Client(sys.argv[1], namespace=sys.argv[2])
lease = client.lock("parent", ttl=20).acquire()
waited = client.lock("waited")

def child():
    for act in (lease.check, lease.release, lease.extend):
        try:
            act()
        except tenure.ForkedLeaseError:
            print("refused", flush=True)
    with client.lock("child", ttl=5) as mine:
        mine.extend()
        assert client.lock("parent").try_acquire() is None

pid = os.fork()
if pid == 0:
    try:
        child()
        os._exit(0)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
lease.extend()
print("waits", flush=True)
with waited:
    print(lease.release().name, flush=True)
    sys.stdin.readline()
client.close()
"""


def test_a_forked_child_shares_nothing(redis_server: RedisServer, space: str) -> None:
    """A child uses connections of its own; the parent's lease is inert there, and its channel goes on hearing."""
    with Client(redis_server.url, namespace=space) as client:
        lease = client.lock("waited", ttl=20).acquire()
        script = Script(FORK, redis_server.url, space)
        heard = [script.hear() for _ in range(5)]
        assert heard == ["refused", "refused", "refused", "0", "waits"]
        eventually(lambda: client.inspect("waited").waiters, "the parent in the queue")
        lease.release()
        (holder,) = client.inspect("waited").holders
        assert holder.token > lease.token, "handed over in the release: somebody listens"
        assert script.hear() == "RELEASED"
        script.say()
        assert script.end() == ("", "")
