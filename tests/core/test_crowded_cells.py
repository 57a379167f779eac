"""Cells that many change at the same time: every change ends soon, and the callers of one client share requests."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure import AsyncClient, Client, OutcomeUnknown, StoreUnavailable
from tenure.contracts.cells import Addition, Cell, Change
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core import cells
from tenure.runtimes import clocks
from tenure.stores.memory import MemoryStore, MemoryTable
from tenure.table import counter
from tests import virtual
from tests.hazards.helpers import eventually
from tests.hazards.interrupting import sweep
from tests.planting import methods_of, module_with

T = TypeVar("T")

SECONDS = 3.0
"""For how long clients change one cell, one change after the other."""


class FarStore(MemoryStore):
    """A store to which a request is under way for about a millisecond, and so is its reply."""

    def __init__(self, runtime: Runtime, table: MemoryTable) -> None:
        """Use a table."""
        super().__init__(runtime, table)
        self.requests: list[str] = []
        self._world = runtime
        self._chance = random.Random(len(runtime.new_id()))

    async def read_cell(self, name: str, until: float) -> Cell:
        """Read a cell."""
        await self._travel("read")
        cell = await super().read_cell(name, until)
        await self._travel()
        return cell

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell."""
        await self._travel("write")
        cell = await super().write_cell(name, value, version, keep, until)
        await self._travel()
        return cell

    async def _travel(self, request: str = "") -> None:
        if request:
            self.requests.append(request)
        await self._world.sleep(0.001 * (0.5 + self._chance.random()))


