"""A machine that is gone is noticed as soon by every kind of connection to every server."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tenure import AsyncClient, Client
from tenure.transport.keep_alive import DEAD_AFTER, keep_alive, keep_transport_alive
from tests.servers import EtcdServer, RedisServer

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has this option")


def dead_after(connected: Any) -> int:  # noqa: ANN401 - a socket, or what an event loop shows of one
    """Return after how long probes find out that the other end is gone; 0 if there are none."""
    idle, interval, probes, limit = (
        connected.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    )
    assert limit in {0, 1000 * DEAD_AFTER}
    return idle + interval * probes if connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) and limit else 0


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return a list of what applies to each socket once it is closed, if it was connected to a server."""
    found: list[int] = []

    def close(sock: socket.socket) -> None:
        if sock.fileno() >= 0 and sock.family == socket.AF_INET and is_connected(sock):
            found.append(dead_after(sock))
        original(sock)

    original = socket.socket.close
    monkeypatch.setattr(socket.socket, "close", close)
    yield found
    assert found


def is_connected(sock: socket.socket) -> bool:
    """Tell whether a socket has, or had, another end."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0 and sock.type == socket.SOCK_STREAM


def test_a_tcp_connection() -> None:
    """Probes find it out, and so does what remains unacknowledged."""
    with socket.socket() as connected:
        assert dead_after(connected) == 0
        keep_alive(connected)
        assert dead_after(connected) == DEAD_AFTER


def test_a_unix_socket() -> None:
    """Nothing is done: its other end is on the same machine."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        keep_alive(ours)
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


def test_an_event_loop_that_hides_its_sockets() -> None:
    """Nothing is done, and nothing fails."""
    keep_transport_alive(asyncio.Transport())


@pytest.fixture(params=["redis_server", "etcd_server"])
def url(request: pytest.FixtureRequest, redis_server: RedisServer, etcd_server: EtcdServer) -> str:
    """Return the URL of a running server."""
    servers: dict[str, RedisServer | EtcdServer] = {"redis_server": redis_server, "etcd_server": etcd_server}
    return str(servers[request.param].url)


class TestStores:
    """All connections of a store, those for requests and those on which it listens, notice it after the same time."""

    def test_of_threads(self, url: str, kept: list[int]) -> None:
        """They are sockets of the client's own."""
        with Client(url) as client, client.lock("keep alive"):
            pass
        assert set(kept) == {DEAD_AFTER}

    def test_of_tasks(self, url: str, kept: list[int]) -> None:
        """They are sockets of the event loop."""

        async def use() -> None:
            client = AsyncClient(url)
            async with client.lock("keep alive"):
                pass
            await client.close()

        asyncio.run(use())
        assert set(kept) == {DEAD_AFTER}
