"""Servers start, stop and restart, and never outlive their tests."""

import os
import signal
import socket
import threading
from functools import partial
from pathlib import Path

import pytest

from tenure.runtimes.clocks import steady
from tests.faults.metronome import Metronome
from tests.hazards.helpers import Script
from tests.servers import RedisServer, SeaweedServer, ServerFailedError, wait_until
from tests.servers.dynamodb import CREDENTIALS
from tests.servers.ports import LOCALHOST, PortTakenError, reserve

TRIES = 8
"""How often a replica is attached: the master counts about one in four late."""

STARTS = """
import os, signal, sys
from pathlib import Path
from tests.servers import RedisServer, start_all
servers = [RedisServer(Path(sys.argv[1]) / str(number)) for number in range(3)]
start_all(servers)
servers[1].pause()
servers[2].stop()
print(*(server.port for server in servers[:2]), flush=True)
input()
"""


def listens(port: int) -> bool:
    """Tell whether a port accepts connections, even if only the system does so for a paused process."""
    with socket.socket() as probe:
        return probe.connect_ex((LOCALHOST, port)) == 0


def test_a_server_serves_until_it_is_stopped(tmp_path: Path) -> None:
    """A server replies within its `with`, and its port is closed afterwards."""
    with RedisServer(tmp_path) as server:
        assert server.command("PING") == "PONG"
        assert os.getsid(server.pid) == server.pid, "a signal to the tests' own group does not reach it"
        port = server.port
    assert not server.runs
    assert not listens(port)


def test_a_restart_keeps_the_port_and_the_data(tmp_path: Path) -> None:
    """A server with persistence has its port and its data after a crash, an orderly restart, and a stop."""
    with RedisServer(tmp_path, options=("--appendonly", "yes", "--appendfsync", "always")) as server:
        port = server.port
        server.command("SET", "name", "value")
        server.kill()
        assert not listens(port)
        server.start()
        assert (server.port, server.command("GET", "name")) == (port, "value")
        server.restart()
        assert (server.port, server.command("GET", "name")) == (port, "value")
        server.stop()
        server.start()
        assert (server.port, server.command("GET", "name")) == (port, "value")


def test_without_persistence_a_restart_forgets(tmp_path: Path) -> None:
    """A server without persistence has no data after a restart."""
    with RedisServer(tmp_path) as server:
        server.command("SET", "name", "value")
        server.restart()
        assert server.command("GET", "name") is None


def test_a_replica_in_step_acknowledges_at_once(tmp_path: Path, metronome: Metronome) -> None:
    """`has_replicas_in_step` waits until the master counts its replica, up to a second after both report success."""
    with RedisServer(tmp_path / "master") as master:
        follow = ("--replicaof", *map(str, master.address))
        for number in range(TRIES):
            with RedisServer(tmp_path / f"replica-{number}", options=follow) as replica, master.connect() as wire:
                wait_until(partial(replica.follows, master), "a replica that follows")
                wire.command("SET", "written", number)
                since = steady()
                acknowledged = wire.command("WAIT", 1, 500)
                assert acknowledged == 1 or metronome.elapsed(since) < 0.5, "the machine stood still meanwhile"


def test_a_paused_server_is_silent_and_goes_on(redis_server: RedisServer) -> None:
    """A paused server accepts connections, and replies after the pause."""
    redis_server.pause()
    assert redis_server.runs
    assert not redis_server.serves
    with redis_server.connect(timeout=0.05) as wire:
        wire.send("ECHO", "heard")
        with pytest.raises(TimeoutError):
            wire.receive()
        redis_server.resume()
    assert redis_server.command("PING") == "PONG"


@pytest.mark.parametrize("hurt", [RedisServer.kill, RedisServer.pause])
def test_a_hurt_server_is_mended(redis_server: RedisServer, hurt: object) -> None:
    """The fixture repairs a server that a test has damaged before the next test."""
    assert redis_server.serves, "mended since the test before"
    assert callable(hurt)
    hurt(redis_server)
    redis_server.mend()
    assert redis_server.command("PING") == "PONG"


