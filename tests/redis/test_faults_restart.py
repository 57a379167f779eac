"""A server that crashes and comes back with all, some or none of what it knew, or is followed by its replica."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenure import AsyncLease, Client, Lease, Outcome, UsageError
from tenure.runtimes.clocks import steady
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import play
from tests.redis.servers import assert_mortal
from tests.servers import Clock, Proxy, RedisServer, wait_until

MAX_TTL = 2.5
"""The longest ttl in use, in seconds: how long a server is quarantined that may have forgotten grants."""

TTL = 2.4
"""That of all leases: a busy machine can keep them."""

TEST_TIMEOUT = 15.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure."""

PERSISTENCE = {
    "none": (),
    "snapshot": (),
    "log": ("--appendonly", "yes", "--appendfsync", "always"),
    "torn log": ("--appendonly", "yes", "--appendfsync", "always"),
}


def crash(server: RedisServer, persistence: str) -> None:
    """Kill a server, and start it again."""
    server.kill()
    if persistence == "torn log":
        (log,) = server.folder.glob("appendonlydir/*.incr.aof")
        with log.open("r+b") as file:
            file.truncate(log.stat().st_size - 7)
    server.start()


CRASHES = [("none", "threads"), ("snapshot", "asyncio"), ("log", "threads"), ("torn log", "asyncio")]


def test_what_is_taken_up_again_says_of_its_owner_what_it_said(tmp_path: Path) -> None:
    """Leases that are renewed together, and known no more, come back each with its own text."""
    values = {f"seat {number}": f"10.0.0.{number}" for number in range(4)}
    with RedisServer(tmp_path) as server, Client(server.url, owner="node") as client, Client(server.url) as watcher:
        terms = [client.election(name, ttl=20.0).campaign(value) for name, value in values.items()]
        plain = client.lock("plain", ttl=20.0).acquire()
        crash(server, "none")

        def seen(name: str) -> list[tuple[str, str]]:
            return [(holder.owner, holder.value) for holder in watcher.inspect(name).holders]

        wait_until(lambda: all(seen(name) for name in [*values, "plain"]), "all known again")
        assert {name: seen(name) for name in values} == {name: [("node", value)] for name, value in values.items()}
        assert seen("plain") == [("node", "")]
        for lease in [*terms, plain]:
            lease.release()


@pytest.mark.parametrize(("persistence", "form"), CRASHES)
def test_a_crash_costs_no_lease_and_gives_none_twice(tmp_path: Path, persistence: str, form: str) -> None:
    """A holder outlives the crash of the server, whatever that forgot; others get nothing before all old leases end."""
    with RedisServer(tmp_path, options=PERSISTENCE[persistence]) as server:

        async def scene(kit: Kit) -> None:
            holder, waiter = kit.client(owner="holder"), kit.client()
            lease = await holder.lock("held", ttl=TTL).acquire()
            free = await holder.lock("free", ttl=TTL).acquire()
            await free.release()
            waiting = kit.start(lambda: waiter.lock("held", ttl=TTL).acquire())
            await kit.waiters(waiter, "held", 1)
            if persistence == "snapshot":
                server.command("SAVE")
                before = lease.remaining()
                while lease.remaining() <= before:  # until it was renewed, which the snapshot does not know
                    before = min(before, lease.remaining())
                    await kit.pause(0.01)
            crashed = kit.now()  # or a little later
            crash(server, persistence)
            stranger = kit.client()

            async def retaken() -> bool:
                return bool((await stranger.inspect("held")).holders)

            await kit.until(retaken, "the lease known again")

            async def acquire() -> tuple[AsyncLease, float]:
                return await stranger.lock("free", ttl=TTL).acquire(), kit.now()

            other = kit.start(acquire)
            follower, followed = await other.result()
            assert followed - crashed > 0.95 * MAX_TTL
            lease.check()
            assert not waiting.done()
            assert follower.token > free.token

            (view,) = (await stranger.inspect("held")).holders
            assert (view.owner, view.token) == ("holder", lease.token)
            assert await lease.release() is Outcome.RELEASED
            assert (await waiting.result()).token > lease.token

        play(form, f"{server.url}?max_ttl={MAX_TTL}", scene)
        assert_mortal(server)


@contextmanager
def cut_off(server: RedisServer, options: str) -> Generator[Lease, None, None]:
    """Have a holder that cannot be reached, and that believes in its lease until it ends."""
    with Proxy(server.address) as proxy:
        host, port = proxy.address
        with Client(f"redis://{host}:{port}?{options}") as client:
            lease = client.lock("name", ttl=TTL).acquire()
            proxy.blackhole()
            yield lease


MATRIX = {
    # guard, whether anybody knows of the crash, what is kept -> whether a second one is let in
    ("off", True, "none"): True,
    ("off", True, "torn log"): True,
    ("off", True, "log"): False,
    ("observed", False, "none"): True,
    ("observed", True, "none"): False,
    ("observed", False, "torn log"): False,
    ("observed", True, "torn log"): False,
    ("strict", False, "none"): False,
    ("strict", False, "log"): False,
}


