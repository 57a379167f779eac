"""What goes wrong between a client and MySQL: lost replies, ended sessions, restarts, lag, locks and stalls."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import pymysql
import pytest

from tenure import Client, LockTimeout, StoreError
from tenure.stores.mysql import channel as channels
from tenure.stores.mysql import database
from tests.servers import MariaDbServer, Proxy
from tests.servers.mariadb import DATABASE, PASSWORD, USER, Replica

TEST_TIMEOUT = 30.0


@pytest.fixture
def name() -> str:
    """Return a name that no other test uses."""
    return uuid4().hex


@pytest.fixture
def proxy(mariadb_server: MariaDbServer) -> Iterator[Proxy]:
    """Put a proxy in front of the server."""
    one = Proxy(mariadb_server.address)
    one.start()
    yield one
    one.stop()


def through(proxy: Proxy, options: str = "") -> str:
    """Return the URL of the server behind a proxy."""
    host, port = proxy.address
    return f"mysql://{USER}:{PASSWORD}@{host}:{port}/{DATABASE}{options}"


def eventually(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    until = time.monotonic() + TEST_TIMEOUT
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


class Waiter(threading.Thread):
    """A thread that waits for a lock, takes it and releases it."""

    def __init__(self, client: Client, name: str) -> None:
        """Start to wait."""
        super().__init__(daemon=True)
        self.tokens: list[int] = []
        self._client, self._name = client, name
        self.start()

    def run(self) -> None:
        """Wait."""
        with self._client.lock(self._name, ttl=20, timeout=TEST_TIMEOUT) as lease:
            self.tokens.append(lease.token)


def waits(client: Client, name: str, count: int = 1) -> bool:
    """Tell whether so many clients wait for a name."""
    return len(client.inspect(name).waiters) >= count


@pytest.mark.parametrize("statement", [b"UPDATE", b"INSERT", b"SELECT", b"START", b"KILL"])
def test_a_lost_reply_leaves_nothing_behind(
    mariadb_server: MariaDbServer, proxy: Proxy, name: str, statement: bytes
) -> None:
    """Whichever reply is lost, the waiter gets its lock in the end, and no row has a holder or waiter afterwards."""
    with Client(mariadb_server.url) as near, Client(through(proxy), operation_timeout=10) as far:
        with far.lock(f"{name}/warm"):
            pass
        for _ in range(3):
            proxy.swallow(2, containing=statement)
            lease = near.lock(name, ttl=20).acquire()
            waiter = Waiter(far, name)
            eventually(lambda: waits(near, name))
            lease.release()
            waiter.join(TEST_TIMEOUT)
            assert len(waiter.tokens) == 1
            assert waiter.tokens[0] > lease.token
        proxy.heal()
        eventually(lambda: not near.inspect(name).holders and not near.inspect(name).waiters)


def test_a_release_ends_the_sleep_of_the_waiter(
    mariadb_server: MariaDbServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiter's session reads its message at once, not at the end of its sleep."""
    monkeypatch.setattr(channels, "SLEEP", 600.0)
    with Client(mariadb_server.url) as one, Client(mariadb_server.url) as other:
        lease = one.lock(name, ttl=30).acquire()
        waiter = Waiter(other, name)
        eventually(lambda: waits(one, name))
        mariadb_server.execute("DELETE FROM tenure_messages")
        lease.release()
        eventually(lambda: mariadb_server.execute("SELECT COUNT(*) FROM tenure_messages") == [(0,)])
        waiter.join(TEST_TIMEOUT)
        assert waiter.tokens


