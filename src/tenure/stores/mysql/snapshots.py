"""How rows are read: the query of a snapshot, which returns one text for each row, and what stands in that text."""

from collections.abc import Callable, Sequence
from typing import Any

from tenure.stores.mysql.errors import MySqlResult
from tenure.stores.sql.database import SqlSnapshot
from tenure.stores.sql.rows import COLUMNS, HEADS, SqlRow

_HEAD = ", ".join(
    f"IF(IS_USED_LOCK(CONVERT({head} USING utf8mb4)) IS NULL, {head}, NULL)"
    for head in (f"SUBSTRING_INDEX(SUBSTRING_INDEX(n.heads, ' ', {place}), ' ', -1)" for place in range(1, HEADS + 1))
)

_FIRST = (
    "$now",
    "m.floor",
    "m.quarantined_since",
    "m.quarantined_until",
    (
        "m.timeline = $timeline AND (m.started = $started OR $started = 0) "
        "AND m.quarantined_until <= $now + GREATEST(m.longest_ttl, %(longest)d)"
    ),
    "$mark",
    "IF(n.heads <> '', CONCAT_WS(' ', " + _HEAD + "), '')",
)
"""What a snapshot says before the row: the instant; the settings; whether this is the server that granted what the
table says, and no quarantine lasts longer than the longest lease from now on; the mark of the stored form; who of
`heads` does not listen."""

_UNTIL, _KNOWN, _MARK, _SILENT = 3, 4, 5, 6

_ROW = [name for name in COLUMNS if name not in {"name", "queue", "waiting"}] + ["name"]
"""The columns of a row: a row with waiters is one JSON text. The name comes last, because only it may have any byte."""

SEPARATOR = b"\x01"
"""It is in no cell of a snapshot but the name: JSON escapes it, and identifiers have no such byte."""

READ = (
    f"SELECT CONCAT_WS(X'{SEPARATOR.hex()}', " + ", ".join((*_FIRST, *(f"n.{name}" for name in _ROW))) + ") "
    "FROM $meta AS m LEFT JOIN $names AS n ON n.name IN (%(names)s) WHERE m.one = 1"
)
"""Returns a snapshot: a text for each name. Drivers parse a description of each column, which costs more than its cell.
CONCAT_WS skips what is NULL: the columns of a name that has no row."""


def split(result: MySqlResult) -> list[list[bytes]]:
    """Return the cells of each text of a snapshot."""
    return [bytes(text).split(SEPARATOR, len(_FIRST) + len(_ROW) - 1) for (text,) in result.rows]


def is_known(lines: Sequence[Sequence[bytes]]) -> bool:
    """Tell whether a snapshot is of a server whose grants are all in the tables, as far as anybody knows."""
    return bool(lines) and lines[0][_KNOWN] == b"1"


def mark_of(lines: Sequence[Sequence[bytes]]) -> str:
    """Return the mark of the stored form."""
    return lines[0][_MARK].decode()


def read_snapshot(lines: Sequence[Sequence[bytes]], names: Sequence[str]) -> SqlSnapshot:
    """Read the rows of some names from a snapshot, which has one line at least."""
    rows: list[SqlRow] = []
    silent: set[str] = set()
    for line in lines:
        if cells := line[len(_FIRST) :]:
            rows.append(SqlRow(**{name: _READ[COLUMNS[name]](cell) for name, cell in zip(_ROW, cells, strict=True)}))
            silent.update(line[_SILENT].decode().split())
    found = {row.name for row in rows}
    rows += [SqlRow(name) for name in names if name not in found]
    at, floor, since, until = (int(cell) for cell in lines[0][: _UNTIL + 1])
    return SqlSnapshot(at, rows, floor, frozenset(silent), since, until)


def read_text(cell: Any) -> str:  # noqa: ANN401 - bytes of one kind or another
    """Read a text, which is bytes in the tables."""
    return cell if isinstance(cell, str) else bytes(cell).decode()


_READ: dict[type, Callable[[bytes], Any]] = {str: bytes.decode, int: int, bool: b"1".__eq__}
