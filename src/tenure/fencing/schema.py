"""The table of fences for each database: its statement, the rights that a program needs, and the check of its name."""

import re

from tenure.errors import UsageError
from tenure.fence import FENCES

TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?", re.ASCII)
IDENTIFIER = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62})?", re.ASCII)
ROLE = re.compile(r"[A-Za-z0-9_.%@-]{1,128}", re.ASCII)

POSTGRESQL = """\
CREATE TABLE IF NOT EXISTS {table} (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,
    touched_at timestamptz NOT NULL
);
"""

MYSQL = """\
CREATE TABLE IF NOT EXISTS {table} (
    name VARBINARY(1024) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL,
    touched_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;
"""

SQLITE = """\
CREATE TABLE IF NOT EXISTS {table} (
    name TEXT NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL,
    touched_at TEXT NOT NULL
) WITHOUT ROWID;
"""

TABLES = {"postgresql": POSTGRESQL, "mysql": MYSQL, "sqlite": SQLITE}
"""The statement that makes the table, by the name of the dialect."""


def checked_table(table: object) -> str:
    """Return the name of a table if it is an identifier, or two with a dot between; else raise UsageError."""
    if isinstance(table, str) and TABLE_NAME.fullmatch(table):
        return table
    raise UsageError(
        f"table={table!r} is no name for a table of fences: use letters, digits and underscores of ASCII, up to 63, "
        "not a digit first, with the schema and a dot before it if needed, as in app.fences."
    )


def fences_table(schema: str = "", prefix: str = "tenure_") -> str:
    """Return the name of the table of fences. Raises UsageError if the schema or the prefix is no identifier."""
    for what, part in (("schema", schema), ("prefix", prefix)):
        if not IDENTIFIER.fullmatch(part):
            raise UsageError(
                f"the {what} {part!r} cannot be used in SQL: use letters, digits and underscores of ASCII, up to 63, "
                "not a digit first."
            )
    return checked_table(f"{schema}.{prefix}fences" if schema else f"{prefix}fences")


def quoted_table(dialect: str, table: str) -> str:
    """Return the name of a table as SQL. In quotes it may be a word of SQL, and keeps its case in PostgreSQL."""
    mark = "`" if dialect == "mysql" else '"'
    return ".".join(f"{mark}{part}{mark}" for part in checked_table(table).split("."))


def fences_ddl(dialect: str, table: str = FENCES) -> str:
    """Return the statement that makes a table of fences in a database of this dialect, if the table is not there."""
    return TABLES[dialect].format(table=quoted_table(dialect, table))


def fences_grants(dialect: str, table: str, role: str) -> str:
    """Return the statement that gives a role, or a user of MySQL, the least rights on a table of fences; SQLite: ""."""
    if dialect == "sqlite":
        return ""
    return f"GRANT SELECT, INSERT, UPDATE ON {quoted_table(dialect, table)} TO {quoted_role(dialect, role)};\n"


def quoted_role(dialect: str, role: str) -> str:
    """Return a role of PostgreSQL, or a user of MySQL (`name` or `name@host`), as SQL. Raises UsageError for others."""
    if not ROLE.fullmatch(role):
        raise UsageError(f"the role {role!r} cannot be used in SQL: use letters, digits and _ . - % @, up to 128.")
    if dialect == "postgresql":
        return f'"{role}"'
    user, _, host = role.partition("@")
    return f"'{user}'@'{host or '%'}'"