def test_without_a_kill_the_waiter_would_sleep_on(
    mariadb_server: MariaDbServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that wakes nobody would be noticed: the message stays, and the waiter is served by its next request."""
    monkeypatch.setattr(channels, "SLEEP", 600.0)
    with Client(mariadb_server.url) as one, Client(mariadb_server.url) as other:
        lease = one.lock(name, ttl=30).acquire()
        waiter = Waiter(other, name)
        eventually(lambda: waits(one, name))

        monkeypatch.setattr(database, "end_sleep", Mock(return_value="KILL QUERY 0"))
        mariadb_server.execute("DELETE FROM tenure_messages")
        lease.release()
        waiter.join(TEST_TIMEOUT)
        assert waiter.tokens
        assert mariadb_server.execute("SELECT COUNT(*) FROM tenure_messages") != [(0,)]
        monkeypatch.undo()


def test_every_session_may_be_ended(mariadb_server: MariaDbServer, name: str) -> None:
    """KILL CONNECTION of any session, also of the one that listens: the lease lives, and the waiter is served."""
    with Client(mariadb_server.url) as one, Client(mariadb_server.url) as other:
        lease = one.lock(name, ttl=20).acquire()
        waiter = Waiter(other, name)
        eventually(lambda: waits(one, name))
        for session in mariadb_server.clients():
            mariadb_server.kill_connection(session)
        eventually(lambda: waits(one, name))
        assert lease.state.name == "VALID" or not lease.lost
        lease.release()
        waiter.join(TEST_TIMEOUT)
        assert waiter.tokens[0] > lease.token


def test_a_row_that_is_locked_for_longer_than_the_ttl(mariadb_server: MariaDbServer, name: str) -> None:
    """While another transaction locks the row, nothing is granted; a lease that can't be renewed is lost in time."""
    with Client(mariadb_server.url, operation_timeout=1) as client:
        with client.lock(name):
            pass
        with mariadb_server.connect() as blocking, blocking.cursor() as cursor:
            cursor.execute("START TRANSACTION")
            cursor.execute("SELECT 1 FROM tenure_names WHERE name = %s FOR UPDATE", [name])
            with pytest.raises((StoreError, LockTimeout)):
                client.lock(name, ttl=0.2, timeout=0).acquire()
            cursor.execute("ROLLBACK")
        eventually(lambda: client.lock(name, timeout=5).acquire().release())


def test_a_client_that_stands_still_in_a_step_blocks_nobody_for_long(mariadb_server: MariaDbServer, name: str) -> None:
    """The server ends a transaction whose client sends nothing for a second."""
    with Client(mariadb_server.url) as client:
        with client.lock(name):
            pass
        stuck = mariadb_server.connect(USER, PASSWORD)
        with stuck.cursor() as cursor:
            for statement in ("SET SESSION wait_timeout = 1", "START TRANSACTION"):
                cursor.execute(statement)
            cursor.execute("SELECT 1 FROM tenure_names WHERE name = %s FOR UPDATE", [name])
            with client.lock(name, timeout=TEST_TIMEOUT) as lease:
                assert lease.token


def test_a_paused_server_grants_no_two_leases(mariadb_server: MariaDbServer, name: str) -> None:
    """A server that stands still answers nobody; requests that it carries out late grant nothing that counts."""
    with Client(mariadb_server.url, operation_timeout=0.5) as client:
        before = client.lock(name).acquire()
        before.release()
        mariadb_server.pause()
        try:
            with pytest.raises((StoreError, LockTimeout)):
                client.lock(name, ttl=0.5, timeout=0.5).acquire()
        finally:
            mariadb_server.resume()
        with client.lock(name, timeout=TEST_TIMEOUT) as lease:
            assert lease.token > before.token
        eventually(lambda: not client.inspect(name).holders)


def test_a_read_only_server_is_left_for_a_writable_one(mariadb_server: MariaDbServer, name: str) -> None:
    """A server that becomes read-only refuses, with advice; when it can be written again, it serves again."""
    with Client(mariadb_server.url, operation_timeout=2) as client:
        with client.lock(name):
            pass
        with mariadb_server.read_only(), pytest.raises(StoreError, match="read-only"):
            client.lock(name, timeout=0).acquire()
        with client.lock(name, timeout=5):
            pass


def _many_connections(server: MariaDbServer) -> bool:
    with suppress(pymysql.OperationalError):
        return server.execute("SET GLOBAL max_connections = 151") == []
    return False


def test_too_many_connections_are_said(mariadb_server: MariaDbServer, name: str) -> None:
    """A server without a free connection is named, and serves again when it has one."""
    with Client(mariadb_server.url, operation_timeout=2) as client:
        mariadb_server.execute("SET GLOBAL max_connections = 10")
        with ExitStack() as crowd:
            with suppress(pymysql.OperationalError):
                for _ in range(20):
                    crowd.enter_context(mariadb_server.connect(USER, PASSWORD))
            with pytest.raises(StoreError, match="max_connections"):
                client.lock(name, timeout=0).acquire()
        eventually(lambda: _many_connections(mariadb_server))
        with client.lock(name, timeout=TEST_TIMEOUT):
            pass


def test_deadlocks_are_retried_inside(mariadb_server: MariaDbServer, name: str) -> None:
    """Clients that take several names at once in opposite orders never see a deadlock of the database."""
    names = [f"{name}/{place}" for place in range(3)]
    failed: list[BaseException] = []

    def work(order: list[str]) -> None:
        try:
            with Client(mariadb_server.url) as client:
                for _ in range(20):
                    with client.multilock(order, ttl=10, timeout=TEST_TIMEOUT):
                        pass
        except BaseException as error:  # noqa: BLE001 - whatever it is
            failed.append(error)

    threads = [threading.Thread(target=work, args=(order,)) for order in (names, names[::-1], names, names[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def _uptime(server: MariaDbServer) -> int:
    ((_, seconds),) = server.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
    return int(seconds)


def test_a_restart_of_a_server_that_may_forget_begins_a_quarantine(tmp_path: Path, name: str) -> None:
    """The server does not wait for its disk, so after a crash it grants nothing until what it may have forgotten ends.

    The lease goes on, and its holder renews it.
    """
    with MariaDbServer(tmp_path) as server, Client(f"{server.url}?max_ttl=3", operation_timeout=5) as client:
        lease = client.lock(name, ttl=3).acquire()
        eventually(lambda: _uptime(server) > 1)  # it says in whole seconds when it started
        server.kill()
        server.start()
        with pytest.raises(LockTimeout, match="quarantine"):
            client.lock(f"{name}/other", ttl=1, timeout=0.5).acquire()
        eventually(lambda: client.inspect(name).quarantined_for == 0)
        lease.release()
        with client.lock(f"{name}/other", ttl=1, timeout=TEST_TIMEOUT):
            pass


def test_a_promoted_replica_that_forgot_grants_nothing_yet(tmp_path: Path, name: str) -> None:
    """A replica that lags is promoted: it does not know the lease, and grants the name to nobody before its end."""
    with MariaDbServer(tmp_path / "primary", replicated=True) as primary:
        with Client(f"{primary.url}?max_ttl=3") as warm, warm.lock(f"{name}/warm", ttl=3):
            pass
        with Replica(tmp_path / "replica", primary) as replica:
            replica.await_caught_up()
            hosts = ",".join(f"{host}:{port}" for host, port in (primary.address, replica.address))
            url = f"mysql://{USER}:{PASSWORD}@{hosts}/{DATABASE}?max_ttl=3"
            with Client(url, operation_timeout=5) as client, replica.lags():
                lease = client.lock(name, ttl=3).acquire()
                primary.kill()
                replica.promote()
                with pytest.raises(LockTimeout), Client(url, operation_timeout=5) as other:
                    other.lock(name, ttl=1, timeout=1).acquire()
                lease.release()
                with client.lock(name, ttl=1, timeout=TEST_TIMEOUT) as next_lease:
                    assert next_lease.token > lease.token
