"""Locks without a table in MySQL: what ends a session, what shares it, and which servers are refused."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import urlsplit
from uuid import uuid4

import pymysql
import pytest

from tenure import AsyncClient, Client, LockTimeout, Outcome, StoreError, StoreUnavailable, TenureError, UsageError
from tenure.stores.mysql import get_lock_sql as sql
from tenure.stores.mysql.get_lock import MySqlNamedLocks
from tenure.stores.mysql.options import deployment_of
from tenure.stores.sql.deployment import PREFIX
from tenure.stores.sql.sessions import AnySession
from tests.faults import session_locks
from tests.hazards.helpers import eventually, soon
from tests.servers import MariaDbServer, Proxy
from tests.servers.homes import Home
from tests.servers.mariadb import DATABASE, PASSWORD, USER
from tests.servers.tls import Certificates

NOBODY = 10**9
"""The id of no session."""


@pytest.fixture
def name() -> str:
    """Return a name that no other test uses."""
    return uuid4().hex


@pytest.fixture
def url(mariadb_server: MariaDbServer) -> str:
    """Return the URL of the mode without a table."""
    return f"{mariadb_server.url}?mode=get_lock"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """Return a client."""
    with Client(url) as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[Client]:
    """Return another client."""
    with Client(url) as client:
        yield client


def holder(server: MariaDbServer, name: str, database: str = DATABASE) -> int | None:
    """Return the session that holds the lock of a name."""
    ((session,),) = server.execute("SELECT IS_USED_LOCK(%s)", sql.lock_name(database, PREFIX, name))
    return None if session is None else int(session)


def through(proxy: Proxy) -> str:
    """Return the URL of the mode without a table, of the server behind a proxy."""
    host, port = proxy.address
    return f"mysql://{USER}:{PASSWORD}@{host}:{port}/{DATABASE}?mode=get_lock"


# -- sessions that end -------------------------------------------------------------------------------------------


def test_a_killed_session_is_a_lost_lease(
    mariadb_server: MariaDbServer, client: Client, other: Client, name: str
) -> None:
    """The holder learns long before its renewal that its session was ended, and the name is free."""
    lease = client.lock(name, ttl=600).acquire()
    session = holder(mariadb_server, name)
    assert session is not None
    mariadb_server.kill_connection(session)
    assert lease.lost.wait(10.0)
    with pytest.raises(TenureError, match="its session in the database has ended"):
        lease.check()
    theirs = other.lock(name).try_acquire()
    assert theirs is not None
    assert lease.release() is Outcome.TAKEN_OVER
    assert theirs.release() is Outcome.RELEASED


def test_a_killed_session_is_a_lost_lease_in_asyncio(mariadb_server: MariaDbServer, url: str, name: str) -> None:
    """The same, over asyncmy."""

    async def main() -> None:
        async with AsyncClient(url) as client:
            lease = await client.lock(name, ttl=600).acquire()
            session = holder(mariadb_server, name)
            assert session is not None
            mariadb_server.kill_connection(session)
            assert await lease.lost.wait(10.0)
            assert await lease.release() is Outcome.EXPIRED

    asyncio.run(main())


def test_a_restart_ends_all_leases(mariadb_server: MariaDbServer, client: Client, name: str) -> None:
    """A server that restarts has forgotten its locks: their holders learn that, and the client goes on."""
    leases = [client.lock(f"{name}-{number}", ttl=600).acquire() for number in range(3)]
    mariadb_server.restart()
    assert all(lease.lost.wait(10.0) for lease in leases)
    assert client.lock(f"{name}-0").acquire(timeout=10.0).release() is Outcome.RELEASED


def test_a_paused_holder_loses_its_lock(url: str, other: Client, name: str) -> None:
    """The server ends the session of a process that stands still for longer than the ttl."""
    session_locks.pause_a_holder(url, other, name)


def test_a_holder_that_is_cut_off_loses_its_lock(mariadb_server: MariaDbServer, other: Client, name: str) -> None:
    """Behind a network that carries nothing any more, the lease ends here before the server lets it go there."""
    with Proxy(mariadb_server.address) as proxy, Client(through(proxy), operation_timeout=1.0) as far:
        lease = far.lock(name, ttl=1.5).acquire()
        proxy.blackhole()
        theirs = other.lock(name).acquire(timeout=20.0)
        assert lease.lost
        assert theirs.release() is Outcome.RELEASED
        proxy.heal()


@pytest.mark.parametrize("ttl", [2.0, 2.3])
def test_a_renewed_lease_outlives_its_ttl(client: Client, other: Client, name: str, ttl: float) -> None:
    """A live holder keeps its session alive by renewals."""
    lease = client.lock(name, ttl=ttl).acquire()
    with pytest.raises(LockTimeout, match=r"held by session \d+ of tenure@127\.0\.0\.1:\d+"):
        other.lock(name).acquire(timeout=2 * ttl)
    assert lease.release() is Outcome.RELEASED


def test_an_extension_tells_the_server(
    mariadb_server: MariaDbServer, url: str, other: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `extend`, the server keeps a silent session for the new ttl, and after a shorter renewal as well."""
    with Client(url) as client:
        lease = client.lock(name, ttl=2).acquire()
        lease.extend(600)

        async def unanswered(*_args: object) -> None:
            raise StoreUnavailable("no renewal reaches the server")

        monkeypatch.setattr("tenure.stores.sql.session_locks.SessionLockStore.renew", unanswered)
        with pytest.raises(LockTimeout):
            other.lock(name).acquire(timeout=4.5)
        assert holder(mariadb_server, name) is not None
        assert lease.release() is Outcome.RELEASED


