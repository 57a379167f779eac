"""Planted bugs in the mode without a table: each is found by what the tests of that mode look at."""

from collections.abc import Callable

import pytest

from tenure import Client, LockTimeout, StoreError
from tenure.errors import TenureError
from tenure.stores.postgresql import advisory_sql
from tenure.stores.postgresql.advisory import PgLockSession
from tenure.stores.postgresql.connection import PgStatement
from tenure.stores.sql.sessions import LockKey
from tests.faults.session_locks import follow_a_silent_holder
from tests.hazards.helpers import eventually
from tests.servers import PostgresServer

LOCKS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory'"


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    """Return the URL of the mode without a table."""
    eventually(lambda: not postgres_server.execute(LOCKS), "a server without locks")
    return f"{postgres_server.url}?mode=advisory"


def altered(statement: PgStatement, old: str, new: str) -> PgStatement:
    """Return a statement with another text."""
    text = statement.text.decode()
    assert old in text
    return PgStatement(f"{statement.name.decode()}_altered", text.replace(old, new))


def test_a_leak_on_a_pooled_connection_is_seen(
    postgres_server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that frees nothing leaves a lock on a connection in the pool: `pg_locks` shows it."""
    leaking = altered(
        advisory_sql.UNLOCK, "pg_advisory_unlock($1::bigint), pg_advisory_unlock_all()", "$1::bigint > 0, ''"
    )
    monkeypatch.setattr(advisory_sql, "UNLOCK", leaking)
    with Client(url) as client:
        client.lock("name").acquire().release()
        assert postgres_server.execute(LOCKS)


def test_a_session_without_a_timeout_is_seen(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server's timeout, a holder that no longer renews keeps the name after its ttl."""
    real = advisory_sql.try_lock

    def forever(sequence: str) -> PgStatement:
        return altered(real(sequence), "set_config('idle_session_timeout', $4, false)", "$4::text")

    follow = follow_a_silent_holder(url, "name", 0.5, 2.0, monkeypatch)
    follow()
    monkeypatch.setattr(advisory_sql, "try_lock", forever)
    with pytest.raises(LockTimeout):
        follow()


def test_a_mark_that_says_nothing_is_seen(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all names had one mark, a collision of keys would look like a lock that is held."""

    def collide(mark: Callable[[str], int]) -> TenureError:
        def of(name: str) -> LockKey:
            return LockKey(name, 42, mark(name))

        monkeypatch.setattr(LockKey, "of", of)
        with (
            Client(url) as here,
            Client(url) as there,
            here.lock("one").acquire(),
            pytest.raises(TenureError) as caught,
        ):
            there.lock("two").acquire(timeout=0)
        return caught.value

    assert isinstance(collide(len), StoreError) is False  # "one" and "two" are of one length
    assert isinstance(collide(lambda name: sum(name.encode())), StoreError)


def test_a_renewal_that_proves_nothing_is_seen(
    postgres_server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that went away while its session lives is found by a renewal, unless the renewal does not look."""
    real = PgLockSession.begin_to_prolong

    def of_another_lock(session: PgLockSession, ttl: int) -> object:
        """Renew as if the lock of the session had gone away."""
        monkeypatch.setattr(session, "_key", b"7")
        try:
            return real(session, ttl)
        finally:
            monkeypatch.setattr(session, "_key", b"%d" % LockKey.of("name").number)

    monkeypatch.setattr(PgLockSession, "begin_to_prolong", of_another_lock)

    def extend() -> None:
        with Client(url) as client:
            lease = client.lock("name", ttl=60).acquire()
            try:
                lease.extend()
            finally:
                lease.release()

    with pytest.raises(TenureError, match="session in the database has ended"):
        extend()
    blind = altered(advisory_sql.PROLONG, "EXISTS (SELECT FROM", "true OR EXISTS (SELECT FROM")
    monkeypatch.setattr(advisory_sql, "PROLONG", blind)
    extend()
    eventually(lambda: not postgres_server.execute(LOCKS), "a server without locks")
