"""Leases of an ordered store that linger or are handed off in one client: the tokens, the session, the lock delay."""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tenure import Client, Lease, LeaseLost, Lock, Outcome
from tenure.core.lease import PART, CoreLease, Grant
from tenure.core.local_queue import LocalQueue, LocalQueues
from tenure.stores.ordered import Entry, Kind, acquiring
from tenure.stores.ordered.granting import decide
from tenure.stores.ordered.renewing import SessionTrust
from tests.ordered.model import TRUST, SharedEnsemble, model_source
from tests.servers.waiting import ServerFailedError, wait_until
from tests.simulated.mutants import replaced

LONG = 600.0


class World:
    """Clients of one ensemble."""

    def __init__(self) -> None:
        self.ensemble = SharedEnsemble()
        self.clients: list[Client] = []

    def client(self) -> Client:
        """Return another client."""
        self.clients.append(Client(store=model_source(self.ensemble)))
        return self.clients[-1]

    def kinds(self) -> list[Kind]:
        """Return the kinds of the entries of the name, in order."""
        return [entry.kind for entry in self.ensemble.listing("name").entries]

    def end_session(self) -> None:
        """End the session of the holder, as an ensemble does that has not heard of it."""
        [holder] = decide([kept.entry for kept in self.ensemble.names["name"]]).holders
        self.ensemble.end(holder.session)


@contextmanager
def world() -> Generator[World]:
    """Yield a world, and close its clients."""
    made = World()
    try:
        yield made
    finally:
        for client in made.clients:
            client.close()


def hand_off(client: Client, lock: Lock, lease: Lease) -> Lease:
    """Release a lease while another thread of its client waits, and return what that thread acquires."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock.acquire, timeout=20)
        wait_until(lambda: len(client.inspect("name").waiters) == 1, "a local waiter")
        assert lease.release() is Outcome.RELEASED
        return waiting.result()


def test_a_range_is_used_up_before_the_next_request() -> None:
    """Each lease has the next token; after the last of a range, the client asks the store, which gives a new one."""
    with world() as here:
        lock = here.client().lock("name", linger=LONG)
        tokens: list[int] = []
        for _ in range(1030):
            with lock as lease:
                tokens.append(lease.token)
        assert tokens == sorted(set(tokens))
        first = tokens[0]
        assert first % 1024 == 0
        assert tokens[:1024] == list(range(first, first + 1024))
        assert tokens[1024] % 1024 == 0
        assert tokens[1024:] == list(range(tokens[1024], tokens[1024] + 6))


def long_leases_are_handed_off() -> None:
    """Check that a lease with a ttl beyond its session lingers and is handed off, and is trusted for no longer."""
    with world() as here:
        client = here.client()
        lock = client.lock("name", ttl=20 * TRUST, linger=LONG)
        first = lock.acquire()
        assert first.release() is Outcome.RELEASED
        second = lock.acquire()
        assert second.token == first.token + 1
        assert 0.0 < second.remaining() <= TRUST
        third = hand_off(client, lock, second)
        assert third.token == first.token + 2
        assert 0.0 < third.remaining() <= TRUST


def test_a_lease_longer_than_its_session_is_handed_off() -> None:
    """What the store granted counts, not the ttl; and no lease is trusted for longer than the session."""
    long_leases_are_handed_off()


def a_fourth_of_the_ttl(self: Grant) -> float:
    """Demand a fourth of the ttl, whatever the store granted."""
    return self.request.ttl * PART


def trust_for_ever(self: SessionTrust, entry: Entry, sent: float) -> int:
    """Trust a session whatever it proved."""
    return 10**12


@pytest.mark.parametrize(
    "plant",
    [
        replaced(Grant, "enough", a_fourth_of_the_ttl),
        replaced(SessionTrust, "trusted", trust_for_ever),
    ],
    ids=["a fourth of the ttl must be left", "the session is not looked at"],
)
def test_a_long_lease_that_is_taken_wrong_is_found(plant: Callable[[], AbstractContextManager[Any]]) -> None:
    """The test above finds each of these planted bugs."""
    with plant(), pytest.raises(AssertionError):
        long_leases_are_handed_off()


@pytest.mark.parametrize("lingers", [True, False])
def test_no_lease_outlives_its_session(lingers: bool) -> None:
    """A lease that lingers is not taken up after the end of the session, and a lease that was handed off is lost."""
    with world() as here:
        client = here.client()
        lock = client.lock("name", linger=LONG)
        first = lock.acquire()
        lease = hand_off(client, lock, first)
        assert lease.token == first.token + 1
        if lingers:
            lease.release()
        here.end_session()
        if not lingers:
            assert lease.lost.wait(10)
            with pytest.raises(LeaseLost):
                lease.check()
        with lock as again:
            assert again.token // 1024 > lease.token // 1024


def test_a_lock_delay_is_that_of_the_one_entry() -> None:
    """Hand-offs add nothing to it; a release ends it; it begins when the session of a handed-off lease ends."""
    with world() as here:
        client, other = here.client(), here.client()
        lock = client.lock("name", linger=LONG, lock_delay=LONG)
        first = lock.acquire()
        lease = hand_off(client, lock, first)
        assert lease.token == first.token + 1
        assert here.kinds() == [Kind.CONTENDER, Kind.BLOCK]
        lease.release()
        assert here.kinds() == [Kind.CONTENDER, Kind.BLOCK], "it lingers"
        theirs = other.lock("name").acquire(timeout=10)
        assert here.kinds() == [Kind.CONTENDER], "the linger ended with a release"
        theirs.release()
        again = lock.acquire()
        handed_off = hand_off(client, lock, again)
        here.end_session()
        assert handed_off.lost.wait(10)
        assert other.lock("name").try_acquire() is None
        assert other.inspect("name").blocked_for > LONG / 2


def a_waiter_ends_the_linger(within: float = 30.0) -> None:
    """Check that a lease lingers until another waits: another client, or this client with another ttl."""
    with world() as here:
        client, other = here.client(), here.client()
        lock = client.lock("name", linger=LONG)
        first = lock.acquire()
        first.release()
        assert other.lock("name").try_acquire() is None, "the name is held"
        wait_until(lambda: not here.kinds(), "the end of the linger", within)
        for another in (other.lock("name"), client.lock("name", ttl=77.0)):
            lease = lock.acquire()
            lease.release()
            theirs = another.acquire(timeout=5.0)  # the waiter sends one request, and no lease is renewed by then
            assert theirs.token // 1024 > lease.token // 1024
            theirs.release()


def test_a_waiter_ends_the_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lingering lease keeps nobody waiting."""
    monkeypatch.setattr(acquiring, "RETRY", LONG)
    monkeypatch.setattr(acquiring, "LONGEST_RETRY", LONG)
    a_waiter_ends_the_linger()


