"""Locks in a folder on a volume that several machines mount."""

from functools import partial
from pathlib import Path

from tenure.contracts.store import StoreSource
from tenure.stores.folder.table import FolderTable
from tenure.stores.rows import row_source


def folder_source(folder: Path) -> StoreSource:
    """Return the source of stores in a folder, which must exist."""
    return row_source(f"file://{folder}", partial(FolderTable, folder))