def test_a_paused_server_can_be_stopped(tmp_path: Path) -> None:
    """`stop` does not wait for a paused process."""
    with RedisServer(tmp_path) as server:
        server.pause()
        port = server.port
    assert not listens(port)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The error of a server that cannot start contains the end of its log, and no process is left."""
    server = RedisServer(tmp_path, options=("--no-such-setting", "1"))
    with pytest.raises(ServerFailedError, match="no-such-setting"):
        server.start()
    assert not server.runs


def test_a_bucket_is_open_though_a_client_has_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator of DynamoDB, of the same process, leaves credentials in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with SeaweedServer(tmp_path) as server:
        assert server.serves


def test_two_never_reserve_the_same_port() -> None:
    """A port is reserved only once, until the reservation ends."""
    mine = reserve()
    with pytest.raises(PortTakenError, match="in use"):
        reserve(mine.port)
    mine.give_up()
    reserve(mine.port).give_up()


def test_a_port_that_was_taken_in_the_last_moment_is_given_up(tmp_path: Path) -> None:
    """If a program without a reservation takes the port first, the server starts on another port."""
    server = RedisServer(tmp_path)
    wanted = server.claim_port()
    with socket.create_server((LOCALHOST, wanted)), server:
        assert server.port != wanted
        assert server.command("PING") == "PONG"


def test_an_object_store_listens_on_ports_of_its_own(seaweed_server: SeaweedServer) -> None:
    """A SeaweedFS server has no port that is the same for all: a second one would end when it finds the port taken."""
    its_own = {seaweed_server.port + distance for distance in (0, *seaweed_server.distances)}
    files = {Path(os.path.realpath(each)).name for each in Path(f"/proc/{seaweed_server.pid}/fd").iterdir()}
    tcp = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    listening = {int(each[1][-4:], 16) for each in tcp if each[3] == "0A" and f"socket:[{each[9]}]" in files}
    assert listening == its_own


def test_a_fixed_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    """A server with a fixed port fails if the port is taken."""
    with socket.create_server((LOCALHOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        with pytest.raises(PortTakenError, match=str(port)):
            RedisServer(tmp_path, port=port).start()


def test_servers_outlive_the_thread_that_started_them(tmp_path: Path) -> None:
    """A server lives on when the thread that started it ends."""
    server = RedisServer(tmp_path)
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    assert server.command("PING") == "PONG"
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_no_server(tmp_path: Path, number: int) -> None:
    """The servers of a process end however the process ends, paused or not."""
    script = Script(STARTS, str(tmp_path))
    ports = [int(port) for port in script.hear().split()]
    assert all(map(listens, ports))
    script.send(number)
    script.end()
    wait_until(lambda: not any(map(listens, ports)), "the end of all servers")


def test_a_process_that_ends_leaves_no_server(tmp_path: Path) -> None:
    """The servers of a process end even if it does not stop them."""
    script = Script(STARTS.replace("input()", "os._exit(0)"), str(tmp_path))
    ports = [int(port) for port in script.hear().split()]
    script.end()
    wait_until(lambda: not any(map(listens, ports)), "the end of all servers")


def test_a_forked_child_leaves_the_servers_to_its_parent(tmp_path: Path) -> None:
    """Servers survive the end of a forked child, and end with the parent even while a child lives."""
    forks = """
child = os.fork()
if not child:
    sys.exit()
os.waitpid(child, 0)
other = os.fork()
if not other:
    signal.pause()
print(servers[0].command("PING"), other, flush=True)
input()
"""
    script = Script(STARTS.replace("input()\n", forks), str(tmp_path))
    ports = [int(port) for port in script.hear().split()]
    said, other = script.hear().split()
    assert said == "PONG"
    script.send(signal.SIGKILL)
    wait_until(lambda: not any(map(listens, ports)), "the end of all servers")
    os.kill(int(other), signal.SIGKILL)
    script.end()
