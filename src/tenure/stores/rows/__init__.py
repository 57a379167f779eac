"""Stores of your own: locks and all that is made of them, in any database that can write a row if it is unchanged.

    from tenure.stores.rows import Row, row_source

    client = tenure.Client(store=row_source("my database", MyTable))

docs/own-store.md has two whole programs.
"""

from tenure.stores.rows.contract import AsyncRowTable, Row, RowTable
from tenure.stores.rows.store import row_source

__all__ = ["AsyncRowTable", "Row", "RowTable", "row_source"]
