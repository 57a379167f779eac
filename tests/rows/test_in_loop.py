"""An awaited table for threads: its thread ends with it, and no call begins another."""

import threading

import pytest

from tenure.errors import StoreUnavailable
from tenure.stores.rows import Row
from tenure.stores.rows.contract import WatchedTable
from tenure.stores.rows.in_loop import InLoop
from tests.rows.tables import AsyncDictTable, Rows


def test_a_call_after_the_end_begins_no_thread() -> None:
    """A renewal may be under way while its client closes."""
    before = set(threading.enumerate())
    table = InLoop(AsyncDictTable(Rows()))
    assert table.read("lock.a", 10) == Row()
    assert set(threading.enumerate()) > before
    table.close()
    with pytest.raises(StoreUnavailable, match="is closed"):
        table.read("lock.a", 10)
    assert set(threading.enumerate()) <= before


def test_it_tells_of_changes_if_its_table_does() -> None:
    """Else waiters look for them."""

    class Watched(AsyncDictTable):
        def watch(self, _changed: object) -> None:
            """Tell of none."""

    assert isinstance(InLoop(Watched(Rows())), WatchedTable)
    assert not isinstance(InLoop(AsyncDictTable(Rows())), WatchedTable)
