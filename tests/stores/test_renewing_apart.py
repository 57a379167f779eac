"""One lease that cannot be renewed, for its row or server stands still, costs no other lease of its client."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tenure import AsyncClient, LeaseState, StoreError, StoreUnavailable
from tenure.contracts.messages import AcquireRequest, Granted, RenewReplies, RenewRequest
from tenure.contracts.store import StoreSource, renew_together
from tenure.core.renewals import Renewals
from tenure.runtimes.threads import complete
from tenure.stores import renewing
from tenure.stores.memory import MemoryStore
from tenure.stores.quorum.store import QuorumStore
from tenure.stores.redis.names import slot_of
from tenure.stores.rows import Row, row_source
from tenure.stores.rows import store as row_store
from tenure.stores.rows.store import RowStore
from tenure_testing.conformance.kit import Kit
from tests import virtual
from tests.faults.scenes import API_FORMS, client_at, play
from tests.planting import module_with, planted
from tests.rows.tables import AsyncDictTable, DictTable, Rows
from tests.rows.test_clock import SECOND, Clocked
from tests.servers import Cluster
from tests.stores.test_quorum import Five

TTL = 10.0
NAMES = [f"name-{number}" for number in range(21)]
BAD = NAMES[10]


def failed(replies: RenewReplies) -> list[str]:
    """Return the names whose leases could not be renewed; the others were."""
    assert all(reply is None or isinstance(reply, StoreError) for reply in replies)
    return [name for name, reply in zip(NAMES, replies, strict=True) if reply is not None]


# -- the client ------------------------------------------------------------------------------------------------


class Refusing(MemoryStore):
    """Refuses each batch with a certain lease."""

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Refuse, or renew."""
        if any(each.name == BAD for each in renewals):
            raise StoreError("a value that Tenure did not write")
        return await super().renew(renewals, until)


class Telling(MemoryStore):
    """Gives an error for a certain lease."""

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Renew the others."""
        replies = await super().renew([each for each in renewals if each.name != BAD], until)
        rest = iter(replies)
        return [StoreUnavailable("no answer") if each.name == BAD else next(rest) for each in renewals]


def lost_at(store: type[MemoryStore]) -> list[str]:
    """Hold leases for three times their ttl at a store that never renews a certain one; return which are lost."""
    lost: list[str] = []

    async def main() -> None:
        table = virtual.table()
        source = StoreSource("a table", MemoryStore.capabilities, lambda runtime: store(runtime, table))
        async with AsyncClient(store=source) as client:
            leases = {name: await client.lock(name, ttl=TTL).acquire() for name in NAMES}
            await asyncio.sleep(3 * TTL)
            lost.extend(name for name, lease in leases.items() if lease.state is LeaseState.LOST)
            for lease in leases.values():
                with suppress(StoreError):
                    await lease.release()

    virtual.run(main)
    return lost


@pytest.mark.parametrize("store", [Refusing, Telling])
def test_a_lease_that_is_never_renewed_is_lost_alone(store: type[MemoryStore]) -> None:
    """Whether the store tells the lease apart, or refuses the batch as a whole."""
    assert lost_at(store) == [BAD]


@pytest.mark.parametrize(
    ("store", "right", "wrong"),
    [
        (Refusing, "half == 0 or isinstance(error, StoreUnavailable)", "True"),
        (Telling, "self._store.renew(renewals, until)", "renew_together(self._store, renewals, until)"),
    ],
)
def test_a_planted_bug_of_the_client_is_found(
    store: type[MemoryStore], right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the error of one lease counts for all."""
    monkeypatch.setattr("tenure.core.renewals.renew_together", renew_together, raising=False)
    monkeypatch.setattr(Renewals, "_replies", planted(Renewals, "_replies", right, wrong))
    with pytest.raises(AssertionError):
        test_a_lease_that_is_never_renewed_is_lost_alone(store)


# -- places ----------------------------------------------------------------------------------------------------


class Stuck(DictTable):
    """A table one row of which stands still until the time of a request is over."""

    def __init__(self, rows: Rows, clock: Clocked) -> None:
        super().__init__(rows)
        self.clock = clock
        self.stuck = ""

    def read(self, key: str, timeout: float) -> Row:
        """Read, or take all the time."""
        self._wait(key, timeout)
        return super().read(key, timeout)

    def write(self, key: str, value: bytes, version: object, timeout: float) -> int | None:
        """Write, or take all the time."""
        self._wait(key, timeout)
        return super().write(key, value, version, timeout)

    def _wait(self, key: str, timeout: float) -> None:
        if self.stuck and key.endswith(self.stuck):
            self.clock.local += timeout
            raise TimeoutError


def renew_beside_a_stuck_row(order: Sequence[str]) -> list[str]:
    """Renew the leases of names in this order in a thread; return which failed."""
    clock = Clocked(10**15)
    table = Stuck(Rows(), clock)
    store = row_source("a dict", lambda: table).make(clock)
    complete(store.open(lambda _: None, 10))
    renewals: list[RenewRequest] = []
    for name in order:
        request = AcquireRequest(name, name, "", name, 10 * SECOND, SECOND, 4 * SECOND)
        granted = complete(store.acquire(request, clock.local + 10))
        assert isinstance(granted, Granted)
        renewals.append(RenewRequest(name, name, granted.token, 10 * SECOND))
    table.stuck = BAD
    replies = complete(store.renew(renewals, clock.local + 1.0))
    assert clock.local <= 1.0
    return sorted(name for name, reply in zip(order, replies, strict=True) if reply is not None)


