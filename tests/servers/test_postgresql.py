"""PostgreSQL servers, their standbys and PgBouncer work as their names say, and leave nothing behind."""

import os
import pwd
import select
import signal
import socket
import struct
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.hazards.helpers import Script
from tests.servers import Clock, PgBouncer, PostgresServer, ServerFailedError, Standby, wait_until
from tests.servers.children import children
from tests.servers.homes import mounts_disks, ordinary_user
from tests.servers.ports import LOCALHOST
from tests.servers.postgresql import find_program
from tests.servers.waiting import TEST_TIMEOUT

WITH_TLS = struct.pack("!ii", 8, 80877103)
"""The request for TLS, which a server that has none answers with the letter N."""

LEFT_BEHIND = """
import sys
from pathlib import Path
from tests.servers import PostgresServer
server = PostgresServer(Path(sys.argv[1]))
server.start()
server.pause()
print(server.pid, server.home.folder, flush=True)
input()
"""


def numbers(server: PostgresServer) -> list[int]:
    """Return what the table of `remember` contains."""
    return [number for (number,) in server.execute("SELECT number FROM remembered ORDER BY number")]


def remember(server: PostgresServer, number: int) -> None:
    """Commit a number."""
    server.execute("CREATE TABLE IF NOT EXISTS remembered (number int)")
    server.execute("INSERT INTO remembered VALUES (%s)", number)


def test_a_server_serves_as_an_ordinary_user(postgres_server: PostgresServer) -> None:
    """The server replies, and does not run as root even if the tests do."""
    assert postgres_server.execute("SELECT %s::int + 1", 1) == [(2,)]
    owner = Path(f"/proc/{postgres_server.pid}").stat().st_uid
    assert owner == (os.geteuid() or pwd.getpwnam(ordinary_user() or "").pw_uid) != 0


def test_a_named_folder_of_programs_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`TENURE_POSTGRES` names the folder of the programs; no other folder is searched then."""
    monkeypatch.setenv("TENURE_POSTGRES", str(Path(find_program("postgres")).parent))
    assert Path(find_program("initdb")).exists()
    monkeypatch.setenv("TENURE_POSTGRES", str(tmp_path))
    with pytest.raises(ServerFailedError, match="There is no initdb here"):
        find_program("initdb")


def test_committed_data_outlive_a_crash(tmp_path: Path) -> None:
    """A server has its port and its data after a crash with open connections, a restart, and a stop."""
    with PostgresServer(tmp_path) as server, ExitStack() as clients:
        remember(server, 1)
        port = server.port
        clients.enter_context(server.connect())
        server.kill()
        server.start()
        assert (server.port, numbers(server)) == (port, [1])
        clients.enter_context(server.connect())
        server.restart()
        assert (server.port, numbers(server)) == (port, [1])
        server.stop()
        server.start()
        assert (server.port, numbers(server)) == (port, [1])


def test_a_crash_ends_all_processes(tmp_path: Path) -> None:
    """`kill` returns when no process of the server is alive."""
    with PostgresServer(tmp_path) as server, server.connect() as client:
        processes = children(server.pid)
        assert client.info.backend_pid in [each.pid for each in processes]
        server.kill()
        assert not any(each.lives for each in processes)
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")


def test_a_paused_server_is_silent_and_goes_on(postgres_server: PostgresServer) -> None:
    """Neither an open connection nor a new one gets a reply from a paused server; after the pause, both do."""
    with postgres_server.connect() as client, socket.socket() as newcomer:
        postgres_server.pause()
        client.pgconn.send_query(b"SELECT 1")
        client.pgconn.flush()
        newcomer.connect(postgres_server.address)
        newcomer.sendall(WITH_TLS)
        assert not select.select([client.pgconn.socket, newcomer.fileno()], [], [], 0.1)[0]
        postgres_server.resume()
        results = list(iter(client.pgconn.get_result, None))
        assert [result.get_value(0, 0) for result in results] == [b"1"]
        newcomer.settimeout(TEST_TIMEOUT)
        assert newcomer.recv(1) == b"N"
    assert postgres_server.execute("SELECT 2") == [(2,)]


@pytest.mark.parametrize("hurt", [PostgresServer.kill, PostgresServer.pause])
def test_a_hurt_server_is_mended(postgres_server: PostgresServer, hurt: object) -> None:
    """The fixture repairs a server that a test has damaged before the next test."""
    assert postgres_server.serves, "mended since the test before"
    assert callable(hurt)
    hurt(postgres_server)
    postgres_server.mend()
    assert postgres_server.execute("SELECT 1") == [(1,)]


def test_a_paused_server_can_be_stopped(tmp_path: Path) -> None:
    """An orderly stop reaches the processes of a paused server."""
    with PostgresServer(tmp_path) as server, server.connect():
        server.pause()
        server.stop()
        assert "database system is shut down" in server.log()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_nothing(tmp_path: Path, number: int) -> None:
    """The processes and the folder of a server go with the process that started it, even if the server is paused."""
    script = Script(LEFT_BEHIND, str(tmp_path))
    pid, folder = script.hear().split()
    processes = children(int(pid))
    assert processes
    script.send(number)
    script.end()
    wait_until(lambda: not any(each.lives for each in processes), "the end of all processes of the server")
    wait_until(lambda: not Path(folder).exists(), "the end of the folder")


def test_a_server_leaves_no_folder(tmp_path: Path) -> None:
    """The end of a server removes its data; its log stays for the reader of a failed test."""
    with PostgresServer(tmp_path) as server:
        folder = server.home.folder
        assert (folder / "data").exists()
    assert not folder.exists()
    assert "ready to accept connections" in server.log()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The error of a server that cannot start contains the end of its log, and no process is left."""
    server = PostgresServer(tmp_path, options=["no_such_setting=1"])
    with pytest.raises(ServerFailedError, match="no_such_setting"):
        server.start()
    assert not server.runs
    server.discard()


