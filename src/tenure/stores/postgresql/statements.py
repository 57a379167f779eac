"""The statements of one deployment, and how their parameters and rows are written."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tenure.stores import table_codec
from tenure.stores.postgresql.connection import Cell, PgStatement, Table
from tenure.stores.postgresql.schema import expand
from tenure.stores.sql.database import SqlSnapshot, SqlWrite
from tenure.stores.sql.rows import COLUMNS, SqlRow

SILENT, NAME = 4, 5
"""Columns of a snapshot: the channels on which nobody listens; the first of the row."""

TRUE, FALSE = b"t", b"f"

_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""A NUL in JSON: not a backslash that is itself escaped, and `u0000` behind it."""


class PgStatements:
    """The statements on the tables of one schema and prefix."""

    def __init__(self, schema: str, prefix: str) -> None:
        """Fill in the names of the tables and functions."""

        def make(name: str, text: str, optional: int = 0) -> PgStatement:
            return PgStatement(f"tenure_{name}", expand(text, schema, prefix), optional)

        self.acquire = make(
            "acquire",
            "SELECT token, place, last_token, rest, (row_found).* "
            "FROM @acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
            4,
        )
        self.release = make("release", "SELECT released, (row_found).* FROM @release($1, $2, $3, $4, $5)", 1)
        self.renew = make("renew", "SELECT * FROM @renew($1, $2, $3, $4, $5)")
        self.withdraw = make("withdraw", "SELECT place, holder FROM @withdraw($1, $2, $3, $4, $5)")
        self.read = make("read", "SELECT * FROM @read($1, $2, $3, $4)")
        self.lock = make("lock", "SELECT * FROM @lock($1, $2, $3, $4)")
        places = ", ".join(f"${place}" for place in range(1, 26))
        self.write = make("write", f"SELECT unnest(@write({places}))")
        self.sweep = make("sweep", "SELECT @sweep($1, $2, $3, $4)")
        self.names = make(
            "names",
            "SELECT name FROM @names, (SELECT @refuse_later($4)) AS checked "
            "WHERE idle_after > @now AND name > $1 AND name >= $2 AND starts_with(name, $2) ORDER BY name LIMIT $3",
        )
        self.read_cell = make(
            "read_cell", "SELECT at, since, version_found, value_found FROM @read_cell($1, $2, $3, $4)"
        )
        self.write_cell = make(
            "write_cell",
            "SELECT at, since, version_found, value_found, written FROM @write_cell($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        self.sweep_cells = make("sweep_cells", "SELECT @sweep_cells($1, $2, $3)")
        self.look = make(
            "look", "SELECT 'form ' || form || ' ' || needs || ' ', longest_ttl, @silence_factor(0, 0, 0) FROM @meta"
        )
        self.raise_form = make("raise_form", "UPDATE @meta SET form = @form, needs = @needed WHERE form < @form")
        self.lengthen = make("lengthen", "UPDATE @meta SET longest_ttl = $1 WHERE longest_ttl < $1")
        self.doubt = make("doubt", "UPDATE @meta SET timeline = ''")
        self.end_quarantine = make(
            "end_quarantine",
            "UPDATE @meta AS m SET quarantined_until = @now FROM (SELECT quarantined_until FROM @meta) AS before "
            "WHERE m.quarantined_until > @now RETURNING before.quarantined_until - @now",
        )


# -- parameters --------------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    """Write a text. PostgreSQL knows no NUL, so it is escaped, as is the character that escapes it."""
    if "\0" in value or "\\" in value:
        value = value.replace("\\", "\\\\").replace("\0", "\\0")
    return value.encode()


def json_text(value: str) -> bytes:
    """Write JSON. The server's own functions read none with a NUL, so an owner that has one shows its escape."""
    if "\\u0000" in value:
        value = _NUL.sub(r"\1\\\\u0000", value)
    return value.encode()


def read_text(cell: Cell) -> str:
    """Read what `text` wrote."""
    value = (cell or b"").decode()
    if "\\" not in value:
        return value
    return value.replace("\\\\", "\\\0").replace("\\0", "\0").replace("\\\0", "\\")


def flag(value: object) -> bytes:
    """Write a boolean."""
    return TRUE if value else FALSE


def array(values: Iterable[bytes]) -> bytes:
    """Write an array."""
    quoted = (value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') for value in values)
    return b"{" + b",".join(b'"' + value + b'"' for value in quoted) + b"}"


def numbers(values: Iterable[int]) -> bytes:
    """Write an array of numbers."""
    return b"{" + b",".join(b"%d" % value for value in values) + b"}"


# -- rows --------------------------------------------------------------------------------------------------------


def read_snapshot(table: Sequence[Sequence[Cell]], first: int = 0) -> SqlSnapshot:
    """Read the rows of a snapshot, whose columns begin with the one at `first`."""
    rows: list[SqlRow] = []
    silent: set[str] = set()
    for line in table:
        row = line[first + NAME :]
        rows.append(SqlRow(*[read(cell) for read, cell in zip(_READERS, row, strict=True)]))
        silent.update((line[first + SILENT] or b"").decode().split())
    at, floor, since, until = (int(cell or 0) for cell in table[0][first : first + 4])
    return SqlSnapshot(at, rows, floor, frozenset(silent), since, until)


def _decode(cell: Cell) -> str:
    return (cell or b"").decode()


_READ: dict[type, Callable[[Any], Any]] = {str: _decode, int: int, bool: lambda cell: cell == TRUE}
_READERS: list[Callable[[Any], Any]] = [read_text if name == "name" else _READ[kind] for name, kind in COLUMNS.items()]


def columns_of(rows: Sequence[SqlRow]) -> list[bytes]:
    """Write rows as one array for each column, but for the waiters, which have rows of their own."""
    return [
        numbers(getattr(row, name) for row in rows)
        if kind is int
        else array(_WRITERS.get(name, flag if kind is bool else str.encode)(getattr(row, name)) for row in rows)
        for name, kind in COLUMNS.items()
        if name != "queue"
    ]


def changes_of(write: SqlWrite) -> tuple[list[bytes], list[bytes]]:
    """Return which waiters leave their places, and which change or join the tail: `in_gone` and `in_put` of @write.

    A waiter behind one that joins the tail joins it as well, so that the order is kept.
    """
    gone: list[bytes] = []
    put: list[bytes] = []
    for row in write.rows:
        replaced = write.replaced.get(row.name)
        if row.queue == (queue := replaced.queue if replaced is not None else ""):
            continue
        before, after, name = table_codec.split_queue(queue), table_codec.split_queue(row.queue), text(row.name)
        ranks = {request_id: rank for rank, request_id in enumerate(before)}
        last = -1
        for request_id, waiter in after.items():
            if last < (rank := ranks.get(request_id, -1)):
                last = rank
                del ranks[request_id]
                if before[request_id] == waiter:
                    continue
            else:
                last = len(before)
            put += (name, *map(json_text, waiter))
        for request_id in ranks:
            gone += (name, request_id.encode())
    return gone, put


_WRITERS: dict[str, Callable[[Any], bytes]] = {"name": text, "holder": json_text}


def names_of(table: Table) -> list[str]:
    """Read a column of names."""
    return [read_text(cell) for (cell,) in table]
