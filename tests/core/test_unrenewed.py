"""Leases with `renew=False`: only `extend` moves their end."""

import asyncio
import gc
import warnings
from collections.abc import Callable

import pytest

from tenure import AsyncClient, Client, LeaseLost, Outcome, UsageError
from tenure.core import release_all
from tenure.core.attempt import Attempt
from tenure.core.lease import CoreLease
from tenure.core.session import Session
from tests import virtual
from tests.planting import module_with, planted


def test_it_is_never_renewed_and_extend_moves_its_end_either_way() -> None:
    """At the new end, be it earlier, another gets the name at once; a shorter extension is no loss before."""

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source) as client, AsyncClient(store=source) as other:
            clock = asyncio.get_running_loop().time
            began = clock()
            lease = await client.lock("n", ttl=10, renew=False).acquire()
            await (await other.lock("n", timeout=60).acquire()).release()
            assert 9.8 < clock() - began < 10.1
            assert lease.lost.is_set()
            with pytest.raises(LeaseLost, match="nothing has extended it"):
                lease.check()

            lease = await client.lock("n", ttl=10, renew=False).acquire()
            assert await lease.extend(30) > 28
            assert 3.9 < await lease.extend(4) <= 4
            began = clock()
            await (await other.lock("n", timeout=60).acquire()).release()
            assert 3.8 < clock() - began < 4.1
            assert await lease.release() is Outcome.EXPIRED

    virtual.run(main)


def test_a_waiter_gets_the_whole_ttl() -> None:
    """The grant is pushed, and a lease that is not renewed counts from a request after it."""

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source) as client, AsyncClient(store=source) as other:
            held = await other.lock("n").acquire()
            waiting = asyncio.create_task(client.lock("n", ttl=10, renew=False).acquire())
            await asyncio.sleep(0.7)
            await held.release()
            assert (await waiting).remaining() > 9.8

    virtual.run(main)


def test_a_missed_notification_confirms_it_without_prolonging_it() -> None:
    """A connection that came back makes the client ask for all its leases: none may last longer than it was to."""

    async def main() -> None:
        async with AsyncClient(store=virtual.source()) as client:
            lease = await client.lock("n", ttl=10, renew=False).acquire()
            before = lease.remaining()
            session = client.session()
            session.renewer.hurry(0.05)
            await asyncio.sleep(5)
            assert lease._core.failures == 0
            assert before - 5.2 < lease.remaining() <= before - 5
            (holder,) = (await client.inspect("n")).holders
            assert holder.expires_in < 5.2

    virtual.run(main)


def test_neither_a_dropped_object_nor_the_end_of_the_client_ends_it() -> None:
    """As a key with a time to live: "at most once a minute" needs nobody who keeps the lease."""
    with Client("memory://unrenewed") as other:
        with Client("memory://unrenewed") as client, warnings.catch_warnings():
            warnings.simplefilter("error")
            assert client.lock("n", ttl=60, renew=False).try_acquire() is not None
            gc.collect()
        assert other.lock("n").try_acquire() is None


def test_a_waiter_of_a_lease_that_ends_by_itself_is_no_self_deadlock() -> None:
    """Not even inside its own `with`."""
    with Client("memory://", ttl=0.2) as client:
        lock = client.lock("n", renew=False)
        with pytest.raises(LeaseLost), lock:
            lock.acquire().release()


def test_what_needs_renewals_is_refused() -> None:
    """A lingering lease is renewed, and an adopter would renew."""
    with Client("memory://") as client:
        with pytest.raises(UsageError, match="linger and renew=False"):
            client.lock("n", linger=1, renew=False)
        with client.lock("n", renew=False) as lease, pytest.raises(UsageError, match="renew=False"):
            lease.detach()
        with pytest.raises(UsageError, match="give renew=False"):
            client.lock("n", auto_renewal=False)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


# -- planted bugs ------------------------------------------------------------------------------------------

MOVES, WHOLE, MISSED = (
    test_it_is_never_renewed_and_extend_moves_its_end_either_way,
    test_a_waiter_gets_the_whole_ttl,
    test_a_missed_notification_confirms_it_without_prolonging_it,
)

BUGS: list[tuple[type, str, str, str, Callable[[], None]]] = [
    (Attempt, "_enter", "lease.renews = False", "pass", MOVES),
    (CoreLease, "renewed", "until if exact else max(self.kept_until, ", "max(self.kept_until, ", MOVES),
    (Session, "renew_now", "exact=not lease.renews", "exact=False", MOVES),
    (Session, "renew_now", "lease.ends_early and", "False and", MOVES),
    (Attempt, "_wait_for_push", "and self.spec.renew", "", WHOLE),
    (CoreLease, "background_renewal", "if self.renews", "if True", MISSED),
]


@pytest.mark.parametrize("bug", range(len(BUGS)))
def test_a_planted_bug_is_found(bug: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one that a change could bring in."""
    owner, method, right, wrong, test = BUGS[bug]
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    with pytest.raises(BaseException):  # noqa: B017, PT011 - pytest's own failures are no Exception
        test()


def test_a_planted_bug_at_the_end_of_the_client_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the release of all leases."""
    wrong = module_with(release_all, (" if lease.renews or lease.dropped", ""))
    monkeypatch.setattr("tenure.core.session.release_all_kept", wrong.release_all_kept)
    with pytest.raises(AssertionError):
        test_neither_a_dropped_object_nor_the_end_of_the_client_ends_it()
