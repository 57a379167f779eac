"""`sqlite:///path`: the embedded store. One file coordinates all processes of one machine, with no server."""

from holdfast.stores.sqlite.store import SqliteStore, sqlite_source

__all__ = ["SqliteStore", "sqlite_source"]
