"""The embedded store `sqlite:///path`: one file coordinates all processes of one machine, without a server."""

from tenure.stores.sqlite.store import SqliteStore, sqlite_source

__all__ = ["SqliteStore", "sqlite_source"]
