"""What a client does with min_hold, downgrades and revocation requests."""

import asyncio
import gc
import logging
import threading
from itertools import pairwise

import pytest

from tenure import AsyncClient, AsyncLease, Client, Lease, LeaseLost, UsageError
from tenure.contracts.deadlines import DRIFT
from tenure.contracts.messages import AdjustRequest, ReleaseRequest, RenewReply
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.errors import StoreUnavailable
from tenure.outcome import Outcome
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, soon


@pytest.fixture
def table() -> MemoryTable:
    """Return a table of its own."""
    return MemoryTable()


# -- min_hold ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ttl": 5, "min_hold": 6}, "the lease of a holder that dies would end before"),
        ({"ttl": 5, "min_hold": 2, "max_hold": 1}, "max_hold=1"),
        ({"ttl": 5, "min_hold": -1}, "min_hold must be a number of seconds"),
        ({"ttl": 5, "min_hold": 1, "linger": 1}, "exclude each other"),
    ],
)
def test_a_min_hold_that_cannot_be_kept_is_refused(table: MemoryTable, options: dict[str, float], said: str) -> None:
    """The min_hold may not exceed the ttl of the lease, nor max_hold."""
    with Client(store=memory_source(table)) as client, pytest.raises(UsageError, match=said):
        client.lock("name", **options)  # type: ignore[arg-type, type-var]  # pyright: ignore[reportArgumentType]


class _Released(MemoryStore):
    """A memory store that records releases."""

    releases: list[ReleaseRequest]

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Record a release."""
        self.releases.append(release)
        return await super().release(release, until)


def _noting(table: MemoryTable, releases: list[ReleaseRequest]) -> StoreSource:
    def make(runtime: Runtime) -> MemoryStore:
        store = _Released(runtime, table)
        store.releases = releases
        return store

    return StoreSource("noting", MemoryStore.capabilities, make)


def test_what_is_left_of_min_hold_is_kept() -> None:
    """A release keeps the name for the rest of min_hold since the grant, counted so that it is never free too early."""
    releases: list[ReleaseRequest] = []
    with virtual.stopped_clock() as clock, Client(store=_noting(virtual.table(), releases)) as client:
        client.lock("plain").acquire().release()
        locks = client.lock("kept", min_hold=20), client.semaphore("permits", 2, min_hold=20)
        leases = [lock.acquire() for lock in (*locks, client.rwlock("both", min_hold=20).read())]
        for lease in leases:
            clock.advance(5)
            lease.release()
    assert [release.keep for release in releases] == [
        0,
        *(pytest.approx((20 - held * (1 - DRIFT)) * 1e6, abs=2) for held in (5, 10, 15)),
    ]


def test_a_lease_that_is_kept_longer_than_min_hold_keeps_nothing() -> None:
    """The min_hold is already over at the release."""
    releases: list[ReleaseRequest] = []
    with virtual.stopped_clock() as clock, Client(store=_noting(virtual.table(), releases)) as client:
        lease = client.lock("name", min_hold=10).acquire()
        clock.advance(10.2)
        lease.release()
    assert releases[0].keep == 0


def test_leases_with_a_min_hold_are_not_handed_off(table: MemoryTable) -> None:
    """The other contenders of the same client wait for the end of min_hold, too."""
    with Client(store=memory_source(table)) as client:
        lock = client.lock("name", min_hold=20)
        lock.acquire().release()
        assert lock.try_acquire() is None


# -- reader/writer locks -------------------------------------------------------------------------------------------


def test_a_read_lease_says_why_it_cannot_be_upgraded(table: MemoryTable) -> None:
    """The error tells a reader how to write instead."""
    with Client(store=memory_source(table)) as client, client.rwlock("name").read() as lease:
        with pytest.raises(UsageError, match=r"two readers.*acquire write"):
            lease.upgrade()
        lease.check()

    async def main() -> None:
        async with AsyncClient(store=memory_source(table)) as client, client.rwlock("name").read() as lease:
            with pytest.raises(UsageError, match=r"two readers.*acquire write"):
                lease.upgrade()

    asyncio.run(main())


def test_a_lease_that_is_lost_is_not_downgraded(table: MemoryTable) -> None:
    """A downgrade of a lost or released lease raises LeaseLost."""
    with Client(store=memory_source(table)) as client:
        lock = client.rwlock("name").write()
        lost, released = lock.acquire(), None
        client.revoke("name", force=True)
        with pytest.raises(LeaseLost, match="by force"):
            lost.downgrade()
        released = lock.acquire()
        released.release()
        with pytest.raises(LeaseLost, match="was released"):
            released.downgrade()
        lost.release()


class _Unheard(MemoryStore):
    """A memory store that does not answer an adjustment."""

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Carry it out, but do not answer."""
        await super().adjust(adjust, until)
        raise StoreUnavailable("nobody heard the answer")


