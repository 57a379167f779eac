"""Locks without a table in PostgreSQL: what ends a session, what shares it, and what else uses its keys."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenure import AsyncClient, Client, LockTimeout, Outcome, StoreError, StoreUnavailable, UsageError
from tenure.stores.postgresql.advisory import PgAdvisoryLocks
from tenure.stores.sql.sessions import LockKey, SessionView
from tests.faults import session_locks
from tests.hazards.helpers import eventually, soon
from tests.servers import PgBouncer, PostgresServer, Proxy

LOCKS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory'"


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    """Return the URL of the mode without a table, on a server without a lock."""
    eventually(lambda: not postgres_server.execute(LOCKS), "a server without locks")
    return f"{postgres_server.url}?mode=advisory"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """Return a client."""
    with Client(url, owner="here") as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[Client]:
    """Return another client."""
    with Client(url, owner="there") as client:
        yield client


def holders(server: PostgresServer, name: str) -> list[int]:
    """Return the sessions that hold the lock of a name."""
    number = LockKey.of(name).number
    rows = server.execute(
        f"{LOCKS} AND granted AND objsubid = 1 AND classid = %s AND objid = %s", number >> 32, number & 0xFFFFFFFF
    )
    return [pid for (pid,) in rows]


# -- sessions that end -------------------------------------------------------------------------------------------


def test_a_terminated_session_is_a_lost_lease(postgres_server: PostgresServer, client: Client, other: Client) -> None:
    """The holder learns long before its renewal that its session was terminated, and the name is free."""
    lease = client.lock("name", ttl=600).acquire()
    (pid,) = holders(postgres_server, "name")
    postgres_server.terminate(pid)
    assert lease.lost.wait(10.0)
    with pytest.raises(Exception, match="its session in the database has ended"):
        lease.check()
    theirs = other.lock("name").try_acquire()
    assert theirs is not None
    assert lease.release() is Outcome.TAKEN_OVER
    assert theirs.release() is Outcome.RELEASED


def test_a_release_of_a_lost_lease_asks_until_it_is_answered(
    postgres_server: PostgresServer, client: Client, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not answer at once is no reason to believe that nobody has followed."""
    lease = client.lock("name").acquire()
    (pid,) = holders(postgres_server, "name")
    postgres_server.terminate(pid)
    assert lease.lost.wait(5)
    look, failed = PgAdvisoryLocks.look, list[str]()

    async def fail_at_first(self: PgAdvisoryLocks, key: LockKey, until: float) -> SessionView:
        if len(failed) < 2:
            failed.append(key.name)
            raise StoreUnavailable("the server did not answer")
        return await look(self, key, until)

    with other.lock("name", timeout=5):
        monkeypatch.setattr(PgAdvisoryLocks, "look", fail_at_first)
        assert lease.release() is Outcome.TAKEN_OVER
    assert len(failed) == 2


def test_a_restart_ends_all_leases(postgres_server: PostgresServer, client: Client) -> None:
    """A server that restarts has forgotten its locks: their holders learn that, and the client goes on."""
    leases = [client.lock(f"name-{number}", ttl=600).acquire() for number in range(3)]
    postgres_server.restart()
    assert all(lease.lost.wait(10.0) for lease in leases)
    assert client.lock("name-0").acquire(timeout=10.0).release() is Outcome.RELEASED


def test_a_paused_holder_loses_its_lock(url: str, other: Client) -> None:
    """The server ends the session of a process that stands still for longer than the ttl."""
    session_locks.pause_a_holder(url, other, "name")


def test_a_renewed_lease_outlives_its_ttl(client: Client, other: Client) -> None:
    """A live holder keeps its session alive by renewals."""
    lease = client.lock("name", ttl=0.6).acquire()
    with pytest.raises(LockTimeout, match="held by here"):
        other.lock("name").acquire(timeout=2.0)
    assert lease.release() is Outcome.RELEASED


def test_a_lease_is_no_longer_than_the_server_counts(client: Client) -> None:
    """A ttl that is longer than the server's longest timeout is cut to it, and so is an extension."""
    longest, year = 2_147_484.0, 366 * 86400.0
    with client.lock("name", ttl=year).acquire() as lease:
        assert longest / 2 < lease.remaining() <= longest
        assert longest / 2 < lease.extend(year) <= longest
        assert longest / 2 < lease.remaining() <= longest


def test_a_stalled_server_loses_no_lease(postgres_server: PostgresServer, client: Client) -> None:
    """A renewal that is not answered in time is answered later: the session and its lock go on."""
    lease = client.lock("name", ttl=6).acquire()
    before = holders(postgres_server, "name")
    postgres_server.pause()
    try:
        assert not lease.lost.wait(3.5)
    finally:
        postgres_server.resume()
    lease.check()
    assert not lease.lost.wait(4.0)
    assert holders(postgres_server, "name") == before
    assert lease.release() is Outcome.RELEASED


