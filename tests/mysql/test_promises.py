"""What docs/mysql.md says of connections, round trips, TLS, limits and restarts, on a real server."""

import asyncio
import os
import pwd
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pymysql
import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from tenure import AsyncClient, Client, LockTimeout, Outcome, StoreError, StoreUnavailable
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, client_at, play
from tests.hazards.helpers import eventually
from tests.mysql.accounts import SECRET, Account
from tests.servers import Certificates, MariaDbServer, Proxy
from tests.servers.homes import Home, mounts_disks
from tests.servers.mariadb import DATABASE, PASSWORD, USER

TEST_TIMEOUT = 30.0

DOCS = Path(__file__).parents[2] / "docs"

both_forms = pytest.mark.parametrize("form", API_FORMS)


@pytest.fixture
def account(mariadb_server: MariaDbServer) -> Account:
    """Return a user and a database of this test's own."""
    return Account(mariadb_server)


# -- connections -------------------------------------------------------------------------------------------------


def test_connections_are_bounded_however_many_threads_begin(account: Account) -> None:
    """No more connections than ?connections= carry requests, and one more listens; all end with their client."""
    most, start = 0, threading.Barrier(12)
    with Client(f"{account.url}&connections=2") as client, ThreadPoolExecutor(12) as pool:
        client.names()

        def lock(number: int) -> None:
            start.wait()
            for _ in range(5):
                client.lock(f"bounded {number}").acquire().release()

        done = [pool.submit(lock, number) for number in range(12)]
        while not all(each.done() for each in done):
            most = max(most, len(account.sessions()))
        for each in done:
            each.result()
    assert 2 <= most <= 3
    eventually(lambda: not account.sessions(), "the end of all sessions")


@both_forms
def test_an_uncontended_pair_is_two_round_trips(mariadb_server: MariaDbServer, form: str) -> None:
    """A free lock costs one request, and so does its release, in tables that no other test has left in a quarantine."""
    prefix = f"pair_{uuid4().hex[:12]}_"

    async def scene(kit: Kit) -> None:
        with Proxy(mariadb_server.address) as proxy:
            host, port = proxy.address
            url = f"mysql://{USER}:{PASSWORD}@{host}:{port}/{DATABASE}?guard=off&notify=off&prefix={prefix}"
            lock = client_at(kit, url).lock("name", ttl=30)
            await (await lock.acquire()).release()
            before = proxy.counts.requests
            for _ in range(10):
                assert await (await lock.acquire()).release() is Outcome.RELEASED
            assert proxy.counts.requests - before == 20

    play(form, mariadb_server.url, scene)


@both_forms
def test_a_unix_socket(mariadb_server: MariaDbServer, account: Account, form: str) -> None:
    """`?unix_socket=` reaches the server without a host."""
    url = account.url.replace(f"@127.0.0.1:{mariadb_server.port}/", "@/")
    assert url != account.url

    async def scene(kit: Kit) -> None:
        client = client_at(kit, f"{url}&unix_socket={mariadb_server.home.folder}/socket")
        lease = await client.lock("name").acquire()
        assert await lease.release() is Outcome.RELEASED

    play(form, account.url, scene)


def test_an_engine_makes_a_client(account: Account) -> None:
    """An engine gives its server and login to clients of both forms, and is not connected itself."""
    url = account.url.partition("?")[0]
    engine = create_engine(url.replace("mysql", "mysql+pymysql", 1))
    async_engine = create_async_engine(url.replace("mysql", "mysql+asyncmy", 1))

    async def lock() -> int:
        async with AsyncClient(async_engine) as client, client.lock("name", timeout=TEST_TIMEOUT) as lease:
            return lease.token

    with Client(engine) as client:
        with client.lock("name") as lease, Client(account.url) as other:
            assert other.lock("name").try_acquire() is None
        assert asyncio.run(lock()) > lease.token
    for each in (engine, async_engine):
        assert each.pool.status().endswith("Current Checked out connections: 0")
    assert engine.pool.checkedin() == 0  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def _listening(engine: Engine, account: Account) -> None:
    given = pymysql_arguments(account)

    def name_the_server(dialect: object, record: object, args: list[object], keywords: dict[str, Any]) -> None:
        keywords.clear()
        keywords.update(given)

    event.listen(engine, "do_connect", name_the_server)


