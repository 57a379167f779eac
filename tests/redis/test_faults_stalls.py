"""A server that stands still for a while, forgets its scripts or some keys, or whose clock is set."""

import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tenure import Fence, Outcome, OutcomeUnknown, StaleTokenError, StoreUnavailable
from tenure.stores.redis.names import NODE, state_key
from tenure_testing.conformance.kit import Kit, Running
from tests.faults.resource import Numbers
from tests.faults.scenes import API_FORMS, client_at, play
from tests.redis.load import Crew, Job
from tests.redis.servers import tidy
from tests.servers import Clock, RedisServer

STALL = 0.8
"""For how long a server stands still, in seconds: some times longer than a request may take."""

BRIEF = 0.25

AMPLE = 1.0
"""How long a request may take, in seconds, that a busy machine has to get through."""

TEST_TIMEOUT = 15.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer, None, None]:
    """Run a server of this module's own."""
    with tidy(RedisServer(tmp_path_factory.mktemp("redis"))) as running:
        yield running


@contextmanager
def stopped(server: RedisServer, seconds: float = STALL) -> Generator[None, None, None]:
    """Stop its process."""
    server.pause()
    timer = threading.Timer(seconds, server.resume)
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextmanager
def asleep(server: RedisServer) -> Generator[None, None, None]:
    """Have it carry out something that takes long."""
    with server.connect() as wire:
        wire.send("DEBUG", "SLEEP", STALL)
        yield
        wire.receive()


@contextmanager
def paused(server: RedisServer) -> Generator[None, None, None]:
    """Have it delay all that writes, as while it hands over to a replica."""
    server.command("CLIENT", "PAUSE", int(STALL * 1000), "WRITE")
    yield


