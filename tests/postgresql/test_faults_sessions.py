"""Sessions that an administrator ends, rows that somebody keeps locked, limits and settings of the server."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tenure import Client, LockTimeout, Outcome, StoreUnavailable
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, client_at, play
from tests.hazards.helpers import eventually
from tests.servers import Clock, PostgresServer
from tests.servers.homes import mounts_disks

if TYPE_CHECKING:
    import psycopg

TTL = 20.0


def listeners(server: PostgresServer, application: str) -> list[int]:
    """Return the sessions of a client that hold an advisory lock: those that listen."""
    rows = server.execute(
        "SELECT a.pid FROM pg_stat_activity a JOIN pg_locks l USING (pid) "
        "WHERE l.locktype = 'advisory' AND a.application_name = %s",
        application,
    )
    return [pid for (pid,) in rows]


@pytest.mark.parametrize("form", API_FORMS)
def test_a_waiter_is_served_though_its_listening_session_was_ended(postgres_server: PostgresServer, form: str) -> None:
    """The channel comes back by itself, and a waiter gets its grant whether the release comes before that or after."""
    mine = f"listens-{form}"

    async def scene(kit: Kit) -> None:
        waiter = client_at(kit, f"{postgres_server.url}?application_name={mine}")
        holder = client_at(kit, postgres_server.url)
        for wait_for_channel in (True, False):
            lease = await holder.lock("name", ttl=TTL).acquire()
            waiting = kit.start(lambda: waiter.lock("name", ttl=TTL).acquire())
            await kit.waiters(holder, "name", 1)

            async def listens() -> bool:
                return len(listeners(postgres_server, mine)) == 1

            await kit.until(listens, "one session that listens")
            (before,) = listeners(postgres_server, mine)
            postgres_server.terminate(before)
            if wait_for_channel:

                async def is_back() -> bool:
                    return listeners(postgres_server, mine) not in ([], [before])  # noqa: B023 - awaited at once

                await kit.until(is_back, "the channel")
            assert await lease.release() is Outcome.RELEASED
            assert await (await waiting.result()).release() is Outcome.RELEASED

        await kit.until(listens, "one session that listens")

    play(form, postgres_server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_session_that_is_ended_in_a_request_costs_no_lease(postgres_server: PostgresServer, form: str) -> None:
    """The request that waits for a row when its session is ended is repeated, and is granted once."""
    mine = f"ended-{form}"

    async def scene(kit: Kit) -> None:
        client = client_at(kit, f"{postgres_server.url}?application_name={mine}", operation_timeout=5.0)
        await (await client.lock("name", ttl=TTL).acquire()).release()
        with postgres_server.connect() as admin, admin.transaction():
            admin.execute("SELECT FROM tenure_names WHERE name = %s FOR UPDATE", (f"{kit.space}:name",))
            waiting = kit.start(lambda: client.lock("name", ttl=TTL).acquire())

            async def ended() -> bool:
                rows = postgres_server.execute(
                    "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = %s", mine
                )
                for (pid,) in rows:
                    postgres_server.terminate(pid)
                return bool(rows)

            await kit.until(ended, "a request that waits for the row")
        lease = await waiting.result()
        assert len((await client.inspect("name")).holders) == 1
        assert await lease.release() is Outcome.RELEASED

    play(form, postgres_server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_row_that_is_locked_for_longer_than_the_ttl(postgres_server: PostgresServer, form: str) -> None:
    """The acquisition of its name ends in time with a clear error; other names are unharmed; nothing is left after it.

    Nor is the lease shorter than its ttl that the name's next holder gets, for which the row was waited.
    """
    ttl = 1.0

    async def scene(kit: Kit) -> None:
        hasty = client_at(kit, postgres_server.url, operation_timeout=0.3, retry_for=0.5)
        patient = client_at(kit, postgres_server.url, operation_timeout=10.0)
        await (await hasty.lock("name", ttl=ttl).acquire()).release()
        with postgres_server.connect() as admin, admin.transaction():
            admin.execute("SELECT FROM tenure_names WHERE name = %s FOR UPDATE", (f"{kit.space}:name",))
            with pytest.raises((StoreUnavailable, LockTimeout)):
                await hasty.lock("name", ttl=ttl).acquire()
            assert await (await hasty.lock("other", ttl=ttl).acquire()).release() is Outcome.RELEASED
            waiting = kit.start(lambda: patient.lock("name", ttl=ttl).acquire())
            await kit.pause(2 * ttl)
            assert not waiting.done()
        lease = await waiting.result()
        lease.check()
        (holder,) = (await hasty.inspect("name")).holders
        assert holder.token == lease.token
        await kit.pause(1.5 * ttl)  # it is renewed
        lease.check()
        assert await lease.release() is Outcome.RELEASED
        await kit.free(hasty, "name")

    play(form, postgres_server.url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_server_that_is_read_only_by_default_is_used(postgres_server: PostgresServer, form: str) -> None:
    """Sessions that begin while transactions are read-only by default write all the same."""

    async def scene(kit: Kit) -> None:
        client = client_at(kit, postgres_server.url, retry_for=0.3)
        lease = await client.lock("held", ttl=TTL).acquire()
        with postgres_server.read_only():
            fresh = client_at(kit, postgres_server.url, retry_for=0.3)
            assert await (await fresh.lock("name", ttl=TTL).acquire()).release() is Outcome.RELEASED
        assert await lease.release() is Outcome.RELEASED

    play(form, postgres_server.url, scene)


HARSH = (
    "statement_timeout = '1ms'",
    "lock_timeout = '1ms'",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_isolation = 'repeatable read'",
    "synchronous_commit = 'off'",
    "idle_session_timeout = '100ms'",
    "idle_in_transaction_session_timeout = '1ms'",
    "search_path = public, pg_catalog",
    "timezone = 'Asia/Kathmandu'",
    "standard_conforming_strings = 'off'",
    "bytea_output = 'escape'",
    "jit_above_cost = '0'",
)


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("setting", HARSH)
def test_the_settings_of_a_database_do_no_harm(postgres_server: PostgresServer, setting: str, form: str) -> None:
    """Clients contend for a lock in a database with unusual defaults, and each gets it."""
    database = f"harsh_{form}_{HARSH.index(setting)}"
    url = postgres_server.create_database(database)
    postgres_server.execute(f'ALTER DATABASE "{database}" SET {setting}')

    async def scene(kit: Kit) -> None:
        clients = [client_at(kit, url) for _ in range(3)]

        async def work(number: int) -> int:
            for _ in range(10):
                async with clients[number].lock("name", ttl=TTL):
                    await kit.pause(0.001)
            return 1

        running = [kit.start(lambda number=number: work(number)) for number in range(3)]  # type: ignore[misc]
        assert sum([await each.result(30) for each in running]) == 3

    play(form, url, scene)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_server_without_a_free_connection_is_named(tmp_path: Path, form: str) -> None:
    """The error says what to raise; and an acquisition goes on when others have left."""
    with PostgresServer(tmp_path, options=["max_connections=8", "superuser_reserved_connections=0"]) as server:

        async def scene(kit: Kit) -> None:
            hasty = client_at(kit, server.url, retry_for=0.2)
            patient = client_at(kit, server.url)
            others: list[psycopg.Connection[Any]] = []
            try:
                while len(others) < 8:
                    others.append(server.connect())
                with pytest.raises(StoreUnavailable, match="max_connections"):
                    await hasty.lock("name", ttl=TTL).acquire()
                waiting = kit.start(lambda: patient.lock("name", ttl=TTL).acquire())
                assert not waiting.done()
            finally:
                for each in others:
                    each.close()
            assert await (await waiting.result()).release() is Outcome.RELEASED

        play(form, server.url, scene)


def test_a_full_disk_is_named_and_passes(tmp_path: Path) -> None:
    """A server without space grants nothing new and says why; afterwards it grants again, and every lease is kept."""
    if not mounts_disks():
        pytest.skip("a disk of its own for the server can be mounted by root alone")
    with (
        PostgresServer(tmp_path, disk="96m") as server,
        Client(server.url, retry_for=0.5) as client,
        client.lock("held", ttl=TTL) as held,
    ):
        server.fill_disk()
        try:
            with pytest.raises(StoreUnavailable, match=r"disk|space|did not answer|cannot connect"):
                _grow(client)
        finally:
            server.free_disk()
        server.mend()
        eventually(lambda: _serves(client), "a server with space")
        held.check()


def _grow(client: Client) -> None:
    for number in range(3000):
        client.lock(f"{'long' * 100}{number}", ttl=TTL).acquire().release()


def _serves(client: Client) -> bool:
    try:
        client.lock("again", ttl=TTL).acquire().release()
    except StoreUnavailable:
        return False
    return True


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_the_clock_of_the_database_steps(tmp_path: Path, seconds: float) -> None:
    """Tokens go on increasing, a name is free again, and no lease lasts for hours, whichever way the clock stepped."""
    with (
        Clock(tmp_path / "clock") as clock,
        PostgresServer(tmp_path, clock=clock) as server,
        Client(server.url) as ours,
        Client(server.url) as theirs,
    ):
        first = ours.lock("name", ttl=2.0).acquire()
        clock.step(seconds)
        ((now,),) = server.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        assert abs(now - clock.now()) < 60
        first.release()
        with theirs.lock("name", ttl=2.0, timeout=20) as second:
            assert second.token > first.token
        with ours.lock("name", ttl=2.0, timeout=20) as third:
            assert third.token > second.token


def test_a_deadlock_of_transactions_is_retried(postgres_server: PostgresServer) -> None:
    """Multilocks over the same names in any order, and their renewals, never report a deadlock of the database."""
    errors: list[BaseException] = []

    def work(number: int) -> None:
        names = [f"knot {each}" for each in range(6)]
        try:
            with Client(postgres_server.url, operation_timeout=5.0) as client:
                for turn in range(15):
                    order = names[turn % 6 :] + names[: turn % 6]
                    with client.multilock(order[::-1] if number % 2 else order, ttl=TTL) as lease:
                        lease.extend(TTL)
        except BaseException as error:  # noqa: BLE001 - the test reports it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