def test_a_lease_is_no_longer_than_the_server_counts(client: Client, name: str) -> None:
    """A ttl that is longer than the server's longest timeout is cut to it, and so is an extension."""
    longest, year = 2_147_484.0, 366 * 86400.0
    with client.lock(name, ttl=year).acquire() as lease:
        assert longest / 2 < lease.remaining() <= longest
        assert longest / 2 < lease.extend(year) <= longest
        assert longest / 2 < lease.remaining() <= longest


def test_a_stalled_server_loses_no_lease(mariadb_server: MariaDbServer, client: Client, name: str) -> None:
    """A renewal that is not answered in time is answered later: the session and its lock go on."""
    lease = client.lock(name, ttl=6).acquire()
    before = holder(mariadb_server, name)
    mariadb_server.pause()
    try:
        assert not lease.lost.wait(3.5)
    finally:
        mariadb_server.resume()
    lease.check()
    assert not lease.lost.wait(4.0)
    assert holder(mariadb_server, name) == before
    assert lease.release() is Outcome.RELEASED


def test_a_stalled_server_loses_no_lease_in_asyncio(mariadb_server: MariaDbServer, url: str, name: str) -> None:
    """The same, over asyncmy."""

    async def main() -> None:
        async with AsyncClient(url) as client:
            lease = await client.lock(name, ttl=6).acquire()
            before = holder(mariadb_server, name)
            mariadb_server.pause()
            try:
                assert not await lease.lost.wait(3.5)
            finally:
                mariadb_server.resume()
            assert not await lease.lost.wait(4.0)
            assert holder(mariadb_server, name) == before
            assert await lease.release() is Outcome.RELEASED

    asyncio.run(main())


def test_an_idle_session_is_as_patient_as_any(mariadb_server: MariaDbServer, client: Client, name: str) -> None:
    """A connection that holds no lock any more, or got none, is not ended by the server after the ttl."""
    others = set(mariadb_server.clients())  # of tests before, which may be ending
    with client.lock(name, ttl=1):
        assert client.lock(name, ttl=1).try_acquire() is None
    sessions = set(mariadb_server.clients()) - others
    assert sessions
    ((seconds,),) = mariadb_server.execute("SELECT @@global.wait_timeout")
    assert seconds > 60
    with client.lock(f"{name}/other", ttl=600) as lease:
        assert not lease.lost.wait(3.0)
    assert sessions <= set(mariadb_server.clients())