@pytest.mark.parametrize(("guard", "known", "persistence"), MATRIX)
def test_what_each_guard_keeps(tmp_path: Path, guard: str, known: bool, persistence: str) -> None:
    """As docs/redis.md says: who is let in after a crash while a holder that is cut off still believes."""
    options = f"max_ttl={MAX_TTL}&guard={guard}"
    with RedisServer(tmp_path, options=PERSISTENCE[persistence]) as server:
        url = f"{server.url}?{options}"
        with Client(url) as witness, Client(url) as newcomer:
            witness.lock("other", ttl=TTL).acquire().release()
            with cut_off(server, options) as lease:
                crash(server, persistence)
                second = (witness if known else newcomer).lock("name", ttl=TTL).acquire(timeout=TEST_TIMEOUT)
                assert (lease.remaining() > 0) is MATRIX[guard, known, persistence]
                assert second.token > lease.token
                second.release()


@pytest.mark.parametrize("look", ["inspect", "names"])
def test_whoever_looked_at_a_name_recognises_a_server_that_lost_everything(tmp_path: Path, look: str) -> None:
    """A client that acquired nothing remembers the generation that it saw; who looked at a new server need not wait."""
    with RedisServer(tmp_path) as server:
        url = f"{server.url}?max_ttl={MAX_TTL}"

        def looks(client: Client) -> list[str]:
            return client.names() if look == "names" else [each.owner for each in client.inspect("name").holders]

        with Client(url) as witness, Client(url) as early:
            assert looks(early) == []
            early.lock("other", ttl=TTL).acquire(timeout=0).release()
            with cut_off(server, f"max_ttl={MAX_TTL}") as lease:
                assert looks(witness)
                crash(server, "none")
                second = witness.lock("name", ttl=TTL).acquire(timeout=TEST_TIMEOUT)
                assert lease.remaining() == 0.0
                second.release()


def test_a_strict_guard_waits_at_a_new_server(tmp_path: Path) -> None:
    """Who can't tell a new server from one that forgot everything, and takes no risk, waits; the default does not."""
    with RedisServer(tmp_path) as server:
        began = steady()
        with Client(f"{server.url}?max_ttl={MAX_TTL}&guard=observed") as client:
            client.lock("name", ttl=TTL).acquire().release()
        at_once = steady() - began
        server.command("FLUSHALL")
        with Client(f"{server.url}?max_ttl={MAX_TTL}&guard=strict") as client:
            client.lock("name", ttl=TTL).acquire().release()
        assert steady() - began > at_once + MAX_TTL


@pytest.mark.parametrize("form", ["threads", "asyncio"])
def test_no_lease_is_extended_beyond_max_ttl(tmp_path: Path, form: str) -> None:
    """After a restart that forgot it, a strict guard would not wait for its end."""
    with RedisServer(tmp_path) as server:

        async def scene(kit: Kit) -> None:
            client = kit.client()
            for lock in (
                client.lock("name", ttl=TTL),
                client.lock("again", ttl=TTL, reentrant=True),
                client.multilock(["one", "two"], ttl=TTL),
            ):
                lease = await lock.acquire()
                with pytest.raises(UsageError, match="longer than this store's max_ttl"):
                    await lease.extend(MAX_TTL + 0.1)
                assert lease.remaining() <= MAX_TTL
                assert await lease.extend(MAX_TTL) > 0.0
                await lease.release()

        play(form, f"{server.url}?max_ttl={MAX_TTL}&guard=strict", scene)


@pytest.mark.parametrize(("skew", "form"), [(0.0, "threads"), (20.0, "asyncio"), (-20.0, "threads")])
def test_a_promoted_replica_gives_nothing_before_old_leases_end(tmp_path: Path, skew: float, form: str) -> None:
    """However wrong a promoted replica's clock is, nobody is let in beside a holder, and tokens grow."""
    clock = Clock(tmp_path / "clock")
    clock.set(wall=skew)
    with RedisServer(tmp_path / "master") as master:
        follow = ("--replicaof", *map(str, master.address))
        with RedisServer(tmp_path / "replica", options=follow, clock=clock) as replica, Proxy(master.address) as front:
            wait_until(lambda: replica.follows(master), "a replica that follows")
            host, port = front.address

            async def scene(kit: Kit) -> None:
                holder, waiter = kit.client(), kit.client()
                lease = await holder.lock("name", ttl=TTL).acquire()
                raw = await kit.raw()
                silent = await raw.acquire_free(raw.request("silent", ttl=TTL))
                after_lease = kit.start(lambda: waiter.lock("name", ttl=TTL).acquire())
                after_silent = kit.start(lambda: waiter.lock("silent", ttl=TTL).acquire())
                await kit.waiters(waiter, "name", 1)
                assert master.command("WAIT", 1, 5000) == 1
                killed = kit.now()
                master.kill()
                replica.command("REPLICAOF", "NO", "ONE")
                front.target = replica.address
                front.cut()
                follower = await after_silent.result()
                assert kit.now() > killed + TTL, "a lease that nobody renews ends in its time"
                assert follower.token > silent
                lease.check()
                assert not after_lease.done()
                await lease.release()
                assert (await after_lease.result()).token > lease.token

            play(form, f"redis://{host}:{port}?max_ttl={MAX_TTL}", scene)
            assert_mortal(replica)
    clock.close()