def test_a_port_that_was_taken_in_the_last_moment_is_given_up(tmp_path: Path) -> None:
    """If a program without a reservation takes the port first, the servers start on other ports."""
    server = PostgresServer(tmp_path / "server")
    wanted = server.claim_port()
    with socket.create_server((LOCALHOST, wanted)), server:
        assert server.port != wanted
        bouncer = PgBouncer(tmp_path / "bouncer", server)
        wanted = bouncer.claim_port()
        with socket.create_server((LOCALHOST, wanted)), bouncer:
            assert bouncer.port != wanted
            with server.connect(bouncer.url) as client:
                assert client.execute("SELECT 1").fetchone() == (1,)


def test_a_user_needs_the_password(tmp_path: Path) -> None:
    """A user logs in with the right password alone, and has no right to create tables."""
    with PostgresServer(tmp_path, users=[("eve", "it's/a secret")]) as server:
        with server.connect(server.url_for("eve", "it's/a secret")) as client:
            assert client.execute("SELECT current_user").fetchone() == ("eve",)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                client.execute("CREATE TABLE mine (number int)")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            server.connect(server.url_for("eve", "guessed"))


def test_a_database_is_apart(postgres_server: PostgresServer, space: str) -> None:
    """A created database is another one than that of the server's URL."""
    with postgres_server.connect(postgres_server.create_database(space)) as client:
        assert client.execute("SELECT current_database()").fetchone() == (space,)


def test_an_administrator_ends_a_connection(postgres_server: PostgresServer, space: str) -> None:
    """`clients` finds a connection by its application name, and `terminate` ends it."""
    with postgres_server.connect(application_name=space) as client:
        assert postgres_server.clients(space) == [client.info.backend_pid]
        assert client.info.backend_pid in postgres_server.clients()
        postgres_server.terminate(client.info.backend_pid)
        assert postgres_server.clients(space) == []
        with pytest.raises(psycopg.errors.AdminShutdown):
            client.execute("SELECT 1")


def test_a_read_only_server_refuses_writes(postgres_server: PostgresServer, space: str) -> None:
    """A read-only server refuses to write, and writes afterwards."""
    with postgres_server.read_only(), pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        postgres_server.execute(f'CREATE TABLE "{space}" (number int)')
    postgres_server.execute(f'CREATE TABLE "{space}" (number int)')


def test_a_server_shows_the_time_of_its_clock(tmp_path: Path) -> None:
    """The clock of a running server is set, also for open connections and after a restart."""
    now = "SELECT extract(epoch FROM clock_timestamp())::float8"
    with Clock(tmp_path / "clock") as clock, PostgresServer(tmp_path, clock=clock) as server:
        with server.connect() as client:
            clock.step(-3600)
            assert client.execute(now).fetchone() == (pytest.approx(clock.now(), abs=600),)
        server.restart()
        assert server.execute(now) == [(pytest.approx(clock.now(), abs=600),)]


