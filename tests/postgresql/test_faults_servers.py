"""Servers that restart, crash, or forget: leases are kept, or nothing is granted until the forgotten have run out."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tenure import Client, LeaseLost, LockTimeout, Outcome, StoreUnavailable
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, client_at, play
from tests.hazards.helpers import Script, eventually
from tests.postgresql.servers import url_at
from tests.servers import PostgresServer, Standby

TTL = 30.0
MAX_TTL = 30.0

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def server(tmp_path: Path) -> Generator[PostgresServer]:
    """Run a server of this test alone, whose commits do not wait for its log."""
    with PostgresServer(tmp_path / "server", options=["synchronous_commit=off", "wal_writer_delay=10s"]) as running:
        yield running


def crash(server: PostgresServer) -> None:
    """Kill a server, and start it again."""
    server.kill()
    server.start()


def end_quarantine(url: str) -> None:
    """Run the command that ends a quarantine."""
    subprocess.run([sys.executable, "-m", "tenure", "quarantine", "end", "--yes", url], check=True, timeout=60)


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("end", [PostgresServer.restart, crash])
def test_a_restart_forgets_nothing(server: PostgresServer, end: object, form: str) -> None:
    """A holder keeps its lease, a waiter its place, whatever `synchronous_commit` the server has."""
    assert callable(end)

    async def scene(kit: Kit) -> None:
        holder, waiter, other = (client_at(kit, server.url, retry_for=30.0) for _ in range(3))
        await (await other.lock("warm", ttl=TTL).acquire()).release()
        lease = await holder.lock("name", ttl=TTL).acquire()
        waiting = kit.start(lambda: waiter.lock("name", ttl=TTL).acquire())
        await kit.waiters(holder, "name", 1)
        plain = await holder.lock("plain", ttl=TTL).acquire()
        end(server)
        lease.check()
        with contextlib.suppress(StoreUnavailable):
            assert await other.lock("plain", ttl=TTL).try_acquire() is None
        assert await other.lock("plain", ttl=TTL).try_acquire() is None
        assert await plain.extend(TTL) > TTL / 2
        assert not waiting.done()
        assert await lease.release() is Outcome.RELEASED
        after = await waiting.result(30)
        assert after.token > lease.token
        assert await after.release() is Outcome.RELEASED
        assert await (await other.lock("free", ttl=TTL).acquire()).release() is Outcome.RELEASED

    play(form, server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("guard", ["strict", "observed"])
def test_only_the_strict_guard_doubts_a_restart(server: PostgresServer, guard: str, form: str) -> None:
    """With guard=strict a restarted server grants nothing for a while; its holders renew, and people can end that."""
    url = f"{server.url}?guard={guard}&max_ttl={MAX_TTL}"

    async def scene(kit: Kit) -> None:
        client = client_at(kit, url)
        lease = await client.lock("name", ttl=TTL).acquire()
        crash(server)
        fresh = client_at(kit, url)
        if guard == "observed":
            await (await fresh.lock("free", ttl=TTL).acquire()).release()
        else:
            await fresh.names()  # so that its time is not spent on connections
            with pytest.raises(LockTimeout, match=r"quarantine|restarted|forgotten"):
                await fresh.lock("free", ttl=TTL).acquire(timeout=0.3)
            assert await lease.extend(TTL) > TTL / 2
            end_quarantine(url)
            await (await fresh.lock("free", ttl=TTL).acquire(timeout=10)).release()
        lease.check()
        assert await lease.release() is Outcome.RELEASED

    play(form, url, scene)


def test_max_ttl_is_lowered_as_the_page_says(postgres_server: PostgresServer) -> None:
    """The table keeps the largest max_ttl that any client had, until an administrator runs the statement."""
    (lower,) = re.findall(r"UPDATE tenure_meta SET longest_ttl = \d+", (DOCS / "postgresql.md").read_text("utf-8"))
    url = url_at(postgres_server.address, "?prefix=lowered_")
    with Client(url) as before:
        before.lock("name").acquire().release()
    for statement, lasts in (("SELECT 1", 30.0), (lower.replace("tenure_", "lowered_"), 5.0)):
        postgres_server.execute(statement)
        postgres_server.execute("UPDATE lowered_meta SET timeline = 'another server'")
        with Client(f"{url}&max_ttl=5") as client:
            assert lasts - 4 < client.inspect("name").quarantined_for <= lasts


@contextlib.contextmanager
def lagging(tmp_path: Path) -> Generator[tuple[PostgresServer, Standby]]:
    """Run a primary and a standby."""
    with PostgresServer(tmp_path / "primary") as primary, Standby(tmp_path / "standby", primary) as standby:
        standby.await_caught_up()
        yield primary, standby


def both(primary: PostgresServer, standby: PostgresServer, query: str) -> str:
    """Return a URL that names two hosts."""
    (one, first), (other, second) = primary.address, standby.address
    return f"postgresql://tenure@{one}:{first},{other}:{second}/postgres{query}"


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("guard", ["observed", "strict", "off"])
def test_a_promoted_standby_that_forgot(tmp_path: Path, guard: str, form: str) -> None:
    """The new primary is found, grants nothing that may be held, and lets holders restore their leases.

    With guard=off it grants what is held: that is what the guard is for. Tokens go on increasing in each case.
    """

    async def scene(kit: Kit) -> None:
        url = both(primary, standby, f"?guard={guard}&max_ttl={MAX_TTL}")
        holder, other = client_at(kit, url, retry_for=30.0), client_at(kit, url, retry_for=30.0)
        warm = await other.lock("name", ttl=TTL).acquire()
        await warm.release()
        standby.await_caught_up()
        with standby.lags():
            lease = await holder.lock("name", ttl=TTL).acquire()
            primary.kill()
            standby.promote()
            if guard == "off":
                wrong = await other.lock("name", ttl=TTL).acquire()
                assert wrong.token > lease.token
                with contextlib.suppress(LeaseLost):
                    await lease.release()
                await wrong.release()
                return
            with pytest.raises(LockTimeout):
                await other.lock("name", ttl=TTL).acquire(timeout=1.0)
            with pytest.raises(LockTimeout):
                await other.lock("free", ttl=TTL).acquire(timeout=0.3)
            assert await lease.extend(TTL) > TTL / 2
            (seen,) = (await other.inspect("name")).holders
            assert seen.token == lease.token
            end_quarantine(url)
            assert await other.lock("name", ttl=TTL).try_acquire() is None
            assert await lease.release() is Outcome.RELEASED
            after = await other.lock("name", ttl=TTL).acquire()
            assert after.token > lease.token
            await after.release()

    with lagging(tmp_path) as (primary, standby):
        play(form, primary.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_standby_is_named(tmp_path: Path, form: str) -> None:
    """A client of a standby is told so, and what to name instead; with both hosts it finds the primary."""

    async def scene(kit: Kit) -> None:
        lost = client_at(kit, standby.url, retry_for=0.2)
        with pytest.raises(StoreUnavailable, match=r"standby.*name the primary"):
            await lost.lock("name", ttl=TTL).acquire()
        found = client_at(kit, both(standby, primary, ""))
        assert await (await found.lock("name", ttl=TTL).acquire()).release() is Outcome.RELEASED

    with lagging(tmp_path) as (primary, standby):
        play(form, primary.url, scene)


def test_a_dead_waiter_is_skipped_at_once(postgres_server: PostgresServer) -> None:
    """A killed process at the head of the queue does not keep its successors waiting."""
    code = """
import sys, tenure
client = tenure.Client(sys.argv[1], owner="dead")
print("ready", flush=True)
client.lock("name", ttl=30).acquire()
"""
    url = url_at(postgres_server.address, "?prefix=dead_")
    with Client(url) as holder, Client(url, owner="live") as waiter:
        lease = holder.lock("name", ttl=30).acquire()
        script = Script(code, url)
        assert script.hear() == "ready"
        eventually(lambda: len(holder.inspect("name").waiters) == 1, "the waiter that dies")
        os.kill(script.pid, 9)
        eventually(lambda: not holder.inspect("name").waiters[0].alive, "its end")
        lease.release()
        with waiter.lock("name", ttl=30) as after:
            assert after.token > lease.token
        script.kill()