# -- connections -------------------------------------------------------------------------------------------------


def test_a_pooled_connection_holds_no_lock(mariadb_server: MariaDbServer, client: Client, name: str) -> None:
    """A connection that is put back holds no lock, and is used again."""
    sessions = set[int | None]()
    for _ in range(20):
        with client.lock(name):
            sessions.add(holder(mariadb_server, name))
        assert holder(mariadb_server, name) is None
    assert len(sessions) == 1


def test_a_connection_is_not_put_back_after_an_unlock_that_failed(
    mariadb_server: MariaDbServer, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that turns out not to hold its lock is closed, whatever it may hold instead."""
    lease = client.lock(name).acquire()
    session = holder(mariadb_server, name)

    async def not_held(*_args: object) -> bool:
        return False

    monkeypatch.setattr("tenure.stores.mysql.get_lock.MySqlLockSession.unlock", not_held)
    lease.release()
    eventually(lambda: holder(mariadb_server, name) is None, "a closed session")
    assert session not in mariadb_server.clients()


def test_each_held_lock_takes_a_connection(url: str, name: str) -> None:
    """If all connections hold locks, an acquisition says so; a release makes room."""
    with Client(f"{url}&connections=2", retry_for=0.2, operation_timeout=0.2) as client:
        leases = [client.lock(f"{name}-{number}").acquire() for number in range(2)]
        with pytest.raises(StoreUnavailable, match=r"holds 2 locks.*\?connections="):
            client.lock(f"{name}-more").acquire(timeout=0.5)
        leases[0].release()
        leases[0] = client.lock(f"{name}-more").acquire(timeout=5.0)
        assert [lease.release() for lease in leases] == [Outcome.RELEASED] * 2


def test_a_cancelled_acquisition_leaves_no_lock(mariadb_server: MariaDbServer, url: str, name: str) -> None:
    """An acquisition that is cancelled while it waits, or while its reply is under way, leaves no lock."""
    session_locks.cancel_acquisitions(url, name, lambda: holder(mariadb_server, name) is None)


def test_a_slow_acquisition_that_is_cancelled_leaves_no_lock(mariadb_server: MariaDbServer, name: str) -> None:
    """A grant whose reply is held back is freed when its acquisition is cancelled."""

    async def main(proxy: Proxy) -> None:
        async with AsyncClient(through(proxy)) as client:
            await (await client.lock(name).acquire()).release()
            proxy.blackhole(up=False)
            task = asyncio.ensure_future(client.lock(name).acquire(timeout=5.0))
            await soon(lambda: holder(mariadb_server, name), "a grant whose reply is under way")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            proxy.heal()
            await soon(lambda: holder(mariadb_server, name) is None, "a lock that is free")

    with Proxy(mariadb_server.address) as proxy:
        asyncio.run(main(proxy))


def acquire_through_a_bad_proxy(server: MariaDbServer, name: str, swallowed: bytes, rounds: int) -> None:
    """Let four clients acquire a name through a proxy that swallows replies, and check that nobody holds it then."""
    with Proxy(server.address, seed=16) as proxy:
        session_locks.swallow_replies(proxy, through(proxy), name, swallowed, rounds)
    eventually(lambda: holder(server, name) is None, "a lock that is free")


@pytest.mark.parametrize("swallowed", [b"GET_LOCK", b"RELEASE_LOCK"])
def test_a_lost_reply_leaves_no_lock(mariadb_server: MariaDbServer, name: str, swallowed: bytes) -> None:
    """Many replies to 1,000 acquisitions are swallowed: no two clients hold the lock at once, and no one at the end."""
    acquire_through_a_bad_proxy(mariadb_server, name, swallowed, 1000)


@pytest.mark.parametrize("swallowed", [b"GET_LOCK", b"RELEASE_LOCK"])
def test_a_reply_that_never_comes_leaves_no_lock(mariadb_server: MariaDbServer, name: str, swallowed: bytes) -> None:
    """A connection that stays open, and says nothing more, is closed, and with it goes the lock."""
    with Proxy(mariadb_server.address) as proxy, Client(through(proxy), operation_timeout=1.0) as client:
        client.inspect(name)
        proxy.swallow(1, containing=swallowed, cut=False)
        client.lock(name, ttl=600).acquire(timeout=30.0).release()
        assert proxy.counts.swallowed == 1
        eventually(lambda: holder(mariadb_server, name) is None, "a lock that is free")
        assert client.lock(name).acquire(timeout=30.0).release() is Outcome.RELEASED


def test_a_renewal_without_a_reply_ends_the_lease_in_time(
    mariadb_server: MariaDbServer, other: Client, name: str
) -> None:
    """The holder gives its lease up before the server does, which counts from the renewal on."""
    with Proxy(mariadb_server.address) as proxy, Client(through(proxy), operation_timeout=1.0) as client:
        lease = client.lock(name, ttl=3).acquire()
        proxy.swallow(None, containing=b"IS_USED_LOCK", cut=False)
        theirs = other.lock(name).acquire(timeout=30.0)
        assert lease.lost
        assert theirs.release() is Outcome.RELEASED
        proxy.heal()


def test_a_lost_reply_leaves_no_lock_in_asyncio(mariadb_server: MariaDbServer, name: str) -> None:
    """The same over asyncmy, with any reply but those of the greeting."""
    inside, done = list[int](), list[int]()

    async def work(client: AsyncClient, number: int) -> None:
        for _ in range(100):
            async with client.lock(name, ttl=20, timeout=60.0):
                inside.append(number)
                await asyncio.sleep(0)
                done.append(number)
                assert inside == [number]
                inside.clear()

    async def main(proxy: Proxy) -> None:
        async with AsyncClient(through(proxy)) as one, AsyncClient(through(proxy)) as two:
            await one.inspect(name)
            await two.inspect(name)
            proxy.swallow(None, probability=0.05, containing=b"_LOCK")
            await asyncio.gather(work(one, 1), work(two, 2))
            proxy.heal()

    with Proxy(mariadb_server.address, seed=7) as proxy:
        asyncio.run(main(proxy))
        assert proxy.counts.swallowed
    assert len(done) == 200
    eventually(lambda: holder(mariadb_server, name) is None, "a lock that is free")


class TlsMariaDb(MariaDbServer):
    """A server with a certificate."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        """Prepare it."""
        super().__init__(folder)
        self._certificates = certificates

    def _furnish(self, home: Home) -> None:
        super()._furnish(home)
        cert, key = (home.write(each.name, each.read_text()) for each in self._files())
        self.options = [f"--ssl-cert={cert}", f"--ssl-key={key}"]

    def _files(self) -> tuple[Path, Path]:
        return self._certificates.certificate, self._certificates.key


def test_a_lease_is_held_and_lost_over_tls(tmp_path: Path, name: str) -> None:
    """What TLS sends by itself, such as the tickets of a session, is taken neither for a reply nor for an end."""
    made = Certificates(tmp_path / "certificates")

    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            lease = await client.lock(name, ttl=600).acquire()
            await lease.extend()
            server.kill_connection(holder(server, name) or 0)
            assert await lease.lost.wait(10.0)

    with TlsMariaDb(tmp_path / "server", made) as server:
        url = f"{server.url}?mode=get_lock&ssl_ca={made.authority}&ssl_verify_identity=true"
        with Client(url) as client:
            sessions = set[int | None]()
            for _ in range(2):
                with client.lock(name, ttl=4) as lease:
                    sessions.add(holder(server, name))
                    assert not lease.lost.wait(2.0)
                    lease.extend()
            assert len(sessions) == 1
            lease = client.lock(name, ttl=600).acquire()
            server.kill_connection(holder(server, name) or 0)
            assert lease.lost.wait(10.0)
        asyncio.run(main(url))


# -- names -------------------------------------------------------------------------------------------------------


def test_databases_and_prefixes_keep_their_locks_apart(mariadb_server: MariaDbServer, url: str, name: str) -> None:
    """The server's locks know no databases, but those of Tenure do."""
    another = mariadb_server.create_database(f"db_{uuid4().hex[:12]}")
    urls = [url, f"{another}?mode=get_lock", f"{url}&prefix=x_"]
    clients = [Client(each) for each in urls]
    leases = [client.lock(name, timeout=0).acquire() for client in clients]
    for client in clients:
        assert client.lock(name).try_acquire() is None
    for client, lease in zip(clients, leases, strict=True):
        assert lease.release() is Outcome.RELEASED
        client.close()


def test_names_differ_by_their_bytes(url: str, name: str) -> None:
    """Case, spaces at the end, accents, NUL and length make another lock."""
    names = [name + each for each in ("a", "A", "a ", "ä", "a\0", "a\\", "a'", "%s", "名", "x" * 400, "x" * 401)]
    with Client(f"{url}&connections=16") as client:
        leases = [client.lock(each, timeout=0).acquire() for each in names]
        assert [lease.release() for lease in leases] == [Outcome.RELEASED] * len(names)


def test_names_of_locks_stay_what_they_are() -> None:
    """Clients of all versions make the same name of a lock, which servers take."""
    assert sql.lock_name("app", PREFIX, "orders:42") == "tenure:3ef7a8c105dbed42cf3b163bfd200366"
    parts = [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("", "ab", "c"), ("a", "", "bc"), ("1:a", "b", "c")]
    names = {sql.lock_name(*each) for each in parts}
    assert len(names) == len(parts)
    assert all(len(each) == len("tenure:") + 32 for each in names)


# -- waiting -----------------------------------------------------------------------------------------------------


def test_a_release_wakes_the_waiter_in_the_database(
    mariadb_server: MariaDbServer, client: Client, other: Client, name: str
) -> None:
    """A waiter stands in the server's queue, and is granted by the release."""
    lease = client.lock(name).acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.lock(name).acquire, 20.0)
        queue = "SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'"
        eventually(lambda: mariadb_server.execute(queue), "a waiter in the queue")
        lease.release()
        waiting.result(10.0).release()


