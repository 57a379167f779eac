"""Counters, limits and stocks as users call them: threads, asyncio, processes, lost replies, cancelled waits."""

import asyncio
import itertools
import threading
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tenure import AsyncClient, Client, LockTimeout, UsageError
from tenure.contracts.cells import Cell
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities, StoreSource
from tenure.core import slots
from tenure.core.session import Session
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.primitives.limit import Charge, Limit
from tenure.runtimes import clocks
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tenure.table import stock as table_stock
from tests import virtual
from tests.hazards.helpers import Script, eventually
from tests.hazards.test_cancellations import AGAIN, LATE, WAITING, cancelled
from tests.planting import planted

BUY = """
import sys, tenure
with tenure.Client(sys.argv[1]) as client:
    stock, counter, sold = client.stock("tickets", 4), client.counter("sold"), 0
    while stock.take():
        sold += 1
        counter.add()
    print(sold)
"""


SELL = """
import sys, tenure
client = tenure.Client(sys.argv[1])
stock = client.stock("tickets", 3)
with open(sys.argv[2], "ab", buffering=0) as report:
    while stock.take():
        report.write(b"x")
"""


class LossyStore(MemoryStore):
    """A store that loses each third request, and each third reply."""

    requests = 0

    async def read_cell(self, name: str, until: float) -> Cell:
        """Read, unless it is lost."""
        self._lose()
        return await super().read_cell(name, until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write, unless it is lost, and answer, unless that is lost."""
        self._lose()
        cell = await super().write_cell(name, value, version, keep, until)
        if LossyStore.requests % 3 == 1:
            raise OutcomeUnknown("the reply was lost")
        return cell

    def _lose(self) -> None:
        LossyStore.requests += 1
        if LossyStore.requests % 3 == 0:
            raise StoreUnavailable("the request was lost")


class SlowStore(MemoryStore):
    """A store to which a request to read is under way for `there` seconds."""

    there = 0.0

    def __init__(self, runtime: Runtime, table: MemoryTable) -> None:
        """Use a table."""
        super().__init__(runtime, table)
        self._runtime_of_test = runtime

    async def read_cell(self, name: str, until: float) -> Cell:
        """Read, slowly."""
        await self._runtime_of_test.sleep(self.there)
        return await super().read_cell(name, until)


class FarStore(SlowStore):
    """A store to which each request is under way, and each reply."""

    there = 0.01

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write, slowly."""
        await self._runtime_of_test.sleep(self.there)
        cell = await super().write_cell(name, value, version, keep, until)
        await self._runtime_of_test.sleep(self.there)
        return cell


def wall_micros() -> int:
    """Return the time of the replaced clock, as a store's wall clock."""
    return 1_700_000_000_000_000 + virtual.micros()


def source_of(kind: type[MemoryStore]) -> StoreSource:
    """Return the source of a store in memory whose clocks are the replaced clock."""
    table = MemoryTable(virtual.micros, wall_micros)
    return StoreSource("memory://", MemoryStore.capabilities, lambda runtime: kind(runtime, table))


def test_nothing_is_lost_or_doubled_with_lost_replies() -> None:
    """A third of all requests and replies is lost; the counter and the stock are exact all the same."""
    table = MemoryTable()
    source = StoreSource("lossy://", MemoryStore.capabilities, lambda runtime: LossyStore(runtime, table))
    with Client(store=source) as client:
        counter, stock = client.counter("n"), client.stock("n", 2)
        assert [counter.add() for _ in range(20)] == list(range(1, 21))
        stock.restock(10)
        assert [stock.take(3) for _ in range(4)] == [3, 3, 3, 0]
        reservation = stock.reserve(1, 60)
        assert reservation is not None
        assert reservation.cancel()
        assert stock.take() == 1
        assert stock.total() == 0


def test_threads_buy_each_unit_once() -> None:
    """Eight threads of two clients buy all units, and a count of them is exact."""
    source = memory_source(MemoryTable())
    with Client(store=source) as one, Client(store=source) as other:
        one.stock("s").restock(300)
        sold: Tally[int] = Tally()

        def buy(number: int) -> None:
            client = (one, other)[number % 2]
            stock, counter = client.stock("s"), client.counter("s")
            while taken := stock.take(number % 3 + 1):
                sold[number] += taken
                counter.add(taken)

        threads = [threading.Thread(target=buy, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(sold.values()) == one.counter("s").get() == 300
        assert one.stock("s").total() == 0


def test_processes_buy_each_unit_once(tmp_path: Path) -> None:
    """Four processes share a lock file."""
    url = f"sqlite://{tmp_path}/locks.db"
    with Client(url) as client:
        client.stock("tickets", 4).restock(100)
        buyers = [Script(BUY, url) for _ in range(4)]
        assert sum(int(buyer.end()[0]) for buyer in buyers) == 100
        assert client.counter("sold").get() == 100


def _has(report: Path, sales: int) -> bool:
    return report.stat().st_size >= sales


def test_a_killed_process_has_taken_a_unit_or_not(tmp_path: Path) -> None:
    """A buyer is killed wherever it is: what is left and what it has reported differ by at most the unit under way."""
    url = f"sqlite://{tmp_path}/locks.db"
    with Client(url) as client:
        stock = client.stock("tickets", 3)
        for sales in range(1, 6):
            stock.restock(10_000)
            left = stock.total()
            report = tmp_path / f"report{sales}"
            report.touch()
            seller = Script(SELL, url, str(report))
            eventually(partial(_has, report, sales), f"{sales} sales")
            seller.kill()
            assert left - stock.total() - report.stat().st_size in (0, 1)


def test_names_of_different_kinds_never_meet() -> None:
    """A counter, a limit, a stock and a lock of one name have nothing to do with each other."""
    with Client(store=memory_source(MemoryTable())) as client, client.lock("n"):
        client.counter("n").add()
        assert client.limit("n", 1, 60.0).try_acquire()
        assert client.limit("n", 1, 60.0).try_acquire(key="n")
        assert not client.limit("n", 1, 60.0).try_acquire(key="n")
        client.stock("n").restock(5)
        assert client.counter("n").get() == 1


def test_a_stock_has_one_number_of_segments() -> None:
    """The error has both numbers, whichever segment is met first."""
    source = memory_source(MemoryTable())
    with Client(store=source) as client, Client(store=source) as other:
        client.stock("s", 4).restock(5)
        with pytest.raises(UsageError, match="4 segments, and segments=8"):
            other.stock("s", 8).take()


@pytest.mark.parametrize("make", ["counter", "limit", "stock"])
def test_a_store_without_cells_refuses(make: str) -> None:
    """The error comes when the object is made, and names stores that can."""
    able = Capabilities(min_ttl=0.05, queue=True, weights=True, runs_in_caller=True)
    client = Client(store=StoreSource("plain://", able, lambda runtime: MemoryStore(runtime, MemoryTable())))
    arguments = ("n", 1, 1.0) if make == "limit" else ("n",)
    with client, pytest.raises(UsageError, match=rf"plain:// keeps no {make}s.*redis://host"):
        getattr(client, make)(*arguments)


def test_a_body_that_fails_cancels_its_reservation() -> None:
    """The error is raised as it is, and the units are there again; without an error the reservation stays."""
    with Client(store=memory_source(MemoryTable())) as client:
        stock = client.stock("s")
        stock.restock(2)

        def fail() -> None:
            reservation = stock.reserve(2, 60)
            assert reservation is not None
            with reservation:
                assert stock.total() == 0
                raise KeyError("body")

        with pytest.raises(KeyError, match="body"):
            fail()
        reservation = stock.reserve(2, 60)
        assert reservation is not None
        with reservation:
            pass
        assert stock.total() == 0
        assert (reservation.confirm(), reservation.confirm(), reservation.cancel()) == (True, True, False)


def test_a_reservation_expires_by_the_clock_of_the_store() -> None:
    """Its units return, and it can be neither confirmed nor cancelled."""
    with virtual.stopped_clock() as clock, Client(store=source_of(MemoryStore)) as client:
        stock = client.stock("s", 2)
        stock.restock(2)
        reservation = stock.reserve(2, 30)
        assert reservation is not None
        clock.advance(29.9)
        assert stock.take() == 0
        clock.advance(0.2)
        assert stock.total() == 2
        assert (reservation.confirm(), reservation.cancel()) == (False, False)
        assert stock.take(2) == 2


# -- limits ----------------------------------------------------------------------------------------------------


def in_virtual_time(kind: type[MemoryStore], work: Callable[[AsyncClient], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401
    """Run a coroutine with a client in virtual time."""

    async def main() -> Any:  # noqa: ANN401
        async with AsyncClient(store=source_of(kind), operation_timeout=60.0) as client:
            return await work(client)

    return virtual.run(main)


def test_waiters_pass_in_their_order_at_the_rate() -> None:
    """Ten tasks ask at once; they pass in the order in which they came, a unit a second."""

    async def work(client: AsyncClient) -> None:
        limit = client.limit("l", 1, 1.0, smooth=True)
        passed: list[tuple[int, float]] = []

        async def one(number: int) -> None:
            await limit.acquire()
            passed.append((number, clocks.steady()))

        await client.counter("to open the store").get()
        began = clocks.steady()
        await asyncio.gather(*(one(number) for number in range(10)))
        assert [number for number, _ in passed] == list(range(10))
        for number, at in passed:
            assert number <= at - began <= number * 1.02 + 0.1

    in_virtual_time(MemoryStore, work)


async def returns_before_its_slot(client: AsyncClient) -> bool:
    """Return whether a call whose request is under way for 3 s returns before its slot by the store's clock."""
    limit = client.limit("l", 1, 10.0)
    SlowStore.there = 0.0
    await limit.acquire()
    await limit.acquire()
    before = clocks.steady()
    SlowStore.there = 3.0
    await limit.acquire()
    return clocks.steady() < before + 10.0 - 0.2


def test_no_call_returns_before_its_slot() -> None:
    """Also if its request was under way for long."""
    assert not in_virtual_time(SlowStore, returns_before_its_slot)


def test_a_wait_that_is_counted_from_the_send_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the wait begins when the request is sent."""
    sleep = slots._sleep

    def from_the_send(session: Session, reservation: str, until: float) -> Coroutine[Any, Any, None]:
        return sleep(session, reservation, until - SlowStore.there)

    monkeypatch.setattr(slots, "_sleep", from_the_send)
    assert in_virtual_time(SlowStore, returns_before_its_slot)


def test_a_timeout_that_cannot_be_met_is_refused_at_once() -> None:
    """Nothing is reserved, and the error says how long it would have taken."""

    async def work(client: AsyncClient) -> None:
        limit = client.limit("l", 1, 10.0)
        await limit.acquire()
        began = clocks.steady()
        with pytest.raises(LockTimeout, match=r"in 10\.1 s") as refused:
            await limit.acquire(timeout=5)
        assert clocks.steady() - began < 1.0
        assert refused.value.wait is not None
        assert 10.0 <= refused.value.wait <= 10.2
        await limit.acquire(timeout=11)
        assert not await limit.try_acquire()

    in_virtual_time(MemoryStore, work)


def test_a_cancelled_waiter_gives_its_slot_back() -> None:
    """The next waiter gets that slot; a slot before another waiter's is not given back."""

    async def work(client: AsyncClient) -> None:
        limit = client.limit("l", 1, 10.0)
        await limit.acquire()
        began = clocks.steady()
        waiter = asyncio.create_task(limit.acquire())
        await asyncio.sleep(1)
        waiter.cancel()
        await asyncio.wait([waiter])
        await limit.acquire()
        assert 10.0 <= clocks.steady() - began < 11.0
        first, second = asyncio.create_task(limit.acquire()), asyncio.create_task(limit.acquire())
        await asyncio.sleep(1)
        first.cancel()
        await second
        assert 30.0 <= clocks.steady() - began < 31.0

    in_virtual_time(MemoryStore, work)


def test_an_interrupted_thread_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in the middle of the wait is raised, and the next caller gets the slot."""

    async def interrupted(_session: Session, _reservation: str, _until: float) -> None:
        raise KeyboardInterrupt

    with virtual.stopped_clock() as clock, Client(store=source_of(MemoryStore)) as client:
        limit = client.limit("l", 1, 10.0)
        limit.acquire()
        with monkeypatch.context() as patch:
            patch.setattr(slots, "_sleep", interrupted)
            with pytest.raises(KeyboardInterrupt):
                limit.acquire()
        clock.advance(10.0)
        assert limit.try_acquire()


def test_a_closed_client_ends_its_waits() -> None:
    """The waiter gets an error, soon."""

    async def work(client: AsyncClient) -> None:
        limit = client.limit("l", 1, 1000.0)
        await limit.acquire()
        waiter = asyncio.create_task(limit.acquire())
        await asyncio.sleep(1)
        await client.close()
        with pytest.raises(UsageError, match="closed"):
            await waiter

    in_virtual_time(MemoryStore, work)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rate": 0, "per": 1.0}, "rate must be"),
        ({"rate": 1.5, "per": 1.0}, "rate must be"),
        ({"rate": 1, "per": 0.0}, "per must be"),
        ({"rate": 1, "per": 1e9}, "per must be"),
        ({"rate": 1, "per": 1.0, "burst": 2}, "smooth=True; without it, up to 1 units pass at once: leave it out"),
        ({"rate": 1, "per": 1.0, "smooth": True, "burst": 0}, "burst must be"),
        ({"rate": 1, "per": 1e6, "smooth": True, "burst": 99}, "more than a year: give a smaller one"),
        ({"rate": 1, "per": "fortnight"}, 'is no window: give a number of seconds, "hour"'),
        ({"rate": 1, "per": ""}, "is no window"),
        ({"rate": 1, "per": "hour Europe/Berlin"}, "is no window"),
        ({"rate": 1, "per": "day Europe/Nowhere"}, "no time zone"),
        ({"rate": 1, "per": "day", "smooth": True}, "leave smooth out"),
        ({"rate": 1, "per": 1.0, "timeout": -2}, "timeout"),
    ],
)
def test_a_rule_that_is_none_is_refused(rule: dict[str, Any], message: str) -> None:
    """The error says what to give."""
    with Client(store=memory_source(MemoryTable())) as client, pytest.raises(UsageError, match=message):
        client.limit("l", **rule)


def test_more_than_may_ever_pass_at_once_is_refused() -> None:
    """Nobody could wait for it."""
    with Client(store=memory_source(MemoryTable())) as client:
        for limit in (client.limit("l", 2, 1.0), client.limit("l", 9, 1.0, smooth=True, burst=2)):
            with pytest.raises(UsageError, match="at most 2 units pass at once, and never 3: acquire fewer"):
                limit.acquire(3)


def test_all_of_the_rate_passes_when_it_is_wanted() -> None:
    """A hundred at once, the next when the first leave the window, and so for each key."""
    with virtual.stopped_clock() as clock, Client(store=source_of(MemoryStore)) as client:
        limit = client.limit("l", rate=100, per=60)
        assert all(limit.try_acquire() for _ in range(60))
        clock.advance(30)
        assert sum(limit.try_acquire() for _ in range(60)) == 40
        assert (limit.available(), limit.available(key="k")) == (0, 100)
        clock.advance(30)
        assert limit.available() == 60
        limit.acquire(60, timeout=0)
        assert not limit.try_acquire()
        limit.reset()
        assert limit.available() == 100


def test_a_cost_that_is_known_afterwards_is_settled() -> None:
    """What was estimated too high may be used by others; what was too low makes them wait."""
    with virtual.stopped_clock() as clock, Client(store=source_of(MemoryStore)) as client:
        limit = client.limit("tokens", rate=10_000, per=60)
        charge = limit.acquire(9_000)
        assert limit.available() == 1_000
        charge.settle(400)
        charge.settle(500)
        assert (charge.units, limit.available()) == (500, 9_500)
        limit.acquire(9_000, key="k").settle(30_000)
        assert (limit.available(key="k"), limit.available()) == (0, 9_500)
        clock.advance(61)
        assert limit.available(key="k") == 10_000
        with pytest.raises(UsageError, match="actual must be a whole number from 0 on"):
            charge.settle(-1)


@pytest.mark.parametrize("how", [WAITING, LATE, AGAIN])
def test_a_cost_is_settled_once_though_the_call_is_cancelled(how: str) -> None:
    """At any await: the call goes on without its caller, and another call counts from there."""

    async def awaited(work: Awaitable[bool]) -> bool:
        return await work

    async def work(client: AsyncClient) -> None:
        limit = client.limit("tokens", rate=10_000, per=600)
        for at in itertools.count(1):
            key = f"{at}"
            charge = await limit.acquire(9_000, key=key)
            (ended,) = await asyncio.gather(awaited(cancelled(charge.settle(400), at, how)), return_exceptions=True)
            await charge.settle(400)
            await asyncio.sleep(1.0)
            assert (charge.units, await limit.available(key=key)) == (400, 9_600), at
            if ended is False:
                assert at > 1, "there was nothing to cancel"
                return
            assert isinstance(ended, asyncio.CancelledError)

    in_virtual_time(FarStore, work)


def test_two_tasks_settle_one_after_the_other() -> None:
    """The second counts from what the first has said."""

    async def work(client: AsyncClient) -> None:
        limit = client.limit("tokens", rate=10_000, per=60)
        charge = await limit.acquire(9_000)
        await asyncio.gather(charge.settle(400), charge.settle(500))
        assert (charge.units, await limit.available()) == (500, 9_500)

    in_virtual_time(FarStore, work)


def test_what_was_not_settled_can_be_settled_again() -> None:
    """After an error of the store."""

    async def fails(*_: object) -> Cell:
        raise StoreUnavailable("it is gone")

    async def work(client: AsyncClient) -> None:
        limit = client.limit("tokens", rate=10_000, per=600)
        charge = await limit.acquire(9_000)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryStore, "write_cell", fails)
            patch.setattr(MemoryStore, "read_cell", fails)
            with pytest.raises(StoreUnavailable):
                await charge.settle(400)
        assert charge.units == 9_000
        await charge.settle(400)
        assert await limit.available() == 9_600

    in_virtual_time(MemoryStore, work)


def test_units_that_did_not_come_back_count_once() -> None:
    """A smooth limit takes them back no more once somebody has come; what is settled later counts from there."""
    with virtual.stopped_clock() as clock, Client(store=source_of(MemoryStore)) as client:
        limit = client.limit("tokens", rate=10, per=60, smooth=True, burst=10)
        charge = limit.acquire(3)
        clock.advance(0.001)
        limit.acquire(1)
        charge.settle(0)
        assert (charge.units, limit.available()) == (3, 6)
        charge.settle(3)
        assert (charge.units, limit.available()) == (3, 6)


UNSETTLED: dict[str, tuple[type, str, str, str, Callable[[], None]]] = {
    "a cancelled call is cut short": (
        Limit.__mro__[1],
        "_count",
        "session.runtime.finish(session.cells.change(cell, limit.settle(self._rule, slot.at, more)))",
        "session.cells.change(cell, limit.settle(self._rule, slot.at, more))",
        partial(test_a_cost_is_settled_once_though_the_call_is_cancelled, WAITING),
    ),
    "the units are noted last": (
        Charge.__mro__[1],
        "_settle",
        "self.units = actual",
        "pass",
        test_two_tasks_settle_one_after_the_other,
    ),
    "what did not come back counts as settled": (
        Charge.__mro__[1],
        "_settle",
        "if not counted:",
        "if False:",
        test_units_that_did_not_come_back_count_once,
    ),
    "what failed counts as settled": (
        Charge.__mro__[1],
        "_settle",
        "self.units -= more\n            raise",
        "raise",
        test_what_was_not_settled_can_be_settled_again,
    ),
}


@pytest.mark.parametrize("bug", UNSETTLED)
def test_a_planted_bug_of_settling_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one that a maintainer could bring in."""
    owner, method, right, wrong, scene = UNSETTLED[bug]
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    with pytest.raises(AssertionError):
        scene()


def test_a_day_begins_at_midnight_where_it_was_said() -> None:
    """Whoever waits passes at midnight in Berlin, which is 22:00 or 23:00 in UTC."""

    async def work(client: AsyncClient) -> None:
        limit = client.limit("l", 2, "day Europe/Berlin")
        await limit.acquire(2)
        with pytest.raises(LockTimeout) as refused:
            await limit.acquire(timeout=1)
        now = datetime.fromtimestamp((await client.session().cells.look("x"))[1] / 1e6, ZoneInfo("Europe/Berlin"))
        midnight = datetime.combine(now.date() + timedelta(days=1), time.min, now.tzinfo)
        assert refused.value.wait == pytest.approx((midnight.timestamp() - now.timestamp()) / 0.99, rel=0.01)

    in_virtual_time(MemoryStore, work)


def test_a_decorated_function_waits_for_its_slot() -> None:
    """By the timeout of the limit; async functions too."""

    async def work(client: AsyncClient) -> None:
        @client.limit("l", 1, 10.0, timeout=15)
        async def call(value: int) -> int:
            return value

        began = clocks.steady()
        assert [await call(1), await call(2)] == [1, 2]
        assert 10.0 <= clocks.steady() - began < 11.0
        waiting = asyncio.create_task(call(3))
        await asyncio.sleep(0)
        with pytest.raises(LockTimeout):
            await call(4)
        assert await waiting == 3

    in_virtual_time(MemoryStore, work)
    with Client(store=memory_source(MemoryTable())) as client:

        @client.limit("l", 1, 10.0, timeout=0)
        def call() -> int:
            return 1

        assert call() == 1
        with pytest.raises(LockTimeout):
            call()

        @client.limit("of:{customer}", 1, 10.0, timeout=0)
        def for_each(customer: int) -> int:
            return customer

        assert [for_each(1), for_each(2)] == [1, 2]
        with pytest.raises(LockTimeout, match="of:1"):
            for_each(1)
        with pytest.raises(UsageError, match="limit of an AsyncClient"):
            client.limit("l", 1, 1.0)(asyncio.sleep)


def test_a_reservation_finds_a_segment_that_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stock keeps as many reservations as its segments together, and units come to the segment with room."""
    monkeypatch.setattr(table_stock, "MOST_RESERVATIONS", 2)
    with Client(store=memory_source(MemoryTable())) as client:
        stock = client.stock("seats", 3)
        stock.restock(10)
        reservations = [stock.reserve(1, ttl=900) for _ in range(6)]
        assert all(reservations)
        with pytest.raises(UsageError, match=r"each segment of the stock 'seats' has 2 reservations.*more segments"):
            stock.reserve(1, ttl=900)
        assert stock.take(4) == 4  # what is reserved stands in the way of nobody else
        assert stock.reserve(1, ttl=900) is None
        assert reservations[0] is not None
        assert reservations[0].cancel()
        kept = stock.reserve(1, ttl=900)
        assert kept is not None
        assert kept.confirm()
        assert stock.total() == 0


def test_units_in_full_segments_are_reserved_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that keeps no more reservations gives its units to one that does."""
    monkeypatch.setattr(table_stock, "MOST_RESERVATIONS", 1)
    with Client(store=memory_source(MemoryTable())) as client:
        stock = client.stock("seats", 3)
        stock.restock(9)
        assert stock.reserve(3, ttl=900) is not None
        assert stock.reserve(3, ttl=900) is not None
        stock.restock(6)
        left = stock.reserve(9, ttl=900)
        assert left is not None
        assert stock.total() == 0
        assert left.cancel()
        assert stock.total() == 9


def test_hundreds_of_failing_runs_and_clients_fill_no_cell() -> None:
    """A job whose error is long in bytes runs as often as it is asked to, and says its own error each time."""
    table, ran = MemoryTable(), 0

    def fail() -> None:
        nonlocal ran
        ran += 1
        raise RuntimeError("\u9501" * 2000)

    for number in range(25):
        with Client(store=memory_source(table), owner=f"node-{number}") as client:
            with pytest.raises(RuntimeError):
                client.once("job", window=3600, attempts=1000).run(fail)
            assert client.job("job").repeat()
    assert ran == 25