def pymysql_arguments(account: Account) -> dict[str, Any]:
    """Return the arguments of the drivers for an account."""
    parts = urlsplit(account.url)
    return {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": unquote(parts.password or ""),
        "database": parts.path[1:],
    }


def test_a_client_locks_at_the_server_of_the_users_code(account: Account) -> None:
    """Where code of the user's decides where an engine connects, its client connects there, in the engine's form."""
    given = pymysql_arguments(account)
    elsewhere = "mysql+pymysql://elsewhere.invalid/db"
    listening = create_engine(elsewhere)
    _listening(listening, account)
    async_engine = create_async_engine("mysql+asyncmy://elsewhere.invalid/db")
    _listening(async_engine.sync_engine, account)

    async def lock() -> None:
        async with AsyncClient(async_engine) as client, client.lock("name", timeout=TEST_TIMEOUT) as lease:
            lease.check()
            assert await asyncio.to_thread(other.lock("name").try_acquire) is None

    with Client(account.url.partition("?")[0]) as other:
        for engine in (
            create_engine(elsewhere, creator=lambda: pymysql.connect(**given)),
            create_engine(elsewhere, connect_args=given),
            listening,
        ):
            with Client(engine) as client, client.lock("name", timeout=TEST_TIMEOUT):
                assert other.lock("name").try_acquire() is None
            assert SECRET not in str(client)
        asyncio.run(lock())
        with Client(async_engine) as client, pytest.raises(StoreError, match="only an AsyncClient can"):
            client.lock("name").acquire(timeout=0)


def test_a_listener_that_comes_later_is_noticed(account: Account) -> None:
    """A client whose engine connects elsewhere since it was made does not go on to where it connected before."""
    engine = create_engine(account.url.partition("?")[0].replace("mysql", "mysql+pymysql", 1))
    with Client(engine) as client:
        _listening(engine, account)
        with pytest.raises(StoreError, match="do_connect"):
            client.lock("name").acquire(timeout=0)


def test_the_error_of_an_engines_own_code_is_said_without_secrets() -> None:
    """Its kind is told, and not its text, which may have a password."""

    def fail() -> object:
        raise KeyError("hidden")

    with (
        Client(create_engine("mysql+pymysql://db1/locks", creator=fail)) as client,
        pytest.raises(StoreUnavailable, match="KeyError") as caught,
    ):
        client.lock("name").acquire(timeout=0)
    assert "hidden" not in str(caught.value)


@both_forms
def test_the_first_server_that_can_be_written_is_used(mariadb_server: MariaDbServer, tmp_path: Path, form: str) -> None:
    """A server that becomes read-only is left for the next host of the URL."""
    with MariaDbServer(tmp_path) as second:
        hosts = ",".join(f"{host}:{port}" for host, port in (mariadb_server.address, second.address))
        url = f"mysql://{USER}:{PASSWORD}@{hosts}/{DATABASE}?guard=off"

        async def scene(kit: Kit) -> None:
            client, there = client_at(kit, url), client_at(kit, f"{second.url}?guard=off")
            await (await client.lock("name").acquire()).release()
            assert await there.names() == []
            with mariadb_server.read_only():
                lease = await client.lock("name", ttl=30).acquire(timeout=TEST_TIMEOUT)
                assert [each.token for each in (await there.inspect("name")).holders] == [lease.token]
                assert await lease.release() is Outcome.RELEASED

        play(form, second.url, scene)


# -- TLS ---------------------------------------------------------------------------------------------------------


