"""Whoever names an etcd server by the wrong scheme, or something else, is told what to write instead."""

import re
from pathlib import Path

import pytest

from tenure import StoreUnavailable
from tenure.stores.etcd.errors import unanswered
from tenure.transport.link import ServerAddress
from tests.faults.scenes import API_FORMS
from tests.servers import Certificates, EtcdServer
from tests.wrong_servers import HOST, complaint, saying, silent

NO_TLS = r"did not answer the TLS handshake \({}\); write etcd:// for a server without TLS"


@pytest.mark.parametrize("form", API_FORMS)
def test_a_server_that_is_silent_to_tls(form: str) -> None:
    """It is said what it did not answer."""
    with silent() as server:
        error = complaint(form, f"etcds://{HOST}:{server.getsockname()[1]}", server.close)
    assert isinstance(error, StoreUnavailable)
    assert re.search(NO_TLS.format("timed out"), str(error))


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize(
    ("words", "why"), [(b"HTTP/1.0 400 Bad Request\r\n\r\n", "it answered something else"), (b"", "it closed the .*")]
)
def test_a_server_that_answers_tls_in_its_own_words(form: str, words: bytes, why: str) -> None:
    """It is told at once, and in the words of people."""
    with saying(words) as port:
        assert re.search(NO_TLS.format(why), str(complaint(form, f"etcds://{HOST}:{port}", operation_timeout=60.0)))


@pytest.mark.parametrize("form", API_FORMS)
def test_an_etcd_without_tls(etcd_server: EtcdServer, form: str) -> None:
    """Which closes the connection."""
    error = complaint(form, f"etcds://{HOST}:{etcd_server.port}", operation_timeout=60.0)
    assert re.search(NO_TLS.format("it closed the connection"), str(error))


@pytest.mark.parametrize("form", API_FORMS)
def test_an_etcd_with_tls(tmp_path: Path, form: str) -> None:
    """Which closes the connection before it has said a word."""
    with EtcdServer(tmp_path / "etcd", certificates=Certificates(tmp_path / "certificates")) as server:
        assert re.search(
            "without a reply; write etcds:// if it requires TLS",
            str(complaint(form, f"etcd://{HOST}:{server.port}", operation_timeout=60.0)),
        )
        assert re.search("is not trusted", str(complaint(form, server.url, operation_timeout=60.0)))


def test_tls_is_not_mentioned_to_who_has_been_answered_without_it() -> None:
    """Nor where a connection ends for another reason."""
    address = ServerAddress("host", 2379)
    assert "etcds" not in str(unanswered(address, ConnectionResetError("closed")))
    assert "etcds" not in str(unanswered(address, TimeoutError(), plain=True))
    assert "etcds" in str(unanswered(address, ConnectionResetError("closed"), plain=True))
