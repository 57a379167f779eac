"""The contract of a store that keeps cells: small values that clients change by compare-and-write.

A cell is what counters, limits, stocks and jobs are made of. Its name has nothing to do with the lock of the same name.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
    """Another number after each write, and never the same again, also if the cell was removed between; 0: no cell."""
    now: int
    """The store's wall clock, in microseconds since 1970, UTC."""
    written: bool = False
    """Whether the request that this replies to has written the cell."""


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
