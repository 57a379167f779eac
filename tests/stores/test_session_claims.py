"""The session of a lock is used by one thread at a time, and whoever finds it in use waits for it."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenure import Client, LeaseLost, Outcome
from tenure.stores.mysql.get_lock import MySqlLockSession
from tenure.stores.postgresql.advisory import PgLockSession
from tenure.stores.sql.held_locks import HeldLock, HeldLocks

TTL = 60.0
LONG = 30.0

Session = type[PgLockSession] | type[MySqlLockSession]


@pytest.fixture(params=["advisory", "get_lock"])
def kind(request: pytest.FixtureRequest) -> tuple[str, Session]:
    """Return the URL of a database in the mode without a table, and the class of its sessions."""
    if request.param == "advisory":
        return f"{request.getfixturevalue('postgres_server').url}?mode=advisory", PgLockSession
    return f"{request.getfixturevalue('mariadb_server').url}?mode=get_lock", MySqlLockSession


@pytest.fixture
def client(kind: tuple[str, Session]) -> Iterator[Client]:
    """Return a client."""
    with Client(kind[0]) as client:
        yield client


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when somebody found a session in use."""
    refused = threading.Event()
    claim = HeldLocks.try_to_claim

    def watched(locks: HeldLocks, held: HeldLock, operation: object) -> bool:
        got = claim(locks, held, operation)
        if not got:
            refused.set()
        return got

    monkeypatch.setattr(HeldLocks, "try_to_claim", watched)
    return refused


def paused(method: Callable[..., object], goes_on: threading.Event, began: threading.Event) -> Callable[..., object]:
    """Return a method that stands still, the first time, until it may go on."""

    def stand_still(*args: object) -> object:
        if not began.is_set():
            began.set()
            assert goes_on.wait(LONG)
        return method(*args)

    return stand_still


def test_a_renewal_waits_for_the_watch(
    kind: tuple[str, Session], client: Client, refused: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that is extended while the watch looks at its session is extended."""
    looking = threading.Event()
    monkeypatch.setattr(kind[1], "has_ended", paused(kind[1].has_ended, refused, looking))
    lease = client.lock("looked at", ttl=TTL).acquire()
    assert looking.wait(LONG)
    assert lease.extend() > TTL / 2
    assert refused.is_set()
    assert lease.release() is Outcome.RELEASED


def test_a_renewal_that_waited_for_a_release_finds_the_lease_over(
    kind: tuple[str, Session], client: Client, refused: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither renews nor closes the session, which holds another lock by then."""
    lease = client.lock("released", ttl=TTL).acquire()
    releasing = threading.Event()
    monkeypatch.setattr(kind[1], "unlock", paused(kind[1].unlock, refused, releasing))
    with ThreadPoolExecutor(1) as pool:
        released = pool.submit(lease.release)
        assert releasing.wait(LONG)
        with pytest.raises(LeaseLost):
            lease.extend()
        assert released.result(LONG) is Outcome.RELEASED
    following = client.lock("another", ttl=TTL).acquire()
    following.extend()
    assert following.release() is Outcome.RELEASED
