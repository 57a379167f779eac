"""The statements of one deployment, and how their parameters and rows are written."""

import re
from collections.abc import Iterable, Sequence

from tenure.stores.postgresql.connection import Cell, PgStatement, Table
from tenure.stores.postgresql.schema import expand
from tenure.stores.sql.database import SqlSnapshot
from tenure.stores.sql.rows import SqlRow

COLUMNS = (
    *("at", "floor", "quarantined_since", "quarantined_until", "silent", "name", "version", "counter", "plain"),
    *("request_id", "holder", "ttl", "lock_delay", "granted_at", "expires_at", "last_released", "tombstones"),
    *("used_at", "idle_after", "state", "heads", "queue", "waiting"),
)
"""The columns of a snapshot."""

NAME = COLUMNS.index("name")
"""The first column of the row in a snapshot."""

TRUE, FALSE = b"t", b"f"

_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""A NUL in JSON: not a backslash that is itself escaped, and `u0000` behind it."""


class PgStatements:
    """The statements on the tables of one schema and prefix."""

    def __init__(self, schema: str, prefix: str) -> None:
        """Write them."""

        def make(name: str, text: str, optional: int = 0) -> PgStatement:
            return PgStatement(f"tenure_{name}", expand(text, schema, prefix), optional)

        self.acquire = make(
            "acquire",
            "SELECT token, place, last_token, rest, (row_found).* "
            "FROM @acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
            4,
        )
        self.release = make("release", "SELECT released, (row_found).* FROM @release($1, $2, $3, $4, $5)", 1)
        self.renew = make("renew", "SELECT * FROM @renew($1, $2, $3, $4)")
        self.read = make("read", "SELECT * FROM @read($1, $2, $3, $4)")
        self.lock = make("lock", "SELECT * FROM @lock($1, $2, $3, $4)")
        places = ", ".join(f"${place}" for place in range(1, 25))
        self.write = make("write", f"SELECT unnest(@write({places}))")
        self.sweep = make("sweep", "SELECT @sweep($1, $2, $3, $4)")
        self.names = make(
            "names",
            "SELECT name FROM @names, (SELECT @refuse_later($4)) AS checked "
            "WHERE idle_after > @now AND name > $1 AND name >= $2 AND starts_with(name, $2) ORDER BY name LIMIT $3",
        )
        self.read_cell = make(
            "read_cell",
            "SELECT @now, c.version, encode(c.value, 'hex') "
            "FROM (SELECT $1::text AS name, @refuse_later($2)) AS wanted LEFT JOIN @cells AS c ON c.name = wanted.name",
        )
        self.write_cell = make(
            "write_cell", "SELECT at, version_found, value_found, written FROM @write_cell($1, $2, $3, $4, $5)"
        )
        self.sweep_cells = make("sweep_cells", "SELECT @sweep_cells($1, $2, $3)")
        self.look = make(
            "look", "SELECT 'form ' || form || ' ' || needs || ' ', longest_ttl, @silence_factor(0, 0, 0) FROM @meta"
        )
        self.raise_form = make("raise_form", "UPDATE @meta SET form = @form, needs = @needed WHERE form < @form")
        self.lengthen = make("lengthen", "UPDATE @meta SET longest_ttl = $1 WHERE longest_ttl < $1")
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
        rows.append(_read_row(line[first + NAME :]))
        silent.update((line[first + 4] or b"").decode().split())
    at, floor, since, until = (int(cell or 0) for cell in table[0][first : first + 4])
    return SqlSnapshot(at, rows, floor, frozenset(silent), since, until)


def _read_row(cells: Sequence[Cell]) -> SqlRow:
    name, version, counter, plain, request_id, holder, *others = [cell or b"" for cell in cells]
    ttl, lock_delay, granted_at, expires_at, last_released, tombstones, *others = others
    used_at, idle_after, state, heads, queue, waiting = others
    return SqlRow(
        read_text(name),
        int(version),
        int(counter),
        plain == TRUE,
        request_id.decode(),
        holder.decode(),
        int(ttl),
        int(lock_delay),
        int(granted_at),
        int(expires_at),
        last_released.decode(),
        tombstones.decode(),
        int(used_at),
        int(idle_after),
        state.decode(),
        heads.decode(),
        queue.decode(),
        int(waiting),
    )


def columns_of(rows: Sequence[SqlRow]) -> list[bytes]:
    """Write rows as one array for each column."""
    return [
        array(text(row.name) for row in rows),
        numbers(row.version for row in rows),
        numbers(row.counter for row in rows),
        array(flag(row.plain) for row in rows),
        array(row.request_id.encode() for row in rows),
        array(json_text(row.holder) for row in rows),
        numbers(row.ttl for row in rows),
        numbers(row.lock_delay for row in rows),
        numbers(row.granted_at for row in rows),
        numbers(row.expires_at for row in rows),
        array(row.last_released.encode() for row in rows),
        array(row.tombstones.encode() for row in rows),
        numbers(row.used_at for row in rows),
        numbers(row.idle_after for row in rows),
        array(row.state.encode() for row in rows),
        array(row.heads.encode() for row in rows),
        array(json_text(row.queue) for row in rows),
        numbers(row.waiting for row in rows),
    ]


def names_of(table: Table) -> list[str]:
    """Read a column of names."""
    return [read_text(cell) for (cell,) in table]