def note_nothing(self: LocalQueues, lease: CoreLease) -> None:
    """Take no note of a waiter."""


def end_nothing(self: LocalQueues, local_queue: LocalQueue, lease: CoreLease | None = None) -> None:
    """End no linger."""


@pytest.mark.parametrize(
    "plant",
    [
        replaced(LocalQueues, "contended", note_nothing),
        replaced(LocalQueues, "end_lingering", end_nothing),
    ],
)
def test_a_linger_that_is_not_ended_is_found(plant: Callable[[], AbstractContextManager[Any]]) -> None:
    """The test above finds each of these planted bugs."""
    with plant(), pytest.raises(ServerFailedError, match=r"the end of the linger"):
        a_waiter_ends_the_linger(within=0.5)


def test_primitives_without_a_local_queue_reserve_one_token() -> None:
    """A semaphore, a reader/writer lock and a lock with `min_hold` never hand off, so their holders hear nothing."""
    with world() as here:
        client = here.client()
        for hold in (
            client.semaphore("name", 2),
            client.rwlock("name").write(),
            client.rwlock("name").read(),
            client.lock("name", min_hold=0.001),
        ):
            with hold as lease:
                assert lease.token % 1024 == 0
                [entry] = [each for each in here.ensemble.listing("name").entries if each.kind is Kind.CONTENDER]
                assert entry.token == lease.token
            wait_until(lambda: other_can_acquire(here), "the end of min_hold")


def other_can_acquire(here: World) -> bool:
    """Return whether another client is granted the name at once."""
    lease = here.clients[0].lock("name").try_acquire()
    return lease is not None and lease.release() is Outcome.RELEASED
