"""Servers start, stop, come back, and never stay behind."""

import os
import signal
import socket
import threading
from functools import partial
from pathlib import Path

import pytest

from holdfast.runtimes.clocks import steady
from tests.faults.metronome import Metronome
from tests.hazards.helpers import Script
from tests.servers import RedisServer, ServerFailedError, wait_until
from tests.servers.ports import LOCALHOST, PortTakenError, reserve

TRIES = 8
"""How often a replica is linked: about one in four is counted late."""

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
    """Tell whether somebody takes connections at a port, be it only the system for a paused process."""
    with socket.socket() as probe:
        return probe.connect_ex((LOCALHOST, port)) == 0


def test_a_server_serves_until_it_is_stopped(tmp_path: Path) -> None:
    """Within `with` it answers; after it nobody listens there."""
    with RedisServer(tmp_path) as server:
        assert server.command("PING") == "PONG"
        assert os.getsid(server.pid) == server.pid, "a signal to the tests' own group does not reach it"
        port = server.port
    assert not server.runs
    assert not listens(port)


def test_a_restart_keeps_the_port_and_the_data(tmp_path: Path) -> None:
    """A server that persists is itself again after a crash, an orderly restart, a stop."""
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
    """By default nothing is kept."""
    with RedisServer(tmp_path) as server:
        server.command("SET", "name", "value")
        server.restart()
        assert server.command("GET", "name") is None


def test_a_replica_in_step_acknowledges_at_once(tmp_path: Path, metronome: Metronome) -> None:
    """Its master may not count it for up to a second after both say that all is well: that is waited for."""
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
    """Connections are taken, and answered after the pause."""
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
    """What a test does to a server is undone before the next one."""
    assert redis_server.serves, "mended since the test before"
    assert callable(hurt)
    hurt(redis_server)
    redis_server.mend()
    assert redis_server.command("PING") == "PONG"


def test_a_paused_server_can_be_stopped(tmp_path: Path) -> None:
    """A stop does not wait for a process that can't hear."""
    with RedisServer(tmp_path) as server:
        server.pause()
        port = server.port
    assert not listens(port)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The end of the log is in the message, and nothing is left."""
    server = RedisServer(tmp_path, options=("--no-such-setting", "1"))
    with pytest.raises(ServerFailedError, match="no-such-setting"):
        server.start()
    assert not server.runs


def test_two_never_reserve_the_same_port() -> None:
    """A reservation holds until it is given up."""
    mine = reserve()
    with pytest.raises(PortTakenError, match="in use"):
        reserve(mine.port)
    mine.give_up()
    reserve(mine.port).give_up()


def test_a_port_that_was_taken_in_the_last_moment_is_given_up(tmp_path: Path) -> None:
    """A program that knows nothing of reservations costs another try, no failure."""
    server = RedisServer(tmp_path)
    wanted = server.claim_port()
    with socket.create_server((LOCALHOST, wanted)), server:
        assert server.port != wanted
        assert server.command("PING") == "PONG"


def test_a_fixed_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    """Who asks for a port gets that or none."""
    with socket.create_server((LOCALHOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        with pytest.raises(PortTakenError, match=str(port)):
            RedisServer(tmp_path, port=port).start()


def test_servers_outlive_the_thread_that_started_them(tmp_path: Path) -> None:
    """A server belongs to the process."""
    server = RedisServer(tmp_path)
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    assert server.command("PING") == "PONG"
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_no_server(tmp_path: Path, number: int) -> None:
    """However the process ends, its servers end, paused or not."""
    script = Script(STARTS, str(tmp_path))
    ports = [int(port) for port in script.hear().split()]
    assert all(map(listens, ports))
    script.send(number)
    script.end()
    wait_until(lambda: not any(map(listens, ports)), "the end of all servers")


def test_a_process_that_ends_leaves_no_server(tmp_path: Path) -> None:
    """Also one that forgot to stop them."""
    script = Script(STARTS.replace("input()", "os._exit(0)"), str(tmp_path))
    ports = [int(port) for port in script.hear().split()]
    script.end()
    wait_until(lambda: not any(map(listens, ports)), "the end of all servers")


def test_a_forked_child_leaves_the_servers_to_its_parent(tmp_path: Path) -> None:
    """Its end is not theirs, and while it lives they still end with the parent."""
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
