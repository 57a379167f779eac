"""Cells: each change is made exactly once, whatever is lost, and by however many clients at the same time."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tenure import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.contracts.cells import LARGEST_CELL, Cell
from tenure.core import cells
from tenure.core.access import Settings
from tenure.core.cells import Cells, Change
from tenure.core.session import Session
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.memory import MemoryStore, MemoryTable


def add(by: int) -> Callable[[Any, int], Change]:
    """Return the function that adds to a number."""
    return lambda state, _now: Change((state or 0) + by, (state or 0) + by)


class LossyStore(MemoryStore):
    """A store that loses requests and replies as `fate` says, one letter a request."""

    fate: list[str]

    async def read_cell(self, name: str, until: float) -> Cell:
        """Read, unless it is lost."""
        self._lose_request()
        return await super().read_cell(name, until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write, unless it is lost, and answer, unless that is lost."""
        self._lose_request()
        cell = await super().write_cell(name, value, version, keep, until)
        if self.fate and self.fate.pop(0) == "reply":
            raise OutcomeUnknown("the reply was lost")
        return cell

    def _lose_request(self) -> None:
        if self.fate and self.fate[0] == "request":
            self.fate.pop(0)
            raise StoreUnavailable("the request was lost")


def cells_of(table: MemoryTable, fate: list[str] | None = None, retry_for: float = 10.0) -> Cells:
    """Return the cells of a client of its own."""
    runtime = ThreadsRuntime()
    store = LossyStore(runtime, table)
    store.fate = fate or []
    return Cells(Session(runtime, store, Settings("owner", retry_for=retry_for)))


@pytest.mark.parametrize("fate", [["reply"], ["request", "reply"], ["reply", "request", "ok", "reply"]])
def test_a_change_without_a_reply_counts_once(fate: list[str]) -> None:
    """A write whose reply was lost is found in the cell, also after others have written."""
    table = MemoryTable()
    assert drive(cells_of(table, fate).change("n", add(1))) == 1
    assert drive(cells_of(table).change("n", add(1))) == 2


def test_a_reply_is_found_behind_the_changes_of_others() -> None:
    """The lost reply of one client is still there when another client has written since."""
    table = MemoryTable()
    other = cells_of(table)

    class Late(LossyStore):
        async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
            cell = await super().write_cell(name, value, version, keep, until)
            if not self.fate:
                return cell
            self.fate.clear()
            await other.change(name, add(10))
            raise OutcomeUnknown("the reply was lost")

    store = Late(ThreadsRuntime(), table)
    store.fate = ["ok", "lost"]
    one = Cells(Session(ThreadsRuntime(), store, Settings("owner")))
    assert drive(one.change("n", add(1))) == 1
    assert drive(other.look("n"))[0] == 11


def test_without_the_memory_of_replies_a_change_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: a cell that keeps no replies."""
    true_write = cells._write

    def write(name: str, state: object, _replies: object) -> bytes:
        return true_write(name, state, {})

    monkeypatch.setattr(cells, "_write", write)
    table = MemoryTable()
    assert drive(cells_of(table, ["reply"]).change("n", add(1))) == 2


def test_threads_lose_no_change() -> None:
    """Eight threads of two clients add at the same time."""
    table = MemoryTable()
    clients = [cells_of(table), cells_of(table)]

    def work(each: Cells) -> None:
        for _ in range(50):
            drive(each.change("n", add(1)))

    threads = [threading.Thread(target=work, args=(clients[i % 2],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert drive(clients[0].look("n"))[0] == 400


def test_a_cell_that_may_have_changed_is_said_to() -> None:
    """If the store falls silent after a request, the caller learns that the change may have been made."""
    with pytest.raises(OutcomeUnknown, match="once or not at all"):
        drive(cells_of(MemoryTable(), ["reply", *["request"] * 1000], retry_for=0.05).change("n", add(1)))


def test_a_refusal_after_an_unknown_outcome_says_that_it_is_unknown() -> None:
    """A server that answers errors, after a request without a reply, does not say that nothing was changed."""

    class Refusing(LossyStore):
        refuses = False

        async def read_cell(self, name: str, until: float) -> Cell:
            if self.refuses:
                raise StoreError("no")
            return await super().read_cell(name, until)

        async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
            self.refuses = True
            raise OutcomeUnknown("the reply was lost")

    store = Refusing(ThreadsRuntime(), MemoryTable())
    store.fate = []
    changing = Cells(Session(ThreadsRuntime(), store, Settings("owner")))
    with pytest.raises(OutcomeUnknown, match="once or not at all"):
        drive(changing.change("n", add(1)))
    with pytest.raises(StoreError, match=r"^no$") as caught:
        drive(changing.change("n", add(1)))
    assert not isinstance(caught.value, StoreUnavailable)


def test_a_removed_cell_never_has_an_old_version_again() -> None:
    """A write that expects the cell from before a removal is refused."""
    table = MemoryTable()
    store = MemoryStore(ThreadsRuntime(), table)
    before = drive(store.write_cell("n", b"x", 0, 0, 0.0))
    drive(store.write_cell("n", b"", before.version, 0, 0.0))
    assert drive(store.write_cell("n", b"y", before.version, 0, 0.0)).written is False
    again = drive(store.write_cell("n", b"x", 0, 0, 0.0))
    assert again.version != before.version


def test_many_clients_one_after_another_do_not_fill_a_cell() -> None:
    """Two thousand clients change a cell within 400 s: each is remembered for a minute at least, and none fails."""
    now = 1_000_000_000

    def wall() -> int:
        return now

    table = MemoryTable(wall=wall)
    for _ in range(2000):
        now += 200_000
        drive(cells_of(table).change("n", add(1)))
    value = table.cell("n").value
    assert drive(cells_of(table).look("n"))[0] == 2000
    made = [each[2] for each in json.loads(value)[1].values()]
    assert now - made[0] >= cells.REMEMBERED_OF_MANY - 200_000
    assert len(value) < LARGEST_CELL // 2