class BusyStore(FarStore):
    """A store whose cells another client changes before each write."""

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Refuse the write."""
        await super().write_cell(name, b"[null,{}]", self._table.cell(name).version, 0, until)
        return await super().write_cell(name, value, version, keep, until)


class AddingStore(FarStore):
    """A store that makes an addition to a cell that is there in one request."""

    async def add_to_cell(self, name: str, addition: Addition, lane: str, number: int, until: float) -> int | None:
        """Add."""
        await self._travel("add")
        cell = self._table.cell(name)
        content = cells._read(name, cell)
        last = content.replies.pop(lane, None)
        late = last[0] >= number if last else cells.FORGOTTEN in content.replies
        total = content.state[0] + addition.by if content.state and not late else None
        if total is not None and addition.least <= total <= addition.most:
            content.replies[lane] = [number, total, cell.version]
            self._table.write_cell(name, cells._write(name, [total], content.replies), cell.version)
        else:
            total = None
        await self._travel()
        return total


def client_of(table: MemoryTable, kind: type[FarStore] = FarStore, made: list[FarStore] | None = None) -> AsyncClient:
    """Return a client of a table; its store is appended to `made`."""

    def make(runtime: Runtime) -> FarStore:
        store = kind(runtime, table)
        if made is not None:
            made.append(store)
        return store

    return AsyncClient(store=StoreSource("far://", kind.capabilities, make))


def a_table() -> MemoryTable:
    """Return a table whose clock is that of virtual time."""
    return MemoryTable(virtual.micros, lambda: 1_700_000_000_000_000 + virtual.micros())


Make = Callable[[AsyncClient], Callable[[], Coroutine[Any, Any, object]]]
"""Returns the call that a client makes again and again."""


def crowd(clients: int, make: Make) -> tuple[list[int], float]:
    """Let clients change one cell for a while; return how often each did, and the longest that a change took."""

    async def main() -> tuple[list[int], float]:
        table, calls, longest = a_table(), Counter[int](), 0.0

        async def work(number: int) -> None:
            nonlocal longest
            async with client_of(table) as client:
                call, end = make(client), clocks.steady() + SECONDS
                while (began := clocks.steady()) < end:
                    await call()
                    calls[number] += 1
                    longest = max(longest, clocks.steady() - began)

        await asyncio.gather(*(work(number) for number in range(clients)))
        return sorted(calls.values()), longest

    return virtual.run(main)


CALLS: dict[str, Make] = {
    "counter": lambda client: client.counter("c").add,
    "limit": lambda client: client.limit("l", 10**6, 1.0, smooth=True, burst=100).try_acquire,
    "stock": lambda client: client.stock("s", 1).take,
}


@pytest.mark.parametrize("kind", CALLS)
def test_two_clients_change_a_cell_in_turns(kind: str) -> None:
    """Neither makes more than twice as many changes as the other."""
    (fewer, more), _ = crowd(2, CALLS[kind])
    assert fewer > 100
    assert more <= 2 * fewer


@pytest.mark.parametrize("kind", CALLS)
def test_no_change_waits_for_long_among_eight_clients(kind: str) -> None:
    """None takes a second, in thousands."""
    calls, longest = crowd(8, CALLS[kind])
    assert len(calls) == 8
    assert longest < 1.0


# -- many callers of one client --------------------------------------------------------------------------------


def add_at_once(callers: int, kind: type[FarStore] = FarStore) -> tuple[list[int], list[str]]:
    """Let tasks of one client add 1 to a counter at the same time; return the replies, and the requests."""

    async def main() -> tuple[list[int], list[str]]:
        made: list[FarStore] = []
        async with client_of(a_table(), kind, made) as client:
            number = client.counter("c")
            return sorted(await asyncio.gather(*(number.add() for _ in range(callers)))), made[0].requests

    return virtual.run(main)


@pytest.mark.parametrize("callers", [1, 2, 300, 1000, 2500])
def test_the_callers_of_a_client_share_requests(callers: int) -> None:
    """Each change is made once, and a thousand cost hardly more requests than one."""
    replies, requests = add_at_once(callers)
    assert replies == list(range(1, callers + 1))
    assert len(requests) <= 2 * (2 + callers // cells.MOST_AT_ONCE)


def test_additions_are_made_as_one() -> None:
    """The first finds no cell, and writes it; the others are one request."""
    replies, requests = add_at_once(1000, AddingStore)
    assert replies == list(range(1, 1001))
    assert requests[:3] == ["add", "read", "write"]
    assert len(requests) <= 5


def test_an_addition_is_tried_again_in_each_round() -> None:
    """A client that was refused because another has made the cell adds to that."""

    async def main() -> None:
        table, made = a_table(), list[FarStore]()
        async with client_of(table, AddingStore, made) as one, client_of(table, AddingStore, made) as other:
            assert sorted(await asyncio.gather(one.counter("c").add(), other.counter("c").add())) == [1, 2]
        assert sorted(each.requests for each in made) == [["add", "read", "write"], ["add", "read", "write", "add"]]

    virtual.run(main)


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("kind", [FarStore, AddingStore])
def test_all_callers_of_a_forgotten_batch_are_told_so(
    kind: type[FarStore], made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell cannot tell any more whether the batch was made: it is not made again, and later changes are."""
    monkeypatch.setattr(cells, "FULL", 3000)
    monkeypatch.setattr(cells, "REPLIES", 1500)

    async def main() -> None:
        table, lost = a_table(), list[int]()

        async def lose(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
            if lost:
                return await work()
            lost.append(1)
            if made:
                await work()
            for _ in range(100):
                async with client_of(table) as other:
                    await other.counter("c").add()
            raise OutcomeUnknown("the reply was lost")

        class LosingFarStore(FarStore):
            async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
                write = super().write_cell
                return await lose(lambda: write(name, value, version, keep, until))

        class LosingAddingStore(AddingStore):
            async def add_to_cell(
                self, name: str, addition: Addition, lane: str, number: int, until: float
            ) -> int | None:
                add = super().add_to_cell
                return await lose(lambda: add(name, addition, lane, number, until))

        async with client_of(table) as first:
            await first.counter("c").add()
        async with client_of(table, LosingFarStore if kind is FarStore else LosingAddingStore) as client:
            number = client.counter("c")
            replies = await asyncio.gather(*(number.add() for _ in range(5)), return_exceptions=True)
            told = [each for each in replies if isinstance(each, OutcomeUnknown)]
            assert all("so many others have changed it" in str(each) for each in told)
            assert told
            assert await number.get() == 101 + (5 if made else 5 - len(told))
            assert await number.add() == await number.get()

    virtual.run(main)


def test_all_callers_of_a_limit_pass_when_their_slots_come() -> None:
    """Three hundred tasks of each of two clients, of one limit: none gets an error, and none passes early."""

    async def main() -> float:
        table = a_table()
        async with client_of(table) as one, client_of(table) as other:
            began = clocks.steady()
            await asyncio.gather(
                *(
                    each.limit("l", 100, 1.0, smooth=True, burst=300).acquire()
                    for each in (one, other)
                    for _ in range(300)
                )
            )
            return clocks.steady() - began

    assert 2.99 <= virtual.run(main) < 3.2


def test_a_change_is_not_made_at_a_time_before_its_call() -> None:
    """It waits for a cell that was requested after its call, though a reply that is under way would do for others."""

    async def main() -> None:
        async with client_of(a_table()) as client:
            late: list[int] = []
            changes = client.session().cells

            async def change() -> None:
                called = 1_700_000_000_000_000 + virtual.micros()

                def note(state: object, now: int) -> Change:
                    late.append(called - now)
                    return Change(state, None)

                await changes.change("c", note)

            async with asyncio.TaskGroup() as group:
                for _ in range(40):
                    group.create_task(change())
                    await asyncio.sleep(0.0003)
            assert len(late) >= 40
            assert max(late) <= 0, f"a change was made {max(late)} us before its call"

    virtual.run(main)


def test_a_function_that_raises_disturbs_no_other() -> None:
    """Its caller gets the error; the changes beside it are made."""

    async def main() -> None:
        def fail(_state: object, _now: int) -> Change:
            raise ZeroDivisionError

        async with client_of(a_table()) as client:
            number, session = client.counter("c"), client.session()
            await number.get()
            works = [session.cells.change(number._cell, fail) if at % 3 == 1 else number.add() for at in range(9)]
            results = await asyncio.gather(*works, return_exceptions=True)
            assert [type(each) for each in results] == [int, ZeroDivisionError, int] * 3
            assert await number.get() == 6

    virtual.run(main)


def test_a_try_among_clients_that_are_always_faster_ends() -> None:
    """It takes no longer than a request may, and says that nothing was taken."""

    async def main() -> float:
        async with client_of(a_table(), BusyStore) as client:
            began = clocks.steady()
            with pytest.raises(StoreUnavailable, match=r"others were faster [1-9][0-9]* times") as caught:
                await client.limit("l", 10, 1.0).try_acquire()
            assert not isinstance(caught.value, OutcomeUnknown)
            return clocks.steady() - began

    assert virtual.run(main) < 1.1


def test_a_caller_that_leaves_stops_no_other() -> None:
    """Whichever of five callers is cancelled, and whenever: the others' changes are made, and each once."""

    async def main(victim: int, at: float) -> bool:
        async with client_of(a_table()) as client:
            number = client.counter("c")
            await number.get()
            tasks = [asyncio.create_task(number.add()) for _ in range(5)]
            await asyncio.sleep(at)
            cancelled = tasks[victim].cancel()
            replies = await asyncio.gather(*tasks, return_exceptions=True)
            made = sorted(each for each in replies if isinstance(each, int))
            assert len(made) >= 4
            assert len(set(made)) == len(made)
            assert await number.get() in (4, 5)
            return cancelled

    cancelled = [
        virtual.run(lambda victim=victim, at=at: main(victim, at))  # type: ignore[misc]
        for victim in (0, 1, 4)
        for at in (0.0, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008)
    ]
    assert sum(cancelled) > 12


def _ignore(_error: object) -> None:
    """Take the place of `sys.unraisablehook`."""


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_an_interrupted_leader_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a signal handler raises in the thread that sends the requests, the other thread's change is made."""
    monkeypatch.setattr(sys, "unraisablehook", _ignore)  # an interrupt of a weak reference is swallowed
    found = list[str]()
    table = MemoryTable()

    class Crowded(MemoryStore):
        """A store at which a second thread comes while the first one writes."""

        async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
            if other and other[0].ident is None:
                interrupting = sys.getprofile()
                sys.setprofile(None)  # nothing interrupts what the test does
                other[0].start()
                line = client.session().cells._lines[name]
                eventually(lambda: len(line.shares) == 2 and line.shares[1].event, "the other thread waits")
                sys.setprofile(interrupting)
            return await super().write_cell(name, value, version, keep, until)

    other: list[Thread] = []
    source = StoreSource("memory://", MemoryStore.capabilities, lambda runtime: Crowded(runtime, table))
    with Client(store=source, operation_timeout=5.0, retry_for=1.0) as client:
        client.counter("warm").add()

        def work(at: int) -> Callable[[], object]:
            replies = list[int]()
            number = client.counter(f"c{at}")

            def add() -> None:
                with suppress(StoreUnavailable):  # what a planted bug leads to
                    replies.append(number.add())

            other[:] = [Thread(target=add)]

            def both() -> None:
                try:
                    number.add()
                finally:
                    sys.setprofile(None)  # nothing interrupts what the test does
                    thread = other.pop()
                    if thread.ident is not None:
                        thread.join(20.0)
                        assert replies in ([1], [2]), "the other thread still waits"
                        found.append("")

            return both

        for _ in sweep(work):
            pass
    assert len(found) > 20


# -- planted bugs ----------------------------------------------------------------------------------------------


def wrong(*changes: tuple[str, str]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a way to change the text of core/cells.py."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        for name, method in methods_of(module_with(cells, *changes), "Cells").items():
            monkeypatch.setattr(cells.Cells, name, method)

    return plant


PAUSE = "pause = min(2 * pause, LONGEST_PAUSE)\n"


@pytest.mark.parametrize(
    ("bug", "notices"),
    [
        (
            wrong(("AT_ONCE = 8", "AT_ONCE = 1"), (PAUSE + " " * 16 + "line.seen = None\n", PAUSE)),
            lambda: [test_two_clients_change_a_cell_in_turns("counter") for _ in range(20)],  # who starves is chance
        ),
        (
            wrong(("share.change, after.state, ", "share.change, seen.content.state, ")),
            lambda: test_the_callers_of_a_client_share_requests(300),
        ),
        (wrong(("                event.set()\n", "                pass\n")), test_a_caller_that_leaves_stops_no_other),
        (
            wrong(("if timeout is None else min", "if True else min")),
            test_a_try_among_clients_that_are_always_faster_ends,
        ),
        (
            wrong(("    results.append((None, error))\n                continue", "    raise")),
            test_a_function_that_raises_disturbs_no_other,
        ),
        (wrong(("if each.since < seen.request]", "]")), test_a_change_is_not_made_at_a_time_before_its_call),
    ],
)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], notices: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is one that a maintainer could really make."""
    bug(monkeypatch)
    with pytest.raises((AssertionError, StoreUnavailable, ZeroDivisionError)):
        notices()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_an_interrupted_leader_that_keeps_the_lead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: whoever is interrupted leads for ever."""
    wrong(
        ("            if line.leader is mine:\n", "            if line.leader is None:\n"), ("or line.leader.gone", "")
    )(monkeypatch)
    with pytest.raises(AssertionError, match="still waits"):
        test_an_interrupted_leader_is_followed_by_another(monkeypatch)


# -- additions as one ------------------------------------------------------------------------------------------

numbers = st.integers(-5, 5)
additions = st.lists(
    st.builds(Addition, numbers, st.integers(-8, 0), st.integers(0, 8), st.none() | st.just(7)), min_size=1
)


@given(st.integers(-8, 8), additions)
def test_additions_are_made_as_one_if_each_could_be(first: int, each: list[Addition]) -> None:
    """One after the other they lead to the same number and the same replies."""
    shares = [cells._CellShare(counter.add(one.by), one, 0.0, 0.0, 0.0) for one in each]
    value, replies, possible = first, list[tuple[int, None]](), True
    for one in each:
        value += one.by
        possible = possible and one.least <= value <= one.most
        replies.append((value if one.reply is None else one.reply, None))
    whole = cells._sum(shares)
    assert first + whole.by == value
    assert (whole.least <= value <= whole.most) is possible
    assert cells._replies(shares, value) == replies


def test_additions_that_no_server_could_calculate_are_made_apart() -> None:
    """Their sum is never larger than what all servers calculate exactly."""
    large = [
        cells._CellShare(counter.add(by), counter.addition(by), 0.0, 0.0, 0.0) for by in (2**51, 2**51, 1, 2**53 - 1)
    ]
    assert [len(cells._summable(large[at:])) for at in range(4)] == [2, 2, 1, 1]
