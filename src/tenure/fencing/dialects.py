"""The statements that raise a fence, for each database, and what its errors mean.

A fence is one row: the name of the lock, and the greatest token seen. One statement inserts the row, or raises it; it
never lowers the token. It waits for a transaction that has raised the same fence, and locks the row until the user's
transaction ends. Then the token is read back under that lock.

*   PostgreSQL returns the token from the same statement.
*   MySQL reads the row by a locking read. A plain read would read from the snapshot of the transaction, which may be
    older than the lock. An UPDATE before the INSERT would lock the gap in which the row is missing. Two transactions
    that insert different new names would then deadlock. An INSERT with ON DUPLICATE KEY UPDATE locks the row alone,
    for the name is the only key of the table.
*   SQLite has one writer at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto


class Meaning(Enum):
    """What an error of a database means for a guard."""

    MISSING = auto()
    """There is no table of fences."""
    READ_ONLY = auto()
    """The connection, its transaction or its server is read-only."""
    DENIED = auto()
    """The database user lacks a right."""
    TO_RETRY = auto()
    """Another transaction was in the way."""


@dataclass(slots=True, frozen=True)
class Dialect:
    """How one kind of database raises a fence. The statements have {table}, {name} and {token} to fill in."""

    name: str
    """The word for it in `tenure schema`."""
    raise_fence: str
    read_fence: str | None
    """How to read the token; None if `raise_fence` returns it."""
    stored: Callable[[str], str | bytes]
    """Return a name as the table stores it."""
    meanings: Mapping[object, Meaning]
    """What the codes of its errors mean."""
    read_code: Callable[[BaseException], object]
    """Return the code of an error of a driver."""

    def code(self, error: BaseException) -> object:
        """Return the code of an error of a driver, which SQLAlchemy may have wrapped."""
        original = getattr(error, "orig", None)
        return self.read_code(original if isinstance(original, BaseException) else error)

    def meaning(self, error: BaseException) -> Meaning | None:
        """Return what an error of a driver means; None if it has no meaning here."""
        return self.meanings.get(self.code(error))


def escaped(name: str) -> str:
    r"""Return a name without NUL, which PostgreSQL cannot store and SQLite's shell cannot show: NUL becomes `\0`."""
    return name.replace("\\", "\\\\").replace("\0", "\\0")


NO_TABLE = "no such table"
SQLITE_BUSY, SQLITE_READONLY = 5, 8


def _sqlstate(error: BaseException) -> object:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def _number(error: BaseException) -> object:
    return error.args[0] if error.args else None


def _sqlite_code(error: BaseException) -> object:
    """Return the primary code. A missing table has no code of its own, so this returns a text for it."""
    if str(error).startswith(NO_TABLE):
        return NO_TABLE
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


POSTGRESQL = Dialect(
    name="postgresql",
    raise_fence=(
        "INSERT INTO {table} AS fence (name, token, touched_at) VALUES ({name}, {token}, clock_timestamp()) "
        "ON CONFLICT (name) DO UPDATE SET token = greatest(fence.token, excluded.token), "
        "touched_at = clock_timestamp() RETURNING fence.token"
    ),
    read_fence=None,
    stored=escaped,
    meanings={
        "42P01": Meaning.MISSING,
        "3F000": Meaning.MISSING,
        "25006": Meaning.READ_ONLY,
        "42501": Meaning.DENIED,
        "40001": Meaning.TO_RETRY,
        "40P01": Meaning.TO_RETRY,
    },
    read_code=_sqlstate,
)

DEADLOCK = 1213
"""The number of MySQL's error of a deadlock. The transaction is rolled back then."""

MYSQL = Dialect(
    name="mysql",
    raise_fence=(
        "INSERT INTO {table} (name, token, touched_at) VALUES ({name}, {token}, UTC_TIMESTAMP(6)) "
        "ON DUPLICATE KEY UPDATE token = GREATEST(token, {token}), touched_at = UTC_TIMESTAMP(6)"
    ),
    read_fence="SELECT token FROM {table} WHERE name = {name} FOR UPDATE",
    stored=str.encode,
    meanings={
        1146: Meaning.MISSING,
        1049: Meaning.MISSING,
        1290: Meaning.READ_ONLY,
        1792: Meaning.READ_ONLY,
        1836: Meaning.READ_ONLY,
        1044: Meaning.DENIED,
        1142: Meaning.DENIED,
        1143: Meaning.DENIED,
        1020: Meaning.TO_RETRY,
        1205: Meaning.TO_RETRY,
        DEADLOCK: Meaning.TO_RETRY,
    },
    read_code=_number,
)

SQLITE = Dialect(
    name="sqlite",
    raise_fence=(
        "INSERT INTO {table} (name, token, touched_at) VALUES ({name}, {token}, strftime('%Y-%m-%d %H:%M:%f', 'now')) "
        "ON CONFLICT (name) DO UPDATE SET token = max(token, excluded.token), touched_at = excluded.touched_at"
    ),
    read_fence="SELECT token FROM {table} WHERE name = {name}",
    stored=escaped,
    meanings={
        NO_TABLE: Meaning.MISSING,
        SQLITE_READONLY: Meaning.READ_ONLY,
        SQLITE_BUSY: Meaning.TO_RETRY,
    },
    read_code=_sqlite_code,
)

DIALECTS = {"postgresql": POSTGRESQL, "mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}
"""The dialects by the names that SQLAlchemy has for them."""