def test_a_full_disk_refuses_writes(tmp_path: Path) -> None:
    """A server whose disk is full refuses a table that grows, and goes on when it has space again."""
    if not mounts_disks():
        pytest.skip("a disk of its own for the server can be mounted by root alone")
    grow = "INSERT INTO remembered SELECT generate_series(2, 100000)"
    with PostgresServer(tmp_path, disk="96m") as server:
        remember(server, 1)
        server.fill_disk()
        with pytest.raises(psycopg.errors.DiskFull):
            server.execute(grow)
        server.free_disk()
        assert numbers(server) == [1]
        server.execute(grow)
    assert str(tmp_path) not in Path("/proc/mounts").read_text("utf-8")


def test_a_standby_forgets_what_it_has_not_received(tmp_path: Path) -> None:
    """A standby applies commits; it receives none while it lags, and has forgotten them when it is promoted."""
    with PostgresServer(tmp_path / "primary") as primary:
        remember(primary, 1)
        with Standby(tmp_path / "standby", primary) as standby:
            remember(primary, 2)
            standby.await_caught_up()
            assert numbers(standby) == [1, 2]
            with standby.lags():
                remember(primary, 3)
                standby.kill()
                standby.start()
                assert numbers(standby) == [1, 2]
            standby.await_caught_up()
            assert numbers(standby) == [1, 2, 3]
            with standby.lags():
                remember(primary, 4)
                primary.kill()
                standby.promote()
            remember(standby, 5)
            assert numbers(standby) == [1, 2, 3, 5]


def test_clients_of_a_bouncer_share_its_connections(pgbouncer: PgBouncer) -> None:
    """More clients than connections are served; a client whose connection is in use gets the other one."""
    asked = "SELECT pg_backend_pid()"
    with ExitStack() as stack:
        clients = [stack.enter_context(pgbouncer.postgres.connect(pgbouncer.url)) for _ in range(4)]
        pids = {pid for client in clients for (pid,) in client.execute(asked)}
        assert 1 <= len(pids) <= 2
        with clients[0].transaction():
            before, other = (client.execute(asked).fetchone() for client in clients[:2])
            assert other != before
            with clients[1].transaction():
                clients[1].execute(asked)
                assert clients[0].execute(asked).fetchone() == before


def test_settings_of_a_session_do_not_stay_with_its_client(pgbouncer: PgBouncer) -> None:
    """A session lock belongs to a server connection, so that another client of the bouncer gets it again."""
    with (
        pgbouncer.postgres.connect(pgbouncer.url) as first,
        pgbouncer.postgres.connect(pgbouncer.url) as second,
        first.transaction(),
    ):
        both = [client.execute("SELECT pg_backend_pid()").fetchone() for client in (first, second)]
        assert {(row["remote_pid"],) for row in pgbouncer.show("servers")} == set(both)
        second.execute("SELECT pg_advisory_lock(7)")
        with second.transaction():
            assert second.execute("SELECT pg_advisory_unlock(7)").fetchone() == (True,)


def test_a_bouncer_in_session_mode_keeps_the_connection(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """In session mode a client has one connection until it closes."""
    with (
        PgBouncer(tmp_path, postgres_server, pool_mode="session") as bouncer,
        postgres_server.connect(bouncer.url) as first,
        postgres_server.connect(bouncer.url) as second,
    ):
        pids = [client.execute("SELECT pg_backend_pid()").fetchone() for client in (first, second, first, second)]
        assert pids[:2] == pids[2:]
        assert pids[0] != pids[1]


def test_a_killed_bouncer_is_mended(pgbouncer: PgBouncer) -> None:
    """A bouncer starts again on its port."""
    port = pgbouncer.port
    pgbouncer.kill()
    with pytest.raises(psycopg.OperationalError):
        pgbouncer.postgres.connect(pgbouncer.url)
    pgbouncer.mend()
    with pgbouncer.postgres.connect(pgbouncer.url) as client:
        assert client.execute("SELECT 1").fetchone() == (1,)
    assert pgbouncer.port == port