@pytest.mark.parametrize("place", [0, 10, 20])
def test_a_row_that_stands_still_takes_no_time_from_those_behind_it(place: int) -> None:
    """It has half of the time; with one more that is left alone."""
    others = [name for name in NAMES if name != BAD]
    assert renew_beside_a_stuck_row([*others[:place], BAD, *others[place:]]) == [BAD]


def test_rows_beside_a_stuck_one_are_renewed_in_an_event_loop() -> None:
    """Several at a time: the row that stands still keeps only itself."""
    lost: list[str] = []

    class Table(AsyncDictTable):
        stuck = ""

        async def read(self, key: str, timeout: float) -> Row:  # type: ignore[override]
            await self._wait(key, timeout)
            return await super().read(key, timeout)

        async def write(  # type: ignore[override]
            self, key: str, value: bytes, version: object, timeout: float
        ) -> int | None:
            await self._wait(key, timeout)
            return await super().write(key, value, version, timeout)

        async def _wait(self, key: str, timeout: float) -> None:
            if self.stuck and key.endswith(self.stuck):
                await asyncio.sleep(timeout)
                raise TimeoutError

    async def main() -> None:
        table = Table(Rows())
        async with AsyncClient(store=row_source("a dict", lambda: DictTable(Rows()), lambda: table)) as client:
            leases = {name: await client.lock(name, ttl=TTL).acquire() for name in NAMES}
            table.stuck = BAD
            await asyncio.sleep(3 * TTL)
            lost.extend(name for name, lease in leases.items() if lease.state is LeaseState.LOST)
            table.stuck = ""
            for lease in leases.values():
                await lease.release()

    virtual.run(main)
    assert lost == [BAD]


def test_a_lease_that_a_quorum_cannot_decide_is_lost_alone() -> None:
    """Two nodes do not answer, and another has forgotten one of the leases: the others have their majority."""
    five, lost = Five(), list[str]()

    async def main() -> None:
        async with AsyncClient(store=five.source()) as client:
            leases = {name: await client.lock(name, ttl=TTL).acquire() for name in NAMES}
            await five.cut_off(five.nodes[:2])
            del five.tables[2]._states[BAD]
            five.nodes[2].refused = BAD  # it votes for it no more
            await asyncio.sleep(3 * TTL)
            lost.extend(name for name, lease in leases.items() if lease.state is LeaseState.LOST)

    virtual.run(main)
    assert lost == [BAD]


def half_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """Give each place all the time that is left."""
    wrong = module_with(renewing, ("until - half if left else until", "until"))
    patch.setattr(row_store, "renew_apart", wrong.renew_apart)


def raised_by_one(patch: pytest.MonkeyPatch) -> None:
    """Raise the error of one place."""
    wrong = module_with(renewing, ("            said = [error] * len(group)\n", "            raise\n"))
    patch.setattr(row_store, "renew_apart", wrong.renew_apart)
    patch.setattr(RowStore, "_renew_batch", planted(RowStore, "_renew_batch", "return results", RAISE))


RAISE = "return [each if not isinstance(each, Exception) else (_ for _ in ()).throw(each) for each in results]"


def undecided(patch: pytest.MonkeyPatch) -> None:
    """Raise the error of a lease of which a majority is not known."""
    right = "results.append(self._node_set.refusal(replies) or self._node_set.unknown())"
    wrong = "raise self._node_set.refusal(replies) or self._node_set.unknown()"
    patch.setattr(QuorumStore, "renew", planted(QuorumStore, "renew", right, wrong))


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (half_for_nobody, lambda: test_a_row_that_stands_still_takes_no_time_from_those_behind_it(10)),
        (raised_by_one, lambda: test_a_row_that_stands_still_takes_no_time_from_those_behind_it(10)),
        (raised_by_one, test_rows_beside_a_stuck_one_are_renewed_in_an_event_loop),
        (undecided, test_a_lease_that_a_quorum_cannot_decide_is_lost_alone),
    ],
)
def test_a_planted_bug_of_a_store_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the error or the time of one lease is that of others."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, StoreError)):
        check()


@pytest.mark.parametrize("form", API_FORMS)
def test_a_master_that_stands_still_costs_no_lease_at_another(form: str, tmp_path: Path) -> None:
    """In a Cluster each name has its master. The nodes take this one for alive all the time, so nothing fails over."""

    async def scene(kit: Kit) -> None:
        here = client_at(kit, cluster.url, operation_timeout=0.4)
        leases = {name: await here.lock(name, ttl=2.0).acquire() for name in NAMES}
        silent = cluster.nodes[0]
        theirs = [name for name in NAMES if cluster.master_of(slot_of(f"{kit.space}:{name}")) is silent]
        silent.pause()

        async def lost() -> bool:
            return all(leases[name].lost.is_set() for name in theirs)

        await kit.until(lost, "the loss of the leases at the master that stands still")
        assert [name for name, lease in leases.items() if lease.lost.is_set()] == theirs
        silent.resume()
        for lease in leases.values():
            await lease.release()

    with Cluster(tmp_path, node_timeout=120.0) as cluster:
        play(form, cluster.url, scene)
