"""Who finds no server is told soon if there is none, in time if one is silent, and always why."""

import socket
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tenure.errors import StoreUnavailable
from tests.faults.metronome import Metronome
from tests.servers import ZooKeeperServer
from tests.zookeeper.conftest import MakeMember
from tests.zookeeper.worlds import Member, World, proxied

LONG = 300.0
"""How long an operation may take that is to end long before, in seconds."""


@contextmanager
def unopened(world: World, url: str) -> Generator[Member, None, None]:
    """Make a member that is closed in the end."""
    member = Member(world, url)
    try:
        yield member
    finally:
        member.close()


def test_nobody_there(world: World) -> None:
    """Who is refused by all servers is told so, and does not wait for its time to be over."""
    with unopened(world, "zookeeper://127.0.0.1:1,127.0.0.1:2") as one:
        until = one.soon(LONG)
        refused = r"127\.0\.0\.1:1 \(connection refused\), 127\.0\.0\.1:2 \(connection refused\)"
        with pytest.raises(StoreUnavailable, match=refused):
            world.run(one.directory.open(one.notes, until))
        assert world.runtime.now() < until - LONG / 2


def test_a_name_that_is_not_known(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host is told with its own reason, also if none has an address."""
    resolve = socket.getaddrinfo

    def forget(host: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as it is
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", forget)
    for hosts in ("127.0.0.1:1,Nowhere.invalid:2", "elsewhere.invalid:1,nowhere.invalid:2"):
        with unopened(world, f"zookeeper://{hosts}") as one:
            until = one.soon(LONG)
            with pytest.raises(StoreUnavailable, match=r"nowhere\.invalid:2 \(its name is not known\)"):
                world.run(one.directory.open(one.notes, until))
            assert world.runtime.now() < until - LONG / 2


def test_a_silent_server_is_waited_for(world: World, metronome: Metronome) -> None:
    """One that may still answer is given the time that there is; then it is told what each server did."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        hosts = f"127.0.0.1:1,127.0.0.1:{silent.getsockname()[1]}"
        with unopened(world, f"zookeeper://{hosts}") as one:
            began = one.soon(0.0)
            until = began + 1.0
            with pytest.raises(StoreUnavailable, match="it takes connections, but does not answer") as caught:
                world.run(one.directory.open(one.notes, until))
            assert until <= world.runtime.now()
            assert metronome.elapsed(began) < 1.0 + 5.0
            assert hosts.rpartition(",")[2] in str(caught.value)


def test_a_server_that_hangs_up_is_waited_for(world: World, zookeeper_server: ZooKeeperServer) -> None:
    """It may be about to elect a leader."""
    with proxied(zookeeper_server) as (proxy, url):
        proxy.lose(None)
        with unopened(world, url) as one:
            until = one.soon(1.0)
            with pytest.raises(StoreUnavailable, match="it closed the connection"):
                world.run(one.directory.open(one.notes, until))
            assert world.runtime.now() >= until
            proxy.heal()
            one.open()


def test_what_is_told_is_true_now(member: MakeMember, zookeeper_server: ZooKeeperServer) -> None:
    """Who asks when a server is there again reaches it, however long it was refused before."""
    with proxied(zookeeper_server) as (proxy, url):
        one = member(url, session_timeout="60")
        session = one.directory.session()
        proxy.refuse()
        proxy.cut()
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"refused|lost"):
                one.join("now", "a1")
        proxy.heal()
        assert one.join("now", "a1").session == session
        one.close()