class TlsMariaDb(MariaDbServer):
    """A server whose user must use TLS."""

    title: ClassVar[str] = "MariaDB server with TLS"

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        """Prepare a server with one of these certificates."""
        super().__init__(folder)
        self.certificates = certificates

    def _furnish(self, home: Home) -> None:
        super()._furnish(home)
        for option, file in (("ssl-cert", self.certificates.certificate), ("ssl-key", self.certificates.key)):
            copy = home.folder / file.name
            copy.write_bytes(file.read_bytes())
            if home.user is not None:
                os.chown(copy, pwd.getpwnam(home.user).pw_uid, -1)
            self.options.append(f"--{option}={copy}")


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsMariaDb]:
    """Run a server with TLS."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with TlsMariaDb(tmp_path_factory.mktemp("mariadb-tls"), certificates) as server:
        server.execute(f"ALTER USER '{USER}'@'%' REQUIRE SSL")
        yield server


@both_forms
def test_tls(tls_server: TlsMariaDb, form: str) -> None:
    """`ssl=true` encrypts, and `ssl_ca` with `ssl_verify_identity` checks whose server it is."""

    async def scene(kit: Kit) -> None:
        for options in ("ssl=true", f"ssl_ca={tls_server.certificates.authority}&ssl_verify_identity=true"):
            client = client_at(kit, f"{tls_server.url}?guard=off&{options}")
            lease = await client.lock("name", ttl=30).acquire(timeout=TEST_TIMEOUT)
            assert await lease.release() is Outcome.RELEASED

    play(form, f"{tls_server.url}?ssl=true&guard=off", scene)


@both_forms
def test_a_connection_that_is_not_as_secure_as_wanted_is_refused(
    tls_server: TlsMariaDb, tmp_path: Path, form: str
) -> None:
    """The server refuses a client without TLS, and the client a certificate of another authority."""
    other = Certificates(tmp_path / "other")

    async def scene(kit: Kit) -> None:
        for options in ("guard=off", f"guard=off&ssl_ca={other.authority}"):
            client = client_at(kit, f"{tls_server.url}?{options}", operation_timeout=5.0, retry_for=0.0)
            with pytest.raises(StoreError) as caught:
                await client.lock("name").acquire(timeout=0)
            assert PASSWORD not in str(caught.value)

    play(form, f"{tls_server.url}?ssl=true&guard=off", scene)


# -- errors ------------------------------------------------------------------------------------------------------


def goes_on(url: str, name: str, says: str, mend: Callable[[], object]) -> None:
    """Check what a client says while something is wrong, and that one that waits goes on when it is mended."""
    with Client(url, operation_timeout=5, retry_for=TEST_TIMEOUT) as client, ThreadPoolExecutor(1) as pool:
        with pytest.raises(StoreUnavailable, match=says):
            client.lock(name, timeout=0).acquire()
        waiting = pool.submit(client.lock(name, ttl=20, timeout=TEST_TIMEOUT).acquire)
        assert not waiting.done()
        mend()
        assert waiting.result(TEST_TIMEOUT).release() is Outcome.RELEASED


def test_a_waiter_goes_on_when_a_server_can_be_written_again(mariadb_server: MariaDbServer, account: Account) -> None:
    """1290: a user without the right to write a read-only server is told so, and waits for the end of it."""
    with Client(account.url) as client:
        client.names()
    mariadb_server.execute("SET GLOBAL read_only = 1")
    try:
        goes_on(account.url, "name", "read-only", lambda: mariadb_server.execute("SET GLOBAL read_only = 0"))
    finally:
        mariadb_server.execute("SET GLOBAL read_only = 0")


def test_a_limit_of_a_user_on_its_connections_passes(mariadb_server: MariaDbServer, account: Account) -> None:
    """1226: an acquisition goes on as soon as the user has a connection again."""
    url = account.user(f"{account.name}_l", "WITH MAX_USER_CONNECTIONS 1")
    with ExitStack() as crowd:
        crowd.enter_context(mariadb_server.connect(f"{account.name}_l", SECRET, account.name))
        goes_on(f"{url}&notify=off&connections=1", "name", "connections", crowd.close)


def test_a_statement_that_the_server_ends_is_repeated(mariadb_server: MariaDbServer, account: Account) -> None:
    """1969: a row that stays locked for longer than `max_statement_time` is unavailable until it is free."""
    with Client(account.url) as client, client.lock("name"):
        pass
    mariadb_server.execute("SET GLOBAL max_statement_time = 0.2")
    try:
        with mariadb_server.connect(database=account.name) as blocking, blocking.cursor() as cursor:
            cursor.execute("SET SESSION max_statement_time = 0")
            cursor.execute("START TRANSACTION")
            cursor.execute("SELECT 1 FROM tenure_names FOR UPDATE")
            goes_on(account.url, "name", "max_statement_time", blocking.rollback)
    finally:
        mariadb_server.execute("SET GLOBAL max_statement_time = 0")


def test_a_missing_column_is_an_error_that_lasts(account: Account) -> None:
    """1054: it is said at once, however long the client would wait. A missing table is made again."""
    with Client(account.url, retry_for=600) as client:
        client.names()
        account.execute("ALTER TABLE tenure_names CHANGE COLUMN holder holder_of_another_version TEXT")
        with pytest.raises(StoreError, match="tenure schema mysql") as caught:
            client.lock("name", timeout=600).acquire()
        assert not isinstance(caught.value, StoreUnavailable)


def test_a_session_of_another_user_is_heard_after_its_sleep(account: Account) -> None:
    """A user may not end the sleep of another user's session, whose waiter is served all the same."""
    with Client(account.url) as one, Client(account.user(f"{account.name}_o")) as other:
        lease = one.lock("name", ttl=30).acquire()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(other.lock("name", ttl=20, timeout=TEST_TIMEOUT).acquire)
            eventually(lambda: one.inspect("name").waiters, "a waiter")
            assert lease.release() is Outcome.RELEASED
            assert waiting.result(TEST_TIMEOUT).release() is Outcome.RELEASED


