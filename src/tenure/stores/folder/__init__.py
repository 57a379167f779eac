"""Locks in a folder on a volume that several machines mount."""

from pathlib import Path

from tenure.contracts.store import StoreSource
from tenure.stores.folder.table import FolderTable
from tenure.stores.rows import row_source
from tenure.stores.rows.bounded import BoundedTable, InThreads


def folder_source(folder: Path) -> StoreSource:
    """Return the source of stores in a folder, which must exist."""
    title, table = f"file://{folder}", FolderTable(folder)
    return row_source(title, lambda: BoundedTable(title, table), lambda: InThreads(title, table))
