"""A URL that names the wrong server, database or user: one sentence, and no secret."""

import logging
import traceback

import pytest

from tenure import Client, StoreError, StoreUnavailable, UsageError
from tests.faults.scenes import API_FORMS
from tests.postgresql.servers import url_at
from tests.servers import PostgresServer, RedisServer
from tests.wrong_servers import HOST, complaint, saying, silent

SECRET = "Zx7-hidden"  # noqa: S105 - of a user of these tests


def assert_told(error: BaseException, *words: str) -> None:
    """Check what the error says, and that it and its causes contain no secret."""
    for word in words:
        assert word in str(error)
    whole = "".join(traceback.format_exception(error)) + repr(error)
    assert SECRET not in whole
    assert "\n" not in str(error)


@pytest.mark.parametrize("form", API_FORMS)
def test_a_wrong_login_is_reported_at_once(postgres_server: PostgresServer, form: str) -> None:
    """A wrong password, an unknown user and an unknown database are no outages."""
    name = f"login_{form}"
    postgres_server.create_user(name, "right")
    host, port = postgres_server.address
    error = complaint(form, f"postgresql://{name}:{SECRET}@{host}:{port}/postgres")
    assert type(error) is StoreError
    assert_told(error, "password authentication failed", "check the user and the password", f"{host}:{port}")
    error = complaint(form, f"postgresql://nobody:{SECRET}@{host}:{port}/postgres")
    assert type(error) is StoreError
    assert_told(error, "28P01")
    error = complaint(form, url_at((host, port), database="absent"))
    assert type(error) is StoreError
    assert_told(error, 'database "absent" does not exist', "create the database")


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"-ERR unknown command\r\n", b"", b"N", b"S"])
def test_another_server_is_named(form: str, words: bytes) -> None:
    """Whatever another program says at the port, the error names the address and what to check."""
    with saying(words) as port:
        error = complaint(form, f"postgresql://me:{SECRET}@{HOST}:{port}/d")
    assert isinstance(error, StoreUnavailable)
    assert_told(error, f"{HOST}:{port}", "check")


@pytest.mark.parametrize("form", API_FORMS)
def test_a_redis_server_is_not_taken_for_it(redis_server: RedisServer, form: str) -> None:
    """A Redis server at the port is named."""
    host, port = redis_server.address
    error = complaint(form, f"postgresql://me:{SECRET}@{host}:{port}/d", operation_timeout=0.3)
    assert_told(error, f"{host}:{port}", "check")


@pytest.mark.parametrize("form", API_FORMS)
def test_a_silent_server_and_nobody_are_told(form: str, closed_port: int) -> None:
    """A host that does not answer ends the acquisition in time, and one where nobody listens at once."""
    with silent() as server:
        port = server.getsockname()[1]
        error = complaint(form, f"postgresql://me:{SECRET}@{HOST}:{port}/d", operation_timeout=0.1)
        assert_told(error, f"{HOST}:{port}", "timed out")
    error = complaint(form, f"postgresql://me:{SECRET}@{HOST}:{closed_port}/d")
    assert_told(error, f"{HOST}:{closed_port} (Connection refused); check that it runs")


@pytest.mark.parametrize("form", API_FORMS)
def test_a_missing_certificate_is_one_sentence(postgres_server: PostgresServer, form: str) -> None:
    """TLS settings that the machine or the server does not have are told by the store's own errors."""
    for query in ("?sslmode=require", "?sslmode=verify-full&sslrootcert=/absent/ca.pem"):
        error = complaint(form, url_at(postgres_server.address, query))
        assert_told(error, "127.0.0.1", "check the options of the URL that begin with ssl")


BAD = (
    f"postgresql://me:{SECRET}@h:5432/a/b",
    f"postgresql://me:{SECRET}@h:99999/d",
    f"postgresql://me:{SECRET}@h:1:2/d",
    f"postgresql://me:{SECRET}@h/d?shema=x",
    f"postgresql://me:{SECRET}@h/d?schema=x-y",
    f"postgresql://me:{SECRET}@h/d?prefix=1",
    f"postgresql://me:{SECRET}@h/d?connections=0",
    f"postgresql://me:{SECRET}@h/d?max_ttl=0",
    f"postgresql://me:{SECRET}@h/d?max_ttl=nan",
    f"postgresql://me:{SECRET}@h/d?guard=maybe",
    f"postgresql://me:{SECRET}@h/d?sslmode=perhaps",
    f"postgresql://me:{SECRET}@h/d?target_session_attrs=standby",
    f"postgresql://me:{SECRET}@h/d?host=relative",
    f"postgresql://me:{SECRET}@h/d?port=5",
    f"postgresql://me:{SECRET}@/d?host=/tmp&port=x",
    f"postgresql://me:{SECRET}@h/d?connect_timeout={SECRET}",
    f"postgresql://me:{SECRET}@h/d#x",
    f"postgresql://me:a/{SECRET}@h/d",
)


@pytest.mark.parametrize("url", BAD)
def test_a_bad_url_is_refused(url: str) -> None:
    """The error says what is allowed, and nothing of the login."""
    with pytest.raises(UsageError) as caught:
        Client(url)
    assert SECRET not in str(caught.value)
    assert str(caught.value).endswith((".", "?"))


def test_no_representation_has_a_secret(postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a client, nor its errors, nor the log repeat the password of the URL, in whatever form it is given."""
    caplog.set_level(logging.DEBUG)
    host, port = postgres_server.address
    for url in (
        f"postgresql://me:{SECRET}@{host}:{port}/postgres",
        f"postgresql://{host}:{port}/postgres?user=me&password={SECRET}",
    ):
        with Client(url, retry_for=0) as client:
            assert SECRET not in repr(client) + repr(client.lock("name"))
            with pytest.raises(StoreError) as caught:
                client.lock("name").acquire()
        assert_told(caught.value)
    assert SECRET not in caplog.text