def test_waiters_poll_where_the_server_counts_whole_seconds(
    mariadb_server: MariaDbServer, client: Client, other: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On MySQL, which rounds what GET_LOCK is to wait, no statement waits, and a waiter is served all the same."""
    real, waits = sql.lock, list[float]()

    def lock(name: str, wait: float, session: int) -> str:
        waits.append(wait)
        return real(name, wait, session)

    monkeypatch.setattr(sql, "SERVER", tuple(each.replace("VERSION()", "'8.4.3'") for each in sql.SERVER))
    monkeypatch.setattr(sql, "lock", lock)
    lease = client.lock(name).acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.lock(name).acquire, 20.0)
        eventually(lambda: len(waits) > 3, "a waiter that polls")
        lease.release()
        waiting.result(10.0).release()
    assert set(waits) == {0.0}
    assert holder(mariadb_server, name) is None


def test_a_wait_that_is_ended_by_kill_query_is_tried_again(
    mariadb_server: MariaDbServer, client: Client, other: Client, name: str
) -> None:
    """GET_LOCK returns NULL then, which is no grant."""
    lease = client.lock(name).acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.lock(name).acquire, 20.0)
        find = "SELECT ID FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'"
        killed = 0
        while killed < 3:
            for (session,) in mariadb_server.execute(find):
                with suppress(pymysql.OperationalError):  # it has ended meanwhile
                    mariadb_server.execute(f"KILL QUERY {session}")
                    killed += 1
        assert not waiting.done()
        lease.release()
        waiting.result(10.0).release()


# -- revocation --------------------------------------------------------------------------------------------------


def test_a_holder_can_be_revoked_by_force(client: Client, other: Client, name: str) -> None:
    """`revoke` ends the session of the holder, or of the session that `inspect` shows; the holder learns of it."""
    lease = client.lock(name, ttl=600).acquire()
    (shown,) = other.inspect(name).holders
    assert other.revoke(name, force=True, token=shown.token + 1) == []
    lease.check()
    assert [each.owner for each in other.revoke(name, force=True, token=shown.token)] == [shown.owner]
    assert lease.lost.wait(10.0)
    assert other.inspect(name).holders == []
    assert other.revoke(name, force=True) == []


def test_a_session_is_not_ended_for_a_lock_that_it_had(
    mariadb_server: MariaDbServer, client: Client, url: str, name: str
) -> None:
    """The KILL looks itself whether the session holds the lock."""
    lease = client.lock(name, ttl=600).acquire()
    session = holder(mariadb_server, name)
    with mariadb_server.connect(USER, PASSWORD) as connection, connection.cursor() as cursor:
        for each in (sql.lock_name(DATABASE, PREFIX, f"{name}/other"), sql.lock_name(DATABASE, "x_", name)):
            with pytest.raises(Exception, match="1094"):
                cursor.execute(sql.kill(each, session or 0))
    assert lease.release() is Outcome.RELEASED


def test_another_users_session_is_not_ended(mariadb_server: MariaDbServer, client: Client, name: str) -> None:
    """A user without the right to end sessions of others is told so, and sees no more than the session's number."""
    user = f"u_{uuid4().hex[:12]}"
    stranger = mariadb_server.create_user(user, "hidden") + f"{DATABASE}?mode=get_lock"
    mariadb_server.execute(f"GRANT SELECT ON `{DATABASE}`.* TO '{user}'@'%'")
    lease = client.lock(name, ttl=600).acquire()
    with Client(stranger) as other:
        with pytest.raises(LockTimeout, match=r"held by session \d+\."):
            other.lock(name).acquire(timeout=0)
        with pytest.raises(StoreError, match="CONNECTION ADMIN"):
            other.revoke(name, force=True)
    assert lease.release() is Outcome.RELEASED


# -- what is refused ---------------------------------------------------------------------------------------------


def refusal(url: str) -> str:
    """Return why both a Client and an AsyncClient can't begin, which must be the same."""
    with Client(url, operation_timeout=5) as client, pytest.raises(StoreError) as caught:
        client.lock("name", timeout=0).acquire()

    async def acquire() -> str:
        async with AsyncClient(url, operation_timeout=5) as client:
            with pytest.raises(StoreError) as caught:
                await client.lock("name", timeout=0).acquire()
            return str(caught.value)

    assert str(caught.value) == asyncio.run(acquire())
    return str(caught.value)


def test_a_node_of_galera_is_refused(tmp_path: Path) -> None:
    """`wsrep_on` says that named locks are not those of the cluster."""
    with MariaDbServer(tmp_path, options=["--wsrep-on=1"]) as server:
        assert "Galera" in refusal(f"{server.url}?mode=get_lock")
        with Client(server.url) as client:
            client.lock("name").acquire().release()


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ("SELECT 'group_replication_single_primary_mode', 'OFF'", "one of several primaries"),
        ("SELECT 'wsrep_on', 'ON'", "Galera"),
        ("", "TiDB"),
    ],
)
def test_servers_that_are_unfit_are_refused(url: str, planted: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says which it is, and what to use instead."""
    first, second = sql.SERVER
    if not planted:
        first = first.replace("VERSION()", "'8.0.11-TiDB-v8.5.0'")
    monkeypatch.setattr(sql, "SERVER", (first, planted or second))
    said = refusal(url)
    assert says in said
    assert "without ?mode=get_lock" in said


def by_another_session(statement: Callable[..., str]) -> Callable[..., str]:
    """Make a statement be answered by another session, as if a proxy were between."""

    def answered(*args: object) -> str:
        return statement(*args).replace("CONNECTION_ID()", str(NOBODY))

    return answered


def test_a_proxy_is_refused(mariadb_server: MariaDbServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is not the one of the greeting belongs to a proxy; it takes no lock that would stay there."""
    with monkeypatch.context() as patch:
        patch.setattr("tenure.stores.mysql.connection.MySqlConnection.thread_id", Mock(return_value=NOBODY))
        assert "a proxy is between" in refusal(url)
    taken: list[int | None] = []
    close = MySqlNamedLocks.close_session

    def close_session(locks: MySqlNamedLocks, session: AnySession) -> None:
        taken.append(holder(mariadb_server, "name"))
        close(locks, session)

    monkeypatch.setattr(MySqlNamedLocks, "close_session", close_session)
    monkeypatch.setattr(sql, "lock", by_another_session(sql.lock))
    assert "a proxy is between" in refusal(url)
    assert taken == [None, None]


def test_a_renewal_by_another_session_is_none(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal that a proxy sends to another session does not keep the session of the lock alive."""
    with Client(url) as client:
        lease = client.lock(name, ttl=600).acquire()
        monkeypatch.setattr(sql, "holder", by_another_session(sql.holder))
        with pytest.raises(TenureError, match="its session in the database has ended"):
            lease.extend()


def test_a_wrong_login_is_said_in_one_sentence(mariadb_server: MariaDbServer) -> None:
    """A wrong password, and a user who may not use the database."""
    assert "check the user and the password" in refusal(f"{mariadb_server.url_for(USER, 'hidden')}?mode=get_lock")
    unknown = mariadb_server.create_user(f"u_{uuid4().hex[:12]}", "hidden")
    assert "may not use the database" in refusal(f"{unknown}{DATABASE}?mode=get_lock")


def test_a_replica_is_refused(mariadb_server: MariaDbServer, url: str) -> None:
    """Of several hosts, a lock belongs to the one that can be written."""
    with mariadb_server.read_only():
        assert "read-only" in refusal(url)


def test_there_are_no_tokens(client: Client, name: str) -> None:
    """A lease without a fencing token says so."""
    with client.lock(name).acquire() as lease, pytest.raises(UsageError, match="no fencing tokens"):
        _ = lease.token
    with client.multilock([name, "b"]).acquire() as group, pytest.raises(UsageError, match="no fencing tokens"):
        _ = group.tokens


def test_what_needs_a_record_is_refused(client: Client) -> None:
    """Nothing is promised that a lock alone cannot keep."""
    session_locks.ask_for_what_needs_a_record(client)
    with pytest.raises(UsageError, match="ttl"):
        client.lock("name", ttl=0.9)


@pytest.mark.parametrize("option", ["guard=off", "max_ttl=5", "notify=off"])
def test_options_of_the_table_are_refused(option: str) -> None:
    """An option that says nothing in this mode is refused."""
    with pytest.raises(UsageError, match=r"not for \?mode=get_lock"):
        Client(f"mysql://localhost/db?mode=get_lock&{option}")


def test_the_mode_is_an_option_of_the_url() -> None:
    """Rows are the default; another mode is refused."""
    assert deployment_of(urlsplit("mysql://localhost/db")).mode == "table"
    assert deployment_of(urlsplit("mariadb://localhost/db?mode=table&guard=off")).mode == "table"
    with pytest.raises(UsageError, match="table or get_lock"):
        Client("mysql://localhost/db?mode=advisory")


def test_the_command_prints_no_token(url: str, name: str) -> None:
    """`tenure run` sets no TENURE_TOKEN if there is none."""
    session_locks.run_a_command_without_a_token(url, name)
