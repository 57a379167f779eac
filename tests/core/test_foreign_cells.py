"""A cell whose value somebody else wrote, as by hand: whoever uses it is told so, and which cell it is."""

import json
from collections.abc import Callable

import pytest

from tenure import Client, StoreError, UsageError
from tenure.contracts.cells import cell_name
from tenure.stores.memory import MemoryTable, memory_source

NAME = "name"

USES: dict[str, tuple[str, Callable[[Client], object]]] = {
    "a counter is read": ("counter", lambda client: client.counter(NAME).get()),
    "a counter counts": ("counter", lambda client: client.counter(NAME).add(1)),
    "a limit is asked": ("limit", lambda client: client.limit(NAME, 5, per=60).available()),
    "a limit is used": ("limit", lambda client: client.limit(NAME, 5, per=60).try_acquire()),
    "a stock is counted": ("stock-0", lambda client: client.stock(NAME).total()),
    "a stock is sold": ("stock-0", lambda client: client.stock(NAME).take(1)),
    "a history is read": ("history", lambda client: client.history(NAME)),
    "a job is paused": ("job", lambda client: client.job(NAME).pause()),
    "a job is run": ("job", lambda client: client.once(NAME, window=60).run(int)),
    "jobs are shown": ("jobs-0", Client.jobs),
    "a semaphore is used": ("permits", lambda client: client.semaphore(NAME, None).acquire().release()),
}
"""By title: the kind of a cell, and a call that uses such a cell."""

STATES: list[object] = [5, "text", [], ["text"], [[]], {}, {"a": 1}, [None] * 4, [None] * 7, ["x"] * 7, [[1]] * 9, True]

VALUES = [b"\xff", b"5", b"[1]", b"[1, 2]", b'[1, {"a": 1}]', b'[1, {"a": [1]}]'] + [
    json.dumps([state, {}]).encode() for state in STATES
]
"""Values of cells that Tenure never writes: no JSON, JSON without replies, and replies beside a state of no kind."""


def refusal(work: Callable[[Client], object], cell: str, value: bytes) -> str:
    """Return the error of a use of a cell that has a value; "" if it went well, or had one of its other errors."""
    table = MemoryTable()
    table.write_cell(cell, value, 0)
    with Client(store=memory_source(table)) as client:
        try:
            work(client)
        except StoreError as error:
            return str(error)
        except UsageError as error:  # a value as it might be, if others used it otherwise
            return "" if "must give the same number" in str(error) or "no number of permits" in str(error) else "other"
    return ""


@pytest.mark.parametrize("use", USES)
def test_who_uses_a_cell_that_somebody_else_wrote_is_told_which(use: str) -> None:
    """Or it goes well, since the value may be one that is usual elsewhere."""
    kind, work = USES[use]
    cell = cell_name(kind, "", "" if kind == "jobs-0" else NAME)
    refused = [said.splitlines()[0] for said in (refusal(work, cell, value) for value in VALUES) if said]
    assert set(refused) == {f"the cell {cell!r} has a value that Tenure did not write; remove it"}
    assert len(refused) > 6