def test_a_downgrade_that_nobody_answered_counts(table: MemoryTable) -> None:
    """A client that does not know whether its lease was downgraded renews as a reader: others may read already."""
    source = StoreSource("unheard", MemoryStore.capabilities, lambda runtime: _Unheard(runtime, table))
    with Client(store=source) as client:
        lease = client.rwlock("name").write().acquire()
        with pytest.raises(StoreUnavailable):
            lease.downgrade()
        lease.check()
        other = client.rwlock("name").read().acquire(timeout=0)
        (held,) = [each for each in client.session().renewer.kept() if each.token == lease.token]
        assert held.renewal(held.ttl).request is held.grant.request
        assert held.grant.request.weight == 1
        other.release()
        lease.release()


def test_a_lease_is_only_ever_adjusted_to_less(table: MemoryTable) -> None:
    """A weight cannot grow."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(table)) as client, client.semaphore("name", 3):
            (held,) = client.session().renewer.kept()
            with pytest.raises(UsageError, match="cannot get the larger weight 2"):
                await client.session().adjust(held, weight=2)
            await client.session().adjust(held, owner="somebody else")
            assert [each.owner for each in (await client.inspect("name")).holders] == ["somebody else"]

    asyncio.run(main())


# -- revocation requests ----------------------------------------------------------------------------------------------


def test_an_on_revoke_callback_that_raises_is_logged(table: MemoryTable, caplog: pytest.LogCaptureFixture) -> None:
    """The error of a callback is logged, the other callbacks are called, and the lease is kept."""
    with Client(store=memory_source(table)) as client:
        heard = threading.Event()
        lease = client.lock("name", on_revoke=lambda _lease: 1 / 0).acquire()
        lease.on_revoke(lambda _lease: heard.set())
        with caplog.at_level(logging.ERROR, logger="tenure"):
            client.revoke("name")
            assert heard.wait(TEST_TIMEOUT)
        assert "on_revoke" in caplog.text
        lease.release()


def test_on_revoke_gets_its_lease(table: MemoryTable) -> None:
    """The callback gets the very lease, and may release it."""
    with Client(store=memory_source(table)) as client, Client(store=memory_source(table)) as other:
        got: list[Lease] = []

        def let_go(lease: Lease) -> None:
            got.append(lease)
            lease.release()

        lease = client.lock("name", on_revoke=let_go).acquire()
        other.revoke("name")
        other.lock("name").acquire(timeout=TEST_TIMEOUT).release()
        assert got == [lease]
        assert lease.revoking


def test_a_lease_with_an_on_revoke_callback_can_be_dropped(table: MemoryTable) -> None:
    """A dropped lease ends at its ttl with a warning, although its callback is still registered."""
    with Client(store=memory_source(table)) as client:
        lease = client.lock("name", on_revoke=print).acquire()
        with pytest.warns(ResourceWarning, match="dropped without release"):  # noqa: PT031 - both make it happen
            del lease
            gc.collect()


def test_a_lease_with_a_revocation_request_is_not_handed_off_for_ever(table: MemoryTable) -> None:
    """A revocation request makes the name contended: this client hands it on `fairness_count` times."""

    async def main() -> None:
        async with (
            AsyncClient(store=memory_source(table), fairness_count=2) as client,
            AsyncClient(store=memory_source(table)) as other,
        ):
            leases: list[AsyncLease] = []

            async def work(number: int) -> None:
                lease = await client.lock("name").acquire()
                leases.append(lease)
                if number == 0:
                    await other.revoke("name")
                    await soon(lambda: lease.revoking, "it is asked")
                await lease.release()

            first = await client.lock("name").acquire()
            working = [asyncio.create_task(work(number)) for number in range(6)]
            await asyncio.sleep(0)
            await first.release()
            await asyncio.gather(*working)
            steps = [after.token - before.token for before, after in pairwise(leases)]
            assert steps[:2] == [1, 1]
            assert steps[2] > 1, "after two hand-offs the name goes back to the store"
            assert steps[3:] == [1, 1], "no revocation request is open for these"
            assert [lease.revoking for lease in leases] == [True, *[False] * 5]

    asyncio.run(main())


def test_a_reader_writer_lock_is_not_resized(table: MemoryTable) -> None:
    """The error names the kind of lock."""
    with Client(store=memory_source(table)) as client:
        semaphore = client.semaphore("name", 3)
        with client.rwlock("name").read(), pytest.raises(UsageError, match="in use as a reader/writer lock"):
            semaphore.resize(4)
