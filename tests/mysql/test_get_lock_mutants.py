"""Planted bugs in the mode without a table: each is found by what the tests of that mode look at."""

from collections.abc import Sequence
from unittest.mock import Mock
from uuid import uuid4

import pytest

from tenure import Client, LockTimeout
from tenure.errors import TenureError
from tenure.stores.mysql import get_lock_sql as sql
from tests.faults.session_locks import follow_a_silent_holder
from tests.mysql.test_get_lock import holder
from tests.servers import MariaDbServer


@pytest.fixture
def name() -> str:
    """Return a name that no other test uses."""
    return uuid4().hex


@pytest.fixture
def url(mariadb_server: MariaDbServer) -> str:
    """Return the URL of the mode without a table."""
    return f"{mariadb_server.url}?mode=get_lock"


def test_a_leak_on_a_pooled_connection_is_seen(
    mariadb_server: MariaDbServer, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that frees nothing leaves a lock on a connection in the pool: IS_USED_LOCK shows it."""

    def unlock(_name: str) -> Sequence[str]:
        return "SELECT 1", sql.FORGET_TIMEOUT

    monkeypatch.setattr(sql, "unlock", unlock)
    with Client(url) as client:
        client.lock(name).acquire().release()
        assert holder(mariadb_server, name) is not None


def test_a_session_without_a_timeout_is_seen(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server's timeout, a holder that no longer renews keeps the name after its ttl."""
    follow = follow_a_silent_holder(url, name, 1, 4.0, monkeypatch)
    follow()
    monkeypatch.setattr(sql, "set_timeout", Mock(return_value=sql.FORGET_TIMEOUT))
    with pytest.raises(LockTimeout):
        follow()


def test_a_timeout_that_is_rounded_down_is_seen(
    mariadb_server: MariaDbServer, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server must not end a session before its holder gives the lease up: it counts whole seconds."""

    def timeout_of(ttl: float) -> int:
        with Client(url) as client, client.lock(name, ttl=ttl):
            return seen[-1]

    seen: list[int] = []
    real = sql.set_timeout

    def set_timeout(timeout: int) -> str:
        seen.append(timeout)
        return real(timeout)

    monkeypatch.setattr(sql, "set_timeout", set_timeout)
    for ttl in (1, 1.000001, 1.5, 2, 2.4):
        assert ttl <= timeout_of(ttl) < ttl + 1
    assert holder(mariadb_server, name) is None


def test_a_renewal_that_proves_nothing_is_seen(
    mariadb_server: MariaDbServer, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that went away while its session lives is found by a renewal, unless the renewal does not look."""

    def extend() -> None:
        with Client(url) as client:
            lease = client.lock(name, ttl=60).acquire()
            try:
                lease.extend()
            finally:
                lease.release()

    monkeypatch.setattr(sql, "holder", Mock(return_value=sql.holder("another")))
    with pytest.raises(TenureError, match="session in the database has ended"):
        extend()
    monkeypatch.setattr(sql, "holder", Mock(return_value="SELECT CONNECTION_ID(), CONNECTION_ID()"))
    extend()
    assert holder(mariadb_server, name) is None
