"""A client makes one table, whoever needs it first."""

import threading

import pytest

from tenure.runtimes.threads import complete
from tenure.stores.rows import row_source
from tenure.stores.rows.access import TableAccess
from tenure.stores.rows.store import RowStore
from tests.hazards.helpers import TEST_TIMEOUT, ObservedRuntime, eventually
from tests.planting import planted
from tests.rows.tables import DictTable, Rows


def tables_made() -> int:
    """Open a client while another thread examines the store; return how many tables are made."""
    runtime, rows = ObservedRuntime(), Rows()
    stores: list[RowStore] = []
    made: list[DictTable] = []
    others: list[threading.Thread] = []

    def examine() -> None:
        complete(stores[0].examine(1.0, TEST_TIMEOUT))

    def make() -> DictTable:
        made.append(mine := DictTable(rows))
        if len(made) == 1:
            others.append(threading.Thread(target=examine))
            others[0].start()
            eventually(lambda: len(made) > 1 or runtime.is_waited_for(), "the other thread")
        return mine

    store = row_source("a dict", make).make(runtime)
    assert isinstance(store, RowStore)
    stores.append(store)
    complete(store.open(lambda _: None, runtime.now() + TEST_TIMEOUT))
    others[0].join()
    return len(made)


def test_two_threads_that_need_the_table_first_make_one() -> None:
    """One that was overwritten would be closed by nobody."""
    assert tables_made() == 1


def test_a_table_that_is_made_without_a_mutex_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: both make one."""
    monkeypatch.setattr(TableAccess, "open", planted(TableAccess, "open", "with self._opening:", "if True:"))
    assert tables_made() == 2
