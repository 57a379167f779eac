"""Tables in a dict, for both forms of the API."""

import threading
from collections.abc import Callable

from tenure.stores.rows import Row


class Rows:
    """The rows of all tables of a test."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.mutex = threading.Lock()
        self.writes = 0
        self.watchers: list[Callable[[str, Row], None]] = []

    def write(self, key: str, value: bytes, version: object) -> int | None:
        """Write a row if it is unchanged."""
        with self.mutex:
            if self.rows.get(key, Row()).version != version:
                return None
            self.writes += 1
            self.rows[key] = Row(value, self.writes)
            written = self.writes
        for changed in self.watchers:
            changed(key, Row(value, written))
        return written

    def keys(self, prefix: str, after: str, most: int) -> list[str]:
        """Return keys."""
        return sorted(key for key in self.rows if key.startswith(prefix) and key > after)[:most]


class DictTable:
    """A table for threads."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def read(self, key: str, timeout: float) -> Row:
        """Return a row."""
        return self._rows.rows.get(key, Row())

    def write(self, key: str, value: bytes, version: object, timeout: float) -> int | None:
        """Write a row."""
        return self._rows.write(key, value, version)

    def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:
        """Return keys."""
        return self._rows.keys(prefix, after, most)

    def close(self) -> None:
        """Disconnect."""


class WatchedDictTable(DictTable):
    """A table that tells of changes."""

    def watch(self, changed: Callable[[str, Row], None]) -> None:
        """Tell of changes from now on."""
        self._rows.watchers.append(changed)


class AsyncDictTable(DictTable):
    """A table for asyncio."""

    async def read(self, key: str, timeout: float) -> Row:  # type: ignore[override]
        """Return a row."""
        return super().read(key, timeout)

    async def write(  # type: ignore[override]
        self, key: str, value: bytes, version: object, timeout: float
    ) -> int | None:
        """Write a row."""
        return super().write(key, value, version, timeout)

    async def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:  # type: ignore[override]
        """Return keys."""
        return super().keys(prefix, after, most, timeout)

    async def close(self) -> None:  # type: ignore[override]
        """Disconnect."""
