"""MariaDB servers and their replicas work as their names say, and leave nothing behind."""

import socket
from pathlib import Path

import pymysql
import pytest

from tests.servers import Clock, MariaDbServer, Replica, ServerFailedError
from tests.servers.homes import mounts_disks
from tests.servers.mariadb import PASSWORD, USER
from tests.servers.ports import LOCALHOST


def numbers(server: MariaDbServer) -> list[int]:
    """Return what the table of `remember` contains."""
    return [number for (number,) in server.execute("SELECT number FROM remembered ORDER BY number")]


def remember(server: MariaDbServer, number: int) -> None:
    """Commit a number."""
    server.execute("CREATE TABLE IF NOT EXISTS remembered (number int)")
    server.execute("INSERT INTO remembered VALUES (%s)", number)


def test_the_user_of_the_url_has_a_database(mariadb_server: MariaDbServer, space: str) -> None:
    """The user of the URL has all rights in the database of the URL."""
    assert mariadb_server.url == f"mysql://tenure:secret@127.0.0.1:{mariadb_server.port}/tenure"
    with mariadb_server.connect(USER, PASSWORD) as client, client.cursor() as cursor:
        cursor.execute(f"CREATE TABLE `{space}` (number int)")
        cursor.execute("SELECT current_user(), database()")
        assert cursor.fetchone() == ("tenure@%", "tenure")


def test_committed_data_outlive_a_crash(tmp_path: Path) -> None:
    """A server has its port and its data after a crash, an orderly restart, and a stop."""
    with MariaDbServer(tmp_path) as server, server.connect():
        remember(server, 1)
        port = server.port
        server.kill()
        server.start()
        assert (server.port, numbers(server)) == (port, [1])
        server.restart()
        assert (server.port, numbers(server)) == (port, [1])
        server.stop()
        server.start()
        assert (server.port, numbers(server)) == (port, [1])


def test_a_paused_server_is_silent_and_goes_on(mariadb_server: MariaDbServer) -> None:
    """A paused server does not reply; it replies after the pause."""
    mariadb_server.pause()
    with pytest.raises(pymysql.OperationalError, match="timed out"):
        mariadb_server.connect(timeout=0.1)
    mariadb_server.resume()
    assert mariadb_server.execute("SELECT 1") == [(1,)]


@pytest.mark.parametrize("hurt", [MariaDbServer.kill, MariaDbServer.pause])
def test_a_hurt_server_is_mended(mariadb_server: MariaDbServer, hurt: object) -> None:
    """The fixture repairs a server that a test has damaged before the next test."""
    assert mariadb_server.serves, "mended since the test before"
    assert callable(hurt)
    hurt(mariadb_server)
    mariadb_server.mend()
    assert mariadb_server.execute("SELECT 1") == [(1,)]


def test_a_server_leaves_no_folder(tmp_path: Path) -> None:
    """The end of a server removes its data; its log stays for the reader of a failed test."""
    with MariaDbServer(tmp_path) as server:
        folder = server.home.folder
        assert (folder / "data").exists()
    assert not folder.exists()
    assert "ready for connections" in server.log()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The error of a server that cannot start contains the end of its log, and no process is left."""
    server = MariaDbServer(tmp_path, options=["--no-such-setting"])
    with pytest.raises(ServerFailedError, match="no-such-setting"):
        server.start()
    assert not server.runs
    server.discard()


def test_a_port_that_was_taken_in_the_last_moment_is_given_up(tmp_path: Path) -> None:
    """If a program without a reservation takes the port first, the server starts on another port."""
    server = MariaDbServer(tmp_path)
    wanted = server.claim_port()
    with socket.create_server((LOCALHOST, wanted)), server:
        assert server.port != wanted
        assert server.execute("SELECT @@port") == [(server.port,)]


def test_a_user_has_no_rights(mariadb_server: MariaDbServer, space: str) -> None:
    """A created user logs in with the password, and can't use a database."""
    name = space[:16]
    assert mariadb_server.create_user(name, "guess/me") == mariadb_server.url_for(name, "guess/me", "")
    with mariadb_server.connect(name, "guess/me", database=None) as client, client.cursor() as cursor:
        with pytest.raises(pymysql.OperationalError, match="denied"):
            cursor.execute("USE tenure")
        cursor.execute("SELECT current_user()")
        assert cursor.fetchone() == (f"{name}@%",)
    with pytest.raises(pymysql.OperationalError, match="Access denied"):
        mariadb_server.connect(name, "guessed", database=None)


