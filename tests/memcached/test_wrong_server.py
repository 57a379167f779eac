"""Whoever names something else than a memcached server that keeps locks is told what to write or to change instead."""

import asyncio
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tenure import AsyncClient, Client, StoreError, StoreUnavailable
from tests.memcached.scenes import both_forms
from tests.servers import MemcachedServer, RedisServer
from tests.wrong_servers import HOST, closed_port, complaint, saying, silent


@both_forms
def test_nobody_listens(form: str) -> None:
    """The error names the server, and says that its names go nowhere else."""
    error = complaint(form, f"memcached://{HOST}:{closed_port()}")
    assert isinstance(error, StoreUnavailable)
    assert "Connection refused" in str(error)
    assert "check that it runs" in str(error)


@both_forms
def test_a_silent_server(form: str) -> None:
    """It took the connection, and does not answer."""
    with silent() as server:
        error = complaint(form, f"memcached://{HOST}:{server.getsockname()[1]}", server.close, operation_timeout=0.2)
    assert "took the connection and did not answer in time" in str(error)


@both_forms
def test_a_redis_server(form: str, redis_server: RedisServer) -> None:
    """It answers in its own words, of which the error quotes some."""
    error = complaint(form, f"memcached://{HOST}:{redis_server.port}", operation_timeout=60.0)
    assert not isinstance(error, StoreUnavailable)
    assert "does not answer as memcached does (it says" in str(error)


@both_forms
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "does not answer as memcached does"),
        (b"", "closed the connection without an answer"),
        (b"ERROR\r\n", "must be memcached 1.6.10 or newer, and not a proxy"),
        (b"CLIENT_ERROR unauthenticated\r\n", "requires a login"),
        (b"x" * 5000, "does not answer as memcached does"),
    ],
)
def test_a_server_with_words_of_its_own(form: str, words: bytes, why: str) -> None:
    """Each is told apart."""
    with saying(words) as port:
        assert why in str(complaint(form, f"memcached://{HOST}:{port}", operation_timeout=60.0))


@both_forms
def test_a_server_without_cas_values(form: str, tmp_path: Path) -> None:
    """No lock of it would be safe."""
    with MemcachedServer(tmp_path, options=["-C"]) as server:
        assert "runs with -C" in str(complaint(form, server.url, operation_timeout=60.0))


def test_a_server_that_cannot_list(tmp_path: Path) -> None:
    """It keeps locks all the same; only `names` fails."""
    with MemcachedServer(tmp_path, options=["-o", "no_lru_crawler"]) as server, Client(server.url) as client:
        with client.lock("name"), pytest.raises(StoreError, match="without `-o no_lru_crawler`"):
            client.names()

        async def scene() -> None:
            async with AsyncClient(server.url) as other, other.lock("name"):
                with pytest.raises(StoreError, match="without `-o no_lru_crawler`"):
                    await other.names()
                assert (await other.inspect("name")).holders

        asyncio.run(scene())


def test_a_listing_that_takes_too_long_is_told() -> None:
    """A server that goes on naming items does not keep a caller."""
    with closing(socket.create_server((HOST, 0))) as server:

        def serve() -> None:
            taken, _ = server.accept()
            with taken:
                taken.recv(65_536)
                taken.sendall(b"STAT pid 1\r\nSTAT uptime 1\r\nSTAT time 9\r\nEND\r\n")
                taken.recv(65_536)
                taken.sendall(b"END\r\n")
                taken.recv(65_536)
                taken.sendall(b"key=other exp=1\n" * 10)
                taken.recv(65_536)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"memcached://{HOST}:{server.getsockname()[1]}"
        with Client(url, operation_timeout=0.3) as client, pytest.raises(StoreUnavailable, match="name its items"):
            client.names()
        thread.join(10.0)
