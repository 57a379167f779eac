"""Whoever names the wrong server, or the right one by the wrong scheme, is told what to write instead."""

import re
import time

import pytest

from tenure import StoreUnavailable
from tenure.stores.quorum import node_set
from tenure.stores.redis.links.errors import to_store_error
from tenure.stores.redis.links.link import RedisAddress, ReplyError
from tests.faults.scenes import API_FORMS
from tests.servers import RedisServer, RedisTlsServer, SentinelGroup
from tests.wrong_servers import HOST, closed_port, complaint, saying, silent

LONG = 20.0
"""For how long, in seconds, a request may take that is to end long before."""

NO_TLS = r"did not answer the TLS handshake \(timed out\); write redis:// for a server without TLS"


@pytest.mark.parametrize("form", API_FORMS)
def test_a_redis_that_is_no_sentinel(redis_server: RedisServer, form: str) -> None:
    """The scheme for one server is named, and where Sentinels listen."""
    said = str(complaint(form, f"redis+sentinel://{HOST}:{redis_server.port}/mymaster", operation_timeout=LONG))
    assert f"{HOST}:{redis_server.port} is no Sentinel; write redis:// for a server" in said
    assert "port 26379 by default" in said


@pytest.mark.parametrize("form", API_FORMS)
def test_a_redis_that_is_no_cluster(redis_server: RedisServer, form: str) -> None:
    """The scheme for one server is named."""
    said = str(complaint(form, f"redis+cluster://{HOST}:{redis_server.port}", operation_timeout=LONG))
    assert "is not part of a cluster; write redis:// instead of redis+cluster://" in said


@pytest.mark.parametrize("form", API_FORMS)
def test_a_sentinel_that_is_taken_for_a_redis(redis_sentinel: SentinelGroup, form: str) -> None:
    """Its version is not blamed: the scheme for Sentinels is named."""
    host, port = redis_sentinel.addresses[0]
    said = str(complaint(form, f"redis://{host}:{port}", operation_timeout=LONG))
    assert f"{host}:{port} is a Sentinel, which keeps no locks; write redis+sentinel://{host}:{port}/" in said


@pytest.mark.parametrize("quote", ["'", "`"])
@pytest.mark.parametrize("command", ["SENTINEL", "sentinel"])
def test_a_sentinel_command_is_known_however_it_is_quoted(command: str, quote: str) -> None:
    """Versions differ in that; and a script that is not known is no sign of a Sentinel, whatever its arguments."""
    address = RedisAddress("host")
    unknown = f"ERR unknown command {quote}{{}}{quote}, with args beginning with: {quote}SENTINEL{quote}"
    assert "is no Sentinel" in str(to_store_error(address, ReplyError(unknown.format(command))))
    assert "too old or restricted" in str(to_store_error(address, ReplyError(unknown.format("EVALSHA"))))


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("shape", ["", "+cluster", "+sentinel"])
def test_a_server_that_is_silent_to_tls(form: str, shape: str) -> None:
    """As a Redis without TLS is, which waits for the end of what it takes for a command."""
    with silent() as server:
        url = f"rediss{shape}://{HOST}:{server.getsockname()[1]}{'/main' if shape == '+sentinel' else ''}"
        error = complaint(form, url, server.close)
    assert isinstance(error, StoreUnavailable)
    assert re.search(NO_TLS, str(error))


@pytest.mark.parametrize("form", API_FORMS)
def test_a_server_that_is_silent_to_all(form: str) -> None:
    """Nothing is said of TLS to who did not ask for it."""
    with silent() as server:
        error = complaint(form, f"redis://{HOST}:{server.getsockname()[1]}", server.close)
    assert "TLS handshake" not in str(error)


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize(
    ("words", "why"), [(b"HTTP/1.0 400 Bad Request\r\n\r\n", "it answered something else"), (b"", "it closed")]
)
def test_a_server_that_answers_tls_in_its_own_words(form: str, words: bytes, why: str) -> None:
    """It is told at once, and in the words of people."""
    with saying(words) as port:
        error = complaint(form, f"rediss://{HOST}:{port}", operation_timeout=60.0)
    assert re.search(
        rf"did not answer the TLS handshake \({why}.*; write redis:// for a server without TLS", str(error)
    )


@pytest.mark.parametrize("form", API_FORMS)
def test_a_certificate_that_is_not_trusted_is_no_lack_of_tls(redis_tls: RedisTlsServer, form: str) -> None:
    """It is said what to check."""
    assert re.search(
        "its certificate is not trusted; check ssl_ca_certs",
        str(complaint(form, redis_tls.url, operation_timeout=LONG)),
    )


@pytest.mark.parametrize("form", API_FORMS)
def test_a_server_that_falls_silent_after_the_handshake(redis_tls: RedisTlsServer, form: str) -> None:
    """It does speak TLS, and so nothing else is said of it."""
    certificates = redis_tls.certificates
    said = ""
    for timeout in (1.0, 4.0, LONG):  # on a busy machine the handshake itself may take one
        with saying(None, certificates.for_servers()) as port:
            url = f"rediss://localhost:{port}?ssl_ca_certs={certificates.authority}"
            said = str(complaint(form, url, operation_timeout=timeout))
        if "TLS handshake" not in said:
            break
    assert "cannot reach" in said
    assert "TLS handshake" not in said


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("last", ["localhost", "no-such-host.invalid"])
def test_a_quorum_that_is_not_there_is_told_at_once(form: str, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for who is not there; and what goes for several nodes is said once."""
    monkeypatch.setattr(
        node_set, "LAST_WORDS", LONG
    )  # each node says that it is not there, however slow the machine is
    port = closed_port()
    began = time.monotonic()
    error = complaint(form, f"redlock://{HOST}:{port},127.0.0.2:{port},{last}:{port}", operation_timeout=LONG)
    assert time.monotonic() - began < LONG, "it would have waited for that long"
    assert isinstance(error, StoreUnavailable)
    said = str(error)
    two = f"redis://{HOST}:{port}, redis://127.0.0.2:{port}"
    assert f"(redis://{HOST}:{port}" in said
    assert re.search(
        rf"of 3 nodes 0 vote, and 2 must \({two}.*: cannot reach the Redis server \(Connection refused\)", said
    )
    assert said.count("check that it runs") == 1
    assert [vote.node for vote in error.votes] == [f"redis://{host}:{port}" for host in (HOST, "127.0.0.2", last)]
    assert f"cannot reach the Redis server at {HOST}:{port} (Connection refused); check" in error.votes[0].said


@pytest.mark.parametrize("form", API_FORMS)
def test_nodes_that_are_silent_are_waited_for(form: str) -> None:
    """One that is not there may fail, and two that say nothing may still answer."""
    began = time.monotonic()
    with silent() as one, silent() as other:
        hosts = [f"{HOST}:{each.getsockname()[1]}" for each in (one, other)]

        def close() -> None:
            one.close()
            other.close()

        error = complaint(form, f"redlock://{HOST}:{closed_port()},{','.join(hosts)}", close, operation_timeout=1.0)
    assert time.monotonic() - began >= 1.0
    assert "of 3 nodes 0 vote" in str(error)
