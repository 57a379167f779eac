"""A session is trusted for no longer than it certainly lives, whatever dies with what it heard."""

from tenure.stores.zookeeper.session import NEVER, PASSED_ON, Proofs

TIMEOUT = 30.0


def test_a_new_session_is_trusted_at_once() -> None:
    """The leader made it, so it knows of it."""
    proofs = Proofs(TIMEOUT)
    assert proofs.proved_at == NEVER
    proofs.begin(TIMEOUT, 100.0)
    assert proofs.proved_at == NEVER
    proofs.prove(101.0)
    assert proofs.proved_at == 101.0
    assert proofs.proved_at + proofs.trust < 100.0 + TIMEOUT


def test_regular_contacts_keep_a_proof_whole() -> None:
    """With contacts as far apart as they are at most, a proof counts from when it was asked for."""
    proofs = Proofs(TIMEOUT)
    proofs.begin(TIMEOUT, 0.0)
    for n in range(1, 100):
        proofs.contact(n * TIMEOUT / 6)
        proofs.prove(n * TIMEOUT / 6 + 4.9)
        assert proofs.proved_at == n * TIMEOUT / 6 + 4.9


def test_a_proof_rests_on_what_was_passed_on() -> None:
    """After a long silence the first proof counts from long ago, for its contact may die with the server."""
    proofs = Proofs(TIMEOUT)
    proofs.begin(TIMEOUT, 0.0)
    proofs.prove(25.0)
    assert proofs.proved_at + proofs.trust < TIMEOUT
    proofs.prove(25.0 + PASSED_ON)
    assert proofs.proved_at == 25.0 + PASSED_ON


def test_what_a_lost_server_heard_does_not_count() -> None:
    """After another connection, only what the leader was asked for that one."""
    proofs = Proofs(TIMEOUT)
    proofs.begin(TIMEOUT, 0.0)
    proofs.contact(20.0)
    proofs.suspend()
    proofs.prove(25.0)
    assert proofs.proved_at + proofs.trust < TIMEOUT
    proofs.resume(26.0)
    proofs.prove(26.5)
    assert proofs.proved_at == 26.5


def test_an_ended_session_proves_nothing() -> None:
    """Nor does it lend anything to the next."""
    proofs = Proofs(TIMEOUT)
    proofs.begin(TIMEOUT, 0.0)
    proofs.prove(1.0)
    proofs.end()
    assert proofs.proved_at == NEVER
    proofs.begin(4.0, 10.0)
    proofs.prove(11.0)
    assert (proofs.proved_at, proofs.trust) == (11.0, 0.49 * 4.0)