# -- connections -------------------------------------------------------------------------------------------------


def test_a_pooler_is_refused(pgbouncer: PgBouncer) -> None:
    """Behind a transaction pooler the store says that it cannot work, and what to do."""
    with Client(f"{pgbouncer.url}?mode=advisory") as client, pytest.raises(StoreError, match="pooler is between"):
        client.lock("name").acquire(timeout=1.0)


def test_a_pooled_connection_holds_no_lock(postgres_server: PostgresServer, client: Client) -> None:
    """A connection that is put back holds no lock, and is used again."""
    for _ in range(20):
        with client.lock("name"):
            assert len(holders(postgres_server, "name")) == 1
    assert not postgres_server.execute(LOCKS)
    assert len(postgres_server.clients("tenure: here")) == 1


def test_a_connection_is_not_put_back_after_an_unlock_that_failed(
    postgres_server: PostgresServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that turns out not to hold its lock is closed, whatever it may hold instead."""
    lease = client.lock("name").acquire()
    (pid,) = holders(postgres_server, "name")

    async def not_held(*_args: object) -> bool:
        return False

    monkeypatch.setattr("tenure.stores.postgresql.advisory.PgLockSession.unlock", not_held)
    lease.release()
    eventually(lambda: not postgres_server.execute(LOCKS), "a closed session")
    assert pid not in postgres_server.clients()


def test_each_held_lock_takes_a_connection(url: str) -> None:
    """If all connections hold locks, an acquisition says so; a release makes room."""
    with Client(f"{url}&connections=2", retry_for=0.2, operation_timeout=0.2) as client:
        leases = [client.lock(f"name-{number}").acquire() for number in range(2)]
        with pytest.raises(StoreUnavailable, match=r"holds 2 locks.*\?connections="):
            client.lock("one-more").acquire(timeout=0.5)
        leases[0].release()
        leases[0] = client.lock("one-more").acquire(timeout=5.0)
        assert [lease.release() for lease in leases] == [Outcome.RELEASED] * 2


def test_a_cancelled_acquisition_leaves_no_lock(postgres_server: PostgresServer, url: str) -> None:
    """An acquisition that is cancelled while it waits, or while its reply is under way, leaves no lock."""
    session_locks.cancel_acquisitions(url, "name", lambda: not postgres_server.execute(LOCKS))


def test_a_slow_acquisition_that_is_cancelled_leaves_no_lock(postgres_server: PostgresServer) -> None:
    """A grant whose reply is held back is freed when its acquisition is cancelled."""

    async def main(proxy: Proxy) -> None:
        host, port = proxy.address
        async with AsyncClient(f"postgresql://tenure@{host}:{port}/postgres?mode=advisory") as client:
            await (await client.lock("name").acquire()).release()
            proxy.blackhole(up=False)
            task = asyncio.ensure_future(client.lock("name").acquire(timeout=5.0))
            await soon(lambda: holders(postgres_server, "name"), "a grant whose reply is under way")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            proxy.heal()
            await soon(lambda: not holders(postgres_server, "name"), "a lock that is free")

    with Proxy(postgres_server.address) as proxy:
        asyncio.run(main(proxy))


def acquire_through_a_bad_proxy(server: PostgresServer, swallowed: bytes, rounds: int) -> None:
    """Let four clients acquire a name through a proxy that swallows replies, and check that nobody holds it then."""
    with Proxy(server.address, seed=16) as proxy:
        host, port = proxy.address
        url = f"postgresql://tenure@{host}:{port}/postgres?mode=advisory"
        session_locks.swallow_replies(proxy, url, "name", swallowed, rounds)
    eventually(lambda: not server.execute(LOCKS), "a server without locks")


@pytest.mark.parametrize("swallowed", [b"try_lock", b"tenure_unlock"])
def test_a_lost_reply_leaves_no_lock(postgres_server: PostgresServer, swallowed: bytes) -> None:
    """Many replies to 1,000 acquisitions are swallowed: no two clients hold the lock at once, and no one at the end."""
    acquire_through_a_bad_proxy(postgres_server, swallowed, 1000)


# -- keys --------------------------------------------------------------------------------------------------------


def test_two_names_with_one_key_are_told_apart(client: Client, other: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name whose key another name holds is refused with an error, not taken for held."""
    real = LockKey.of

    def of(name: str) -> LockKey:
        return LockKey(name, 42, real(name).mark)

    monkeypatch.setattr(LockKey, "of", of)
    lease = client.lock("one").acquire()
    for timeout in (0, 1.0):
        with pytest.raises(StoreError, match=r"the key 42 of 'two' is taken by session .*another name"):
            other.lock("two").acquire(timeout=timeout)
    with pytest.raises(LockTimeout, match="here"):
        other.lock("one").acquire(timeout=0)
    lease.release()
    assert other.lock("two").acquire(timeout=0).release() is Outcome.RELEASED


def test_an_advisory_lock_of_another_program_is_told(postgres_server: PostgresServer, client: Client) -> None:
    """A key that a program without Tenure has locked is an error that names its session."""
    with postgres_server.connect(application_name="cron") as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (LockKey.of("name").number,))
        with pytest.raises(StoreError, match=r"session \d+ \(cron\) for another name or by another program"):
            client.lock("name").acquire(timeout=1.0)
    client.lock("name").acquire(timeout=5.0).release()


