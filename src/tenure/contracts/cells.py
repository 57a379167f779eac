"""The contract of a store that keeps cells: small values that clients change by compare-and-write.

A cell is what counters, limits, stocks and jobs are made of. Its name has nothing to do with the lock of the same name.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

LARGEST_CELL = 65_536
"""The largest value of a cell, in bytes."""


def cell_name(kind: str, prefix: str, name: str) -> str:
    """Return the name of a cell. The kind comes first, so that cells of two kinds never meet in any namespace."""
    return f"{kind}:{prefix}{name}"


@dataclass(slots=True, frozen=True)
class Cell:
    """A cell at one instant of the store's clock."""

    value: bytes
    """b"" if there is no cell."""
    version: int
    """A larger number after each write, and never the same again, also if the cell was removed between; 0: no cell."""
    now: int
    """The store's wall clock, in microseconds since 1970, UTC."""
    written: bool = False
    """Whether the request that this replies to has written the cell."""


@dataclass(slots=True)
class Change:
    """What a function says of one change: the new state (None: none, so the cell goes) and the reply to the caller.

    Both consist of what JSON knows. With `changed` False the cell stays as it is.
    """

    state: Any
    reply: Any
    changed: bool = True
    keep: int = 0
    """After how many microseconds without a change the store may forget the cell; 0: never."""


@dataclass(slots=True, frozen=True)
class Addition:
    """The usual change of a counter or a stock: a number is added to the first number of a state, which is a list."""

    by: int
    least: int
    """The least number that may result, else nothing is changed."""
    most: int
    """The largest number that may result."""
    reply: int | None = None
    """The reply of the change; None: the number that results."""


@runtime_checkable
class CellStore(Protocol):
    """A store that keeps cells: it has the capability `cells`. The errors are those of a `Store`."""

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell as the last write left it, never an older state."""
        ...

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell if it has this version (0: if there is none), in one atomic step; b"" removes the cell.

        Return the cell as it is then, `written` or not. A cell that nobody writes for `keep` microseconds (0: for
        ever) may be removed by the store. A request without a reply is not safe to repeat: the caller reads the cell
        to see whether it was written.
        """
        ...


@runtime_checkable
class AddingCellStore(CellStore, Protocol):
    """A store that carries out an `Addition` in one request, where others read the cell and write it."""

    async def add_to_cell(self, name: str, addition: Addition, lane: str, number: int, until: float) -> int | None:
        """Make the change with this number of a lane, unless the cell shows that it was made; return its reply.

        None: nothing was done, because there is no such cell, the result would be out of bounds, the lane has made a
        change with a larger number, or the store leaves this cell to the functions of `core/cells.py`. A request
        without a reply is safe to repeat. A late copy of a request is refused once its lane has made a later change,
        or the cell has forgotten replies and that of this lane may be one of them.
        """
        ...