STALLS: dict[str, Callable[[RedisServer], AbstractContextManager[None]]] = {
    "SIGSTOP": stopped,
    "DEBUG SLEEP": asleep,
    "CLIENT PAUSE": paused,
}


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("stall", STALLS)
def test_a_stall_is_ridden_out(server: RedisServer, stall: str, form: str) -> None:
    """While a server stands still, leases are kept and requests repeated; each is carried out once, and answered."""

    async def scene(kit: Kit) -> None:
        client, other = (client_at(kit, server.url, operation_timeout=BRIEF) for _ in range(2))
        held = await client.lock("held", ttl=5).acquire()
        waiting = kit.start(lambda: other.lock("held", ttl=5).acquire())
        await kit.waiters(client, "held", 1)
        with STALLS[stall](server):
            free = kit.start(lambda: client.lock("free", ttl=5).acquire())
            lease = await free.result()
        view = await kit.client(within="").inspect("free")
        assert [each.token for each in view.holders] == [lease.token] == [view.last_token]
        held.check()
        assert await lease.release() is Outcome.RELEASED
        assert await held.release() is Outcome.RELEASED
        (await waiting.result()).check()

    play(form, server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_request_that_is_carried_out_after_all_leaves_no_orphan(server: RedisServer, form: str) -> None:
    """A request that arrives after its caller has given up is refused, or its grant is passed on or short."""
    names = [f"name-{number}" for number in range(8)]

    async def scene(kit: Kit) -> None:
        hasty = client_at(kit, server.url, operation_timeout=AMPLE, retry_for=0)
        given_up: list[StoreUnavailable] = []

        async def pass_through(name: str) -> None:
            async with hasty.lock(name, ttl=20):
                await kit.pause(0.02)  # so that each has a connection of its own, where it takes one

        async def give_up(name: str) -> None:
            with pytest.raises(StoreUnavailable) as caught:
                await hasty.lock(name, ttl=20).acquire()
            given_up.append(caught.value)

        async def all_at_once(act: Callable[[str], Coroutine[Any, Any, None]]) -> None:
            for running in [kit.start(partial(act, name)) for name in names]:
                await running.result()

        await all_at_once(pass_through)
        with stopped(server, 1.5 * AMPLE):  # so that who gave up still tries to leave
            await all_at_once(give_up)
        assert any(isinstance(error, OutcomeUnknown) for error in given_up)
        client, began = kit.client(), kit.now()
        for name in names:
            lease = await client.lock(name, ttl=20).acquire()
            lease.check()
        assert kit.now() - began < 20, "nobody waits until a lease ends by itself"

    play(form, server.url, scene)


def test_scripts_are_loaded_again(server: RedisServer) -> None:
    """A server that forgets its scripts again and again is told them again, and no request fails for it."""
    numbers = Numbers()
    with Crew(server.url, Job(["one", "two"]), numbers) as crew, server.connect() as wire:
        for _ in range(50):
            crew.await_holds(4)
            wire.command("SCRIPT", "FLUSH")
        record = crew.end()
    assert set(record.counts) <= {"written", "lost", Outcome.RELEASED.name}
    assert numbers.total() == record.counts["written"] == len(record.holds)
    assert not record.overlaps()


@pytest.mark.parametrize("form", API_FORMS)
def test_a_key_that_vanishes_stops_nobody(server: RedisServer, form: str) -> None:
    """If the state of a name or its queue is evicted or deleted, waiters are served in a while, and tokens grow."""

    async def scene(kit: Kit) -> None:
        client = kit.client()

        async def lose(name: str, key: str, waiters: int) -> None:
            lease = await client.lock(name, ttl=20).acquire()

            async def pass_through() -> int:
                async with kit.client().lock(name, ttl=20) as later:
                    return later.token

            waiting = [kit.start(pass_through) for _ in range(waiters)]
            await kit.waiters(client, name, waiters)
            server.command("DEL", key)
            assert len((await client.inspect(name)).waiters) <= waiters
            await lease.release()
            tokens = [await running.result() for running in waiting]
            assert len({lease.token, *tokens}) == 1 + waiters
            assert lease.token == min(lease.token, *tokens)
            await (await client.lock(name, ttl=20).acquire(timeout=5)).release()

        losing: list[Running[None]] = []
        for waiters, suffix in product((1, 3), ("", ":q")):
            name = f"name {waiters}{suffix}"
            key = state_key(f"{kit.space}:{name}") + suffix
            losing.append(kit.start(partial(lose, name, key, waiters)))
        for running in losing:
            await running.result()

    play(form, server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_marker_that_vanishes_quarantines_its_server(tmp_path: Path, form: str) -> None:
    """A server that has lost its marker may have lost more: who has seen it there is granted nothing for a while."""
    max_ttl = 0.5
    with tidy(RedisServer(tmp_path)) as server:

        async def scene(kit: Kit) -> None:
            client = kit.client()
            await (await client.lock("name", ttl=max_ttl).acquire()).release()
            server.command("DEL", NODE)
            began = kit.now()
            await (await client.lock("name", ttl=max_ttl).acquire()).release()
            assert kit.now() - began > 0.95 * max_ttl

        play(form, f"{server.url}?max_ttl={max_ttl}", scene)


# -- clocks ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Generator[Clock, None, None]:
    """Make a clock."""
    with Clock(tmp_path_factory.mktemp("clock")) as made:
        yield made


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Generator[RedisServer, None, None]:
    """Run a server that sees the clock."""
    with tidy(RedisServer(tmp_path_factory.mktemp("redis"), clock=clock)) as running:
        yield running


@pytest.mark.parametrize("form", API_FORMS)
def test_a_clock_that_jumps_forward_is_fenced(timed: RedisServer, clock: Clock, form: str) -> None:
    """It ends leases early, and that is all: tokens grow, the fence refuses who came first, who is soon told."""

    async def scene(kit: Kit) -> None:
        here, there = kit.client(), kit.client()
        lease = await here.lock("name", ttl=3).acquire()
        waiting = kit.start(lambda: there.lock("name", ttl=3).acquire())
        await kit.waiters(there, "name", 1)
        clock.step(60)
        second = await waiting.result()
        fence = Fence()
        fence.touch(second.token)
        with pytest.raises(StaleTokenError):
            fence.touch(lease.token)
        assert await lease.lost.wait(TEST_TIMEOUT), "its renewal is refused"
        assert await lease.release() is Outcome.TAKEN_OVER
        second.check()

    play(form, timed.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_clock_that_jumps_back_keeps_nobody_waiting(timed: RedisServer, clock: Clock, form: str) -> None:
    """A silent holder's lease ends by its ttl, however far the clock stepped back, and tokens grow all the same.

    The ttl is a long one, and passes by the clock of the server.
    """
    ttl = 20.0

    async def scene(kit: Kit) -> None:
        raw, client = await kit.raw(), kit.client()
        tokens = {
            name: await raw.acquire_free(raw.request(name, ttl=ttl)) for name in ("waited for", "asked for later")
        }
        waiting = [kit.start(lambda: client.lock("waited for", ttl=20).acquire())]
        await kit.waiters(client, "waited for", 1)
        clock.step(-3600)
        for name in tokens:
            await raw.acquire(raw.request(name, wait=False))  # from when on it takes a ttl
        waiting.append(kit.start(lambda: client.lock("asked for later", ttl=20).acquire()))
        await kit.waiters(client, "asked for later", 1)
        clock.step(ttl)
        for (name, token), running in zip(tokens.items(), waiting, strict=True):
            lease = await running.result(TEST_TIMEOUT)
            assert lease.token > token, name
            lease.check()

    play(form, timed.url, scene)


def test_a_clock_that_jumps_to_and_fro_under_load(timed: RedisServer, clock: Clock) -> None:
    """However a server's clock is set, no update of a fenced resource is lost, no token is given twice."""
    numbers = Numbers()
    with Crew(timed.url, Job(["one", "two"], ttl=1.0, hold=0.001), numbers) as crew:
        for step in (5, -3600, 60, -7, 3600, -60):
            crew.await_holds(50)
            clock.step(step)
        crew.await_holds(50)
        record = crew.end()
    assert numbers.total() == record.counts["written"]
    tokens = [(hold.name, hold.token) for hold in record.holds]
    assert len(set(tokens)) == len(tokens)
    clock.reset()
