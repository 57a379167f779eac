"""The contract of a table: what it takes to keep locks, counters and jobs in a database.

Rows are found by a key and have a version, which changes with every write. Everything stands on one promise: of several
writes that expect the same version of a row, at most one is done, also if they come late or their replies are lost; and
a read shows what the last write left.
"""

import hashlib
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

LONGEST_KEY = 640
"""The longest key that a table is asked for, in bytes. All its characters are ASCII letters and digits, - _ = and dots;
between two dots there is always something else."""

PLAIN = frozenset(string.ascii_letters + string.digits + "-_")

CUT = 560
"""How much is left of a longer one, before the hash of all of it."""


@dataclass(slots=True, frozen=True)
class Row:
    """A row as it was at one instant."""

    value: bytes = b""
    """Up to some 100 kB; much more only where thousands wait for one name."""
    version: Any = None
    """What `write` compares: an ETag, a revision, a number. None: there is no row."""


class RowTable(Protocol):
    """A table for threads; several call it at once. Each call ends within `timeout` seconds, or raises.

    Raise `StoreUnavailable` if nothing was done and a repetition may help, `OutcomeUnknown` if a write may have been
    done, `StoreError` if no repetition helps. Any other error counts as one that may have been done.
    """

    def read(self, key: str, timeout: float) -> Row:
        """Return a row; `Row()` if there is none."""
        ...

    def write(self, key: str, value: bytes, version: Any, timeout: float) -> Any:  # noqa: ANN401 - the table's own
        """Write a row if it has this version still (None: if there is no row), in one atomic step.

        Return its new version; None if the row has another version, and so nothing was written. No version of a row may
        come again, unless its value does: no two values that Tenure writes to one key are alike.
        """
        ...

    def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:
        """Return up to `most` keys that begin with `prefix` and follow `after`, in the order of their bytes."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class AsyncRowTable(Protocol):
    """A table for asyncio: as `RowTable`, but awaited. A call may be cancelled; then a write may have been done."""

    async def read(self, key: str, timeout: float) -> Row:
        """Return a row; `Row()` if there is none."""
        ...

    async def write(self, key: str, value: bytes, version: Any, timeout: float) -> Any:  # noqa: ANN401
        """Write a row if it has this version still; return its new version, or None."""
        ...

    async def keys(self, prefix: str, after: str, most: int, timeout: float) -> list[str]:
        """Return up to `most` keys that begin with `prefix` and follow `after`, in the order of their bytes."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


@runtime_checkable
class WatchedTable(Protocol):
    """A table that tells of changes, so that waiters need not look for them."""

    def watch(self, changed: Callable[[str, Row], None]) -> None:
        """Call `changed` with the key of each row that is written from now on, and the row, from any thread.

        Call it with an empty key if changes may have been missed. Called once, before any other call; it returns at
        once, connects in its own time, and ends with `close`.
        """
        ...


def safe_key(kind: str, name: str) -> str:
    """Return the key of a name: the kind, a dot, and the name with all but ASCII letters, digits, - and _ as =XX.

    A key that would be longer than LONGEST_KEY is cut, and ends with the hash of the name. The row has the whole name.
    """
    text = encode(name)
    if len(text) > CUT:
        text = f"{text[:CUT]}.{hashlib.sha256(name.encode()).hexdigest()}"
    return f"{kind}.{text}"


def first_key(kind: str, prefix: str) -> str:
    """Return what the keys of all names begin with that begin with `prefix`. Others may begin with it, too."""
    return f"{kind}.{encode(prefix)[:CUT]}"


def encode(name: str) -> str:
    """Return a text in characters that every table has."""
    return "".join(each if each in PLAIN else "".join(f"={byte:02X}" for byte in each.encode()) for each in name)
