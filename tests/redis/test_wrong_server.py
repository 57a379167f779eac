"""Whoever names the wrong server, or the right one by the wrong scheme, is told what to write instead."""

import re

import pytest

from holdfast import StoreUnavailable
from holdfast.stores.redis.link import Address, ReplyError
from holdfast.stores.redis.trouble import explain
from holdfast.testing.servers import RedisServer, RedisTlsServer
from tests.faults.scenes import COLOURS
from tests.wrong_servers import HOST, complaint, saying, silent

NO_TLS = r"did not answer the TLS handshake \(timed out\); write redis:// for a server without TLS"


@pytest.mark.parametrize("colour", COLOURS)
def test_a_redis_that_is_no_sentinel(redis_server: RedisServer, colour: str) -> None:
    """The scheme for one server is named, and where Sentinels listen."""
    said = str(complaint(colour, f"redis+sentinel://{HOST}:{redis_server.port}/mymaster"))
    assert f"{HOST}:{redis_server.port} is no Sentinel; write redis:// for a server" in said
    assert "port 26379 by default" in said


@pytest.mark.parametrize("colour", COLOURS)
def test_a_redis_that_is_no_cluster(redis_server: RedisServer, colour: str) -> None:
    """The scheme for one server is named."""
    said = str(complaint(colour, f"redis+cluster://{HOST}:{redis_server.port}"))
    assert "is not part of a cluster; write redis:// instead of redis+cluster://" in said


@pytest.mark.parametrize("quote", ["'", "`"])
@pytest.mark.parametrize("command", ["SENTINEL", "sentinel"])
def test_a_sentinel_command_is_known_however_it_is_quoted(command: str, quote: str) -> None:
    """Versions differ in that; and a script that is not known is no sign of a Sentinel, whatever its arguments."""
    address = Address("host")
    unknown = f"ERR unknown command {quote}{{}}{quote}, with args beginning with: {quote}SENTINEL{quote}"
    assert "is no Sentinel" in str(explain(address, ReplyError(unknown.format(command))))
    assert "too old or restricted" in str(explain(address, ReplyError(unknown.format("EVALSHA"))))


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("shape", ["", "+cluster", "+sentinel"])
def test_a_server_that_is_silent_to_tls(colour: str, shape: str) -> None:
    """As a Redis without TLS is, which waits for the end of what it takes for a command."""
    with silent() as server:
        url = f"rediss{shape}://{HOST}:{server.getsockname()[1]}{'/main' if shape == '+sentinel' else ''}"
        error = complaint(colour, url, server.close)
    assert isinstance(error, StoreUnavailable)
    assert re.search(NO_TLS, str(error))


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_is_silent_to_all(colour: str) -> None:
    """Nothing is said of TLS to who did not ask for it."""
    with silent() as server:
        error = complaint(colour, f"redis://{HOST}:{server.getsockname()[1]}", server.close)
    assert "TLS handshake" not in str(error)


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("words", "why"), [(b"HTTP/1.0 400 Bad Request\r\n\r\n", "it answered something else"), (b"", "it closed")]
)
def test_a_server_that_answers_tls_in_its_own_words(colour: str, words: bytes, why: str) -> None:
    """It is told at once, and in the words of people."""
    with saying(words) as port:
        error = complaint(colour, f"rediss://{HOST}:{port}", operation_timeout=60.0)
    assert re.search(
        rf"did not answer the TLS handshake \({why}.*; write redis:// for a server without TLS", str(error)
    )


@pytest.mark.parametrize("colour", COLOURS)
def test_a_certificate_that_is_not_trusted_is_no_lack_of_tls(redis_tls: RedisTlsServer, colour: str) -> None:
    """It is said what to check."""
    assert re.search("its certificate is not trusted; check ssl_ca_certs", str(complaint(colour, redis_tls.url)))


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_falls_silent_after_the_handshake(redis_tls: RedisTlsServer, colour: str) -> None:
    """It does speak TLS, and so nothing else is said of it."""
    certificates = redis_tls.certificates
    with saying(None, certificates.for_servers()) as port:
        error = complaint(colour, f"rediss://localhost:{port}?ssl_ca_certs={certificates.authority}")
    assert "cannot reach" in str(error)
    assert "TLS handshake" not in str(error)