# -- restarts ----------------------------------------------------------------------------------------------------


def _started(server: MariaDbServer) -> int:
    ((_, seconds),) = server.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
    return int(time.time()) - int(seconds)


def test_max_ttl_is_lowered_as_the_page_says(account: Account) -> None:
    """The table keeps the largest max_ttl that any client had, until an administrator runs the statement."""
    (lower,) = re.findall(r"UPDATE tenure_meta SET longest_ttl = \d+", (DOCS / "mysql.md").read_text("utf-8"))
    url = account.url.partition("?")[0]
    with Client(url) as before:
        before.lock("name").acquire().release()
    for statement, lasts in (("SELECT 1", 30.0), (lower, 5.0)):
        account.execute(statement)
        account.execute("UPDATE tenure_meta SET timeline = 'another server'")
        with Client(f"{url}?max_ttl=5") as client:
            assert lasts - 4 < client.inspect("name").quarantined_for <= lasts


@pytest.mark.parametrize("guard", ["observed", "strict", "off"])
def test_a_restart_of_a_durable_server(tmp_path: Path, guard: str) -> None:
    """A server that waits for its disk forgets nothing: only `guard=strict` begins a quarantine, which can be ended."""
    with (
        MariaDbServer(tmp_path, options=["--innodb-flush-log-at-trx-commit=1"]) as server,
        Client(f"{server.url}?guard={guard}&max_ttl=600", operation_timeout=5, retry_for=TEST_TIMEOUT) as client,
    ):
        lease = client.lock("name", ttl=30).acquire()
        before = _started(server)
        eventually(lambda: time.time() > before + 2, "a start in another second")
        server.kill()
        server.start()
        assert [each.token for each in client.inspect("name").holders] == [lease.token]
        if guard == "strict":
            with pytest.raises(LockTimeout, match="quarantine"):
                client.lock("other", ttl=1, timeout=0.5).acquire()
            assert client.end_quarantine() > 60
        with client.lock("other", timeout=TEST_TIMEOUT):
            lease.check()
        assert lease.release() is Outcome.RELEASED


def test_a_full_disk_is_named_and_passes(tmp_path: Path) -> None:
    """1021, 1114: a server whose disk is full grants nothing that it cannot keep, and serves again once it has room."""
    if not mounts_disks():
        pytest.skip("a disk of its own for the server can be mounted by root alone")
    with (
        MariaDbServer(tmp_path, disk="96m") as server,
        Client(f"{server.url}?guard=off", operation_timeout=5, retry_for=0.5) as client,
        client.lock("held", ttl=600) as held,
    ):
        server.fill_disk()
        try:
            with pytest.raises(StoreUnavailable, match=r"disk"):
                _grow(client)
        finally:
            server.free_disk()
        eventually(lambda: _serves(client), "a server with space")
        held.check()
        assert [each.token for each in client.inspect("held").holders] == [held.token]


def _grow(client: Client) -> None:
    for number in range(30_000):
        client.lock(f"{'long' * 100}{number}", ttl=30).acquire().release()


def _serves(client: Client) -> bool:
    try:
        client.lock("again", ttl=30).acquire().release()
    except StoreUnavailable:
        return False
    return True
