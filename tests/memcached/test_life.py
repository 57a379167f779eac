"""Forks, closed clients, ttls in whole seconds, and tokens: at a real server."""

import asyncio
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tenure import Client, Outcome, OutcomeUnknown
from tenure.contracts.messages import AcquireRequest, Busy, Granted
from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.memcached.link import MemcachedLink
from tenure.stores.memcached.options import MemcachedDeployment
from tenure.stores.memcached.protocol import MemcachedRequest, pack_look
from tenure.transport.link import ServerAddress
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import play
from tests.hazards.helpers import Script
from tests.hazards.test_fork import PRELUDE
from tests.memcached.scenes import LONG, both_forms, extend
from tests.servers import MemcachedServer
from tests.wrong_servers import silent

FORKED = """
client = tenure.Client(url)
held = client.lock("held", ttl=60).acquire()
for _ in range(3): client.lock("warm", ttl=60).acquire().release()
def child():
    try:
        held.release()
    except tenure.ForkedLeaseError:
        say("refused")
    say(client.lock("held", ttl=60).try_acquire())
    with client.lock("warm", ttl=60): say("child locks")
for _ in range(2): assert wait(fork(child)) == 0
held.check()
with client.lock("warm", ttl=60): say("parent locks")
say(held.release().value)
client.close()
"""