def test_keys_stay_what_they_are() -> None:
    """Clients of all versions make the same key of a name, of 63 bits."""
    key = LockKey.of("orders:42")
    assert (key.number, key.mark) == (2885561648749786736, 1607969403)
    assert all(0 <= LockKey.of(str(number)).number < 2**63 for number in range(1000))


# -- waiting -----------------------------------------------------------------------------------------------------


def test_a_release_wakes_the_waiter_in_the_database(
    client: Client, other: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A waiter stands in the database's queue, where others see it, and is granted by the release."""
    lease = client.lock("name").acquire()
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING):
        waiting = pool.submit(other.lock("name").acquire, 20.0)
        eventually(
            lambda: [each.owner for each in client.inspect("name").waiters] == ["there"], "a waiter in its queue"
        )
        lease.release()
        waiting.result(10.0).release()
    assert not caplog.records


def test_waiting_leaves_no_error_in_the_servers_log(
    postgres_server: PostgresServer, client: Client, other: Client
) -> None:
    """A wait that ends without a grant is no error of the server's."""
    before = postgres_server.log().count("ERROR")
    with client.lock("name").acquire(), pytest.raises(LockTimeout):
        other.lock("name").acquire(timeout=0.5)
    assert postgres_server.log().count("ERROR") == before


# -- tokens and what is refused ----------------------------------------------------------------------------------


def test_without_a_sequence_there_are_no_tokens(client: Client) -> None:
    """A lease without a fencing token says so, and how to have tokens."""
    with client.lock("name").acquire() as lease, pytest.raises(UsageError, match="CREATE SEQUENCE tenure_tokens"):
        _ = lease.token
    with client.multilock(["a", "b"]).acquire() as group, pytest.raises(UsageError, match="no fencing tokens"):
        _ = group.tokens


def test_a_sequence_that_is_there_gives_tokens(postgres_server: PostgresServer) -> None:
    """`tenure_tokens` is found when the store is opened, and tokens grow from client to client, also after waits."""
    base = postgres_server.create_database("with_tokens")
    with postgres_server.connect(base) as connection:
        connection.execute("CREATE SEQUENCE tenure_tokens")
    with Client(f"{base}?mode=advisory") as one, Client(f"{base}?mode=advisory") as two, ThreadPoolExecutor(1) as pool:
        first = one.lock("name").acquire()
        waiting = pool.submit(two.lock("name").acquire, 20.0)
        eventually(lambda: one.inspect("name").waiters, "a waiter")
        assert [holder.token for holder in one.inspect("name").holders] == [first.token]
        first.release()
        second = waiting.result(10.0)
        assert second.token > first.token


@pytest.mark.parametrize(
    ("make", "error"),
    [("", "has no sequence 'bad'"), ("CACHE 10", "CACHE 1"), ("CYCLE", "NO CYCLE"), ("INCREMENT -1", "only grow")],
)
def test_a_sequence_that_does_not_only_grow_is_refused(
    postgres_server: PostgresServer, url: str, make: str, error: str
) -> None:
    """A sequence whose numbers are not in order is no source of tokens."""
    if make:
        postgres_server.execute(f"CREATE SEQUENCE bad {make}")
    try:
        with Client(f"{url}&sequence=bad") as client, pytest.raises(StoreError, match=error):
            client.lock("name").acquire(timeout=0)
    finally:
        postgres_server.execute("DROP SEQUENCE IF EXISTS bad")


def test_what_needs_a_record_is_refused(client: Client) -> None:
    """Nothing is promised that a lock alone cannot keep."""
    session_locks.ask_for_what_needs_a_record(client)


@pytest.mark.parametrize("option", ["schema=app", "prefix=x_", "guard=off", "max_ttl=5"])
def test_options_of_the_table_are_refused(option: str) -> None:
    """An option that says nothing in this mode is refused, as is a sequence in the other mode."""
    with pytest.raises(UsageError, match=r"not for \?mode=advisory"):
        Client(f"postgresql://localhost/?mode=advisory&{option}")
    with pytest.raises(UsageError, match=r"is for \?mode=advisory"):
        Client("postgresql://localhost/?sequence=x")


def test_the_command_prints_no_token(url: str) -> None:
    """`tenure run` sets no TENURE_TOKEN if there is none."""
    session_locks.run_a_command_without_a_token(url, "name")