def test_a_database_is_apart(mariadb_server: MariaDbServer, space: str) -> None:
    """The user of the server's URL has all rights in a created database."""
    assert mariadb_server.create_database(space).endswith(f"/{space}")
    with mariadb_server.connect(USER, PASSWORD, space) as client, client.cursor() as cursor:
        assert cursor.execute("CREATE TABLE mine (number int)") == 0


def test_an_administrator_ends_a_connection(mariadb_server: MariaDbServer) -> None:
    """`kill_connection` ends a connection by its id."""
    with mariadb_server.connect(USER, PASSWORD) as client, client.cursor() as cursor:
        assert client.thread_id() in mariadb_server.clients()
        mariadb_server.kill_connection(client.thread_id())
        with pytest.raises(pymysql.OperationalError):
            cursor.execute("SELECT 1")


def test_a_read_only_server_refuses_writes(mariadb_server: MariaDbServer, space: str) -> None:
    """A read-only server refuses the writes of a user, and accepts them afterwards."""
    with mariadb_server.connect(USER, PASSWORD) as client, client.cursor() as cursor:
        with mariadb_server.read_only(), pytest.raises(pymysql.OperationalError, match="read-only"):
            cursor.execute(f"CREATE TABLE `{space}` (number int)")
        cursor.execute(f"CREATE TABLE `{space}` (number int)")


def test_a_server_shows_the_time_of_its_clock(tmp_path: Path) -> None:
    """The clock of a running server is set, and is the same after a restart."""
    now = "SELECT UNIX_TIMESTAMP(SYSDATE(6))"
    with Clock(tmp_path / "clock") as clock, MariaDbServer(tmp_path, clock=clock) as server:
        clock.step(-3600)
        ((running,),) = server.execute(now)
        server.restart()
        ((restarted,),) = server.execute(now)
        assert [float(running), float(restarted)] == pytest.approx([clock.now()] * 2, abs=600)


def test_a_full_disk_refuses_writes(tmp_path: Path) -> None:
    """A server whose disk is full refuses a table that grows, and goes on when it has space again."""
    if not mounts_disks():
        pytest.skip("a disk of its own for the server can be mounted by root alone")
    grow = "INSERT INTO remembered SELECT seq FROM seq_2_to_20000"
    with MariaDbServer(tmp_path, disk="96m") as server:
        remember(server, 1)
        server.fill_disk()
        with pytest.raises(pymysql.Error, match="full"):
            server.execute(grow)
        server.free_disk()
        assert numbers(server) == [1]
        server.execute(grow)


def test_a_replica_forgets_what_it_has_not_received(tmp_path: Path) -> None:
    """A replica applies commits; it receives none while it lags, and has forgotten them when it is promoted."""
    with MariaDbServer(tmp_path / "primary", replicated=True) as primary:
        remember(primary, 1)
        with Replica(tmp_path / "replica", primary) as replica:
            remember(primary, 2)
            replica.await_caught_up()
            assert numbers(replica) == [1, 2]
            with replica.lags():
                remember(primary, 3)
                replica.kill()
                replica.start()
                assert numbers(replica) == [1, 2]
            replica.await_caught_up()
            assert numbers(replica) == [1, 2, 3]
            with replica.connect(USER, PASSWORD) as client, client.cursor() as cursor:
                with pytest.raises(pymysql.OperationalError, match="read-only"):
                    cursor.execute("DELETE FROM remembered")
                with replica.lags():
                    remember(primary, 4)
                    primary.kill()
                    replica.promote()
                cursor.execute("INSERT INTO remembered VALUES (5)")
            replica.restart()
            remember(replica, 6)
            assert numbers(replica) == [1, 2, 3, 5, 6]