FORKED_LOOP = """
async def main():
    client = tenure.AsyncClient(url)
    held = await client.lock("held", ttl=60).acquire()
    def child():
        try:
            asyncio._set_running_loop(None)
            other = tenure.Client(url)
            say(other.lock("held", ttl=60).try_acquire())
            other.close()
        finally:
            pass
    assert wait(fork(child)) == 0
    held.check()
    say((await held.release()).value)
    await client.close()
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (FORKED, [*["refused", "None", "child locks"] * 2, "parent locks", "released"]),
        (FORKED_LOOP, ["None", "released"]),
    ],
    ids=["threads", "asyncio"],
)
def test_a_forked_child_has_connections_of_its_own(
    memcached_server: MemcachedServer, body: str, says: list[str], space: str
) -> None:
    """The child uses no lease and no connection of its parent, and the parent goes on."""
    script = Script(PRELUDE + body, f"{memcached_server.url}/{space}")
    out, errors = script.end()
    assert (script.status, errors) == (0, "")
    assert out.splitlines() == says


def test_a_request_ends_with_its_link() -> None:
    """A task that waits for a reply learns at once that its client was closed."""

    async def scene() -> None:
        with silent() as server, closing(server):
            address, runtime = ServerAddress(*server.getsockname()), AsyncioRuntime()
            link = MemcachedLink(runtime, MemcachedDeployment([address]))
            asking = asyncio.create_task(
                link.exchange(address, MemcachedRequest(pack_look(b"key")), runtime.now() + 300.0)
            )
            taken, _ = await asyncio.to_thread(server.accept)
            with taken:
                await asyncio.to_thread(taken.recv, 1)
                await link.close()
                with pytest.raises(Exception, match="closed") as caught:
                    await asyncio.wait_for(asking, 10.0)
                assert not isinstance(caught.value, OutcomeUnknown)  # the server was never asked for the key

    asyncio.run(scene())


def test_threads_share_a_few_connections(memcached_server: MemcachedServer, space: str) -> None:
    """As many threads as there are requests at once have a connection each, and put it back."""
    with Client(f"{memcached_server.url}/{space}") as client:

        def work(number: int) -> None:
            for _ in range(20):
                with client.lock(f"name {number}", ttl=LONG):
                    pass

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert client.names() == []


@both_forms
def test_a_lease_lasts_its_ttl_by_the_servers_coarse_clock(memcached_server: MemcachedServer, form: str) -> None:
    """Whenever in a second it begins, nobody else is granted the name before its ttl is over, and soon after it."""

    async def scene(kit: Kit) -> None:
        raw = await kit.raw()
        waited: list[float] = []

        async def hold(number: int) -> None:
            await kit.pause(number * 0.23)
            first, second = raw.request(f"name {number}", ttl=2.0), raw.request(f"name {number}", ttl=2.0)
            asked_at = kit.now()
            await raw.acquire_free(first)
            while not isinstance(await raw.acquire(second), Granted):
                await kit.pause(0.02)
            waited.append(kit.now() - asked_at)

        running = [kit.start(lambda number=number: hold(number)) for number in range(5)]  # type: ignore[misc]
        for each in running:
            await each.result(LONG)
        assert len(waited) == 5
        assert min(waited) >= 2.0

    play(form, memcached_server.url, scene)


def test_a_lease_lasts_its_ttl_though_the_servers_clock_takes_two_steps_at_once(tmp_path: Path) -> None:
    """Memcached counts seconds by a timer that is always a little late, so now and then it passes over a second."""

    def counted(server: MemcachedServer) -> int:
        stats = server.command(b"stats\r\n", b"END\r\n").decode()
        return int(next(line.split()[2] for line in stats.splitlines() if line.startswith("STAT time ")))

    async def scene(kit: Kit) -> None:
        raw = await kit.raw()
        late_in_a_second(server, 0.95, 0.99, 1.0)  # from now on the timer runs late in each second of the clock
        for number in range(30):
            first, second = raw.request(f"name {number}", ttl=2.0), raw.request(f"name {number}", ttl=2.0)
            await kit.pause(0.92 - time.monotonic() % 1 + (time.monotonic() % 1 > 0.92))
            asked_at, before = kit.now(), counted(server)
            await raw.acquire_free(first)
            late_in_a_second(server, 0.005, 0.05)  # and now it runs in the second after the next
            stood_still = kit.now() - asked_at > 0.5  # for so long that nothing is promised
            await kit.pause(0.02)
            passed_over = counted(server) == before + 2
            while not isinstance(await raw.acquire(second), Granted):
                await kit.pause(0.02)
            assert kit.now() - asked_at >= 2.0 or stood_still
            if passed_over and not stood_still:
                return
            late_in_a_second(server, 0.95, 0.99, 1.0)
        raise AssertionError("the server never passed over a second: nothing was tried")

    def late_in_a_second(server: MemcachedServer, after: float, before: float, least: float = 0.0) -> None:
        """Stop the server until a second of the clock is so old: if its timer is late then, that is when it runs."""
        server.pause()
        least += time.monotonic()
        try:
            while not after <= time.monotonic() % 1 < before or time.monotonic() < least:
                time.sleep(0.001)
        finally:
            server.resume()

    with MemcachedServer(tmp_path) as server:
        play("threads", server.url, scene)


@both_forms
def test_a_token_is_larger_than_the_last_one_whatever_the_clock(memcached_server: MemcachedServer, form: str) -> None:
    """A client whose clock is behind gets the next token after that of another client, also after an expiry."""

    async def scene(kit: Kit) -> None:
        raw, late = await kit.raw(), await kit.raw()

        def behind() -> AcquireRequest:
            request = late.request("name")
            request.proposal = 1
            return request

        first = raw.request("name")
        token = await raw.acquire_free(first)
        await raw.release(first, token)
        second = behind()
        assert await late.acquire_free(second) == token + 1
        await late.release(second, token + 1)
        brief = raw.request("name", ttl=0.5)
        third = await raw.acquire_free(brief)
        last = behind()

        async def granted() -> bool:
            return isinstance(await late.acquire(last), Granted)

        await kit.until(granted, "the expiry")
        assert (await raw.inspect("name")).last_token == third + 1

    play(form, memcached_server.url, scene)


@both_forms
def test_a_restart_needs_the_clocks_for_growing_tokens(memcached_server: MemcachedServer, form: str) -> None:
    """After it, the proposal of the client alone makes the token grow: as the page says, and no more."""

    async def scene(kit: Kit) -> None:
        raw = await kit.raw()
        first = raw.request("name")
        token = await raw.acquire_free(first)
        memcached_server.flush()
        behind = raw.request("name")
        behind.proposal = 1
        assert await raw.acquire_free(behind) == 1
        memcached_server.flush()
        assert await raw.acquire_free(raw.request("name")) > token

    play(form, memcached_server.url, scene)


@both_forms
def test_a_waiter_looks_often_when_the_lease_is_about_to_end(memcached_server: MemcachedServer, form: str) -> None:
    """The retry time grows with the wait, within bounds, and shrinks in the last second of a lease."""

    async def scene(kit: Kit) -> None:
        raw, there = await kit.raw(), await kit.raw()
        holder = raw.request("name", ttl=3.0)
        await raw.acquire_free(holder)
        waiter = there.request("name")
        times: list[int] = []
        while isinstance(reply := await there.acquire(waiter), Busy):
            times.append(reply.retry_in)
            await kit.pause(0.05)
        assert times[0] == 5_000
        assert max(times) == 200_000
        assert times[-1] == 50_000

    play(form, memcached_server.url, scene)


@both_forms
def test_a_lock_is_taken_and_given_back_over_and_over(memcached_server: MemcachedServer, form: str) -> None:
    """Two clients in turns: each finds that what it remembers of the item is old, and looks."""

    async def scene(kit: Kit) -> None:
        clients = [kit.client(), kit.client()]
        last = 0
        for number in range(20):
            lease = await clients[number % 2].lock("name", ttl=LONG).acquire(timeout=0)
            assert lease.token > last
            last = lease.token
            await extend(lease)
            assert await lease.release() is Outcome.RELEASED

    play(form, memcached_server.url, scene)
