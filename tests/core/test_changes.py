"""What a client makes of min_hold, of downgrades, and of being asked for what it holds."""

import asyncio
import gc
import logging
import threading
from itertools import pairwise

import pytest

from holdfast import AsyncClient, AsyncLease, Client, Lease, LeaseLost, UsageError
from holdfast.contracts.deadlines import DRIFT
from holdfast.contracts.messages import AdjustRequest, ReleaseRequest, RenewReply
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import StoreSource
from holdfast.errors import StoreUnavailable
from holdfast.outcome import Outcome
from holdfast.stores.memory import MemoryStore, MemoryTable, memory_source
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
    """A name can't be kept for longer than a dead holder's lease, or than max_hold allows."""
    with Client(store=memory_source(table)) as client, pytest.raises(UsageError, match=said):
        client.lock("name", **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class _Released(MemoryStore):
    """A memory store that notes releases."""

    releases: list[ReleaseRequest]

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Note a release."""
        self.releases.append(release)
        return await super().release(release, until)


def _noting(table: MemoryTable, releases: list[ReleaseRequest]) -> StoreSource:
    def make(runtime: Runtime) -> MemoryStore:
        store = _Released(runtime, table)
        store.releases = releases
        return store

    return StoreSource("noting", MemoryStore.capabilities, make)


def test_what_is_left_of_min_hold_is_kept() -> None:
    """A release keeps the name for what is left since the grant, counted so that it is never free too early."""
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
    """What is over is not kept."""
    releases: list[ReleaseRequest] = []
    with virtual.stopped_clock() as clock, Client(store=_noting(virtual.table(), releases)) as client:
        lease = client.lock("name", min_hold=10).acquire()
        clock.advance(10.2)
        lease.release()
    assert releases[0].keep == 0


def test_leases_with_a_min_hold_are_not_handed_on(table: MemoryTable) -> None:
    """A name that is kept is kept from others of the same client, too."""
    with Client(store=memory_source(table)) as client:
        lock = client.lock("name", min_hold=20)
        lock.acquire().release()
        assert lock.try_acquire() is None


# -- reader/writer locks -------------------------------------------------------------------------------------------


def test_a_read_lease_says_why_it_cannot_be_upgraded(table: MemoryTable) -> None:
    """Whoever wants to write after reading is told what to do."""
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
    """A downgrade of what is lost or released raises LeaseLost."""
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
    """A memory store that answers no adjustment."""

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Carry it out, and say nothing."""
        await super().adjust(adjust, until)
        raise StoreUnavailable("nobody heard the answer")


def test_a_downgrade_that_nobody_answered_counts(table: MemoryTable) -> None:
    """Whoever does not know whether it is a reader renews as one: others may have been let in."""
    source = StoreSource("unheard", MemoryStore.capabilities, lambda runtime: _Unheard(runtime, table))
    with Client(store=source) as client:
        lease = client.rwlock("name").write().acquire()
        with pytest.raises(StoreUnavailable):
            lease.downgrade()
        lease.check()
        other = client.rwlock("name").read().acquire(timeout=0)
        (held,) = [each for each in client.session().renewer.kept() if each.token == lease.token]
        assert held.renewal(held.ttl).request is held.request
        assert held.request.weight == 1
        other.release()
        lease.release()


def test_a_lease_is_only_ever_adjusted_to_less(table: MemoryTable) -> None:
    """A weight can't grow."""

    async def main() -> None:
        async with AsyncClient(store=memory_source(table)) as client, client.semaphore("name", 3):
            (held,) = client.session().renewer.kept()
            with pytest.raises(UsageError, match="cannot get the larger weight 2"):
                await client.session().adjust(held, weight=2)
            await client.session().adjust(held, owner="somebody else")
            assert [each.owner for each in (await client.inspect("name")).holders] == ["somebody else"]

    asyncio.run(main())


# -- being asked -----------------------------------------------------------------------------------------------------


def test_a_callback_that_raises_when_asked_is_logged(table: MemoryTable, caplog: pytest.LogCaptureFixture) -> None:
    """The error of a callback is logged, the others are called, and the lease is held."""
    with Client(store=memory_source(table)) as client:
        heard = threading.Event()
        lease = client.lock("name", on_revoke=lambda _lease: 1 / 0).acquire()
        lease.on_revoke(lambda _lease: heard.set())
        with caplog.at_level(logging.ERROR, logger="holdfast"):
            client.revoke("name")
            assert heard.wait(TEST_TIMEOUT)
        assert "on_revoke" in caplog.text
        lease.release()


def test_who_is_asked_gets_its_lease(table: MemoryTable) -> None:
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


def test_a_lease_that_listens_can_still_be_dropped(table: MemoryTable) -> None:
    """A lease whose callback is kept is no longer kept itself, and ends at its ttl, with a warning."""
    with Client(store=memory_source(table)) as client:
        lease = client.lock("name", on_revoke=print).acquire()
        with pytest.warns(ResourceWarning, match="dropped without release"):  # noqa: PT031 - both make it happen
            del lease
            gc.collect()


def test_a_lease_that_is_asked_for_is_not_handed_on_for_ever(table: MemoryTable) -> None:
    """Whoever asks wants the name: contenders of the same client keep it no longer than their budget allows."""

    async def main() -> None:
        async with (
            AsyncClient(store=memory_source(table), fairness_count=2, fairness_time=TEST_TIMEOUT) as client,
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
            assert steps[2] > 1, "after its turn it goes back to the store"
            assert steps[3:] == [1, 1], "which nobody asks for"
            assert [lease.revoking for lease in leases] == [True, *[False] * 5]

    asyncio.run(main())


def test_a_reader_writer_lock_is_not_resized(table: MemoryTable) -> None:
    """And the error says what it is."""
    with Client(store=memory_source(table)) as client:
        semaphore = client.semaphore("name", 3)
        with client.rwlock("name").read(), pytest.raises(UsageError, match="in use as a reader/writer lock"):
            semaphore.resize(4)
