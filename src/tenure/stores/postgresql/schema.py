"""The tables and functions of Tenure in PostgreSQL, as SQL: to make them, and to print them for an administrator."""

import re
from importlib import resources

from tenure.contracts import forms
from tenure.fencing.schema import fences_ddl, fences_grants, fences_table
from tenure.stores.sql.database import NEW_FOR, REMOVED_FOR
from tenure.stores.sql.rows import HEADS
from tenure.table.times import CROWD, LATEST, LONGEST_SILENCE, MARGIN, PROPOSAL_BOUND, RETRY, TOMBSTONE

SCHEMA = resources.files("tenure.stores.postgresql").joinpath("schema.sql").read_text("utf-8")
"""Read at import time: reading a resource imports modules, and a fork must not interrupt an import."""

TOKENS = {
    "@now": "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    "@started": "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint",
    "@timeline": "left(pg_walfile_name(pg_current_wal_lsn()), 8)",
    "@form": str(forms.WRITES),
    "@needed": f"'{forms.READ_SINCE[forms.WRITES]}'",
    "@latest": str(LATEST),
    "@proposal_bound": str(PROPOSAL_BOUND),
    "@new_for": str(NEW_FOR),
    "@removed_for": str(REMOVED_FOR),
    "@heads": str(HEADS),
    "@margin": str(MARGIN),
    "@tombstone": str(TOMBSTONE),
    "@retry": str(RETRY),
    "@crowd": str(CROWD),
    "@longest_silence": str(LONGEST_SILENCE),
    "@by_index": "IF current_setting('enable_hashjoin') = 'on' THEN PERFORM @plan_by_index(); END IF",
}
"""The tokens of the SQL that are no names, and what they stand for."""


NAME = re.compile("@[a-z_]+")


def quote(identifier: str) -> str:
    """Return an identifier in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'


def expand(sql: str, schema: str, prefix: str) -> str:
    """Replace the tokens of the SQL: `@names` by the table of this schema and prefix."""
    owner = f"{quote(schema)}." if schema else ""

    def replace(found: re.Match[str]) -> str:
        if found[0] in TOKENS:
            return NAME.sub(replace, TOKENS[found[0]])
        return owner + quote(prefix + found[0][1:])

    return NAME.sub(replace, sql)


def ddl(schema: str, prefix: str) -> str:
    """Return the SQL that makes the tables and functions, or leaves them as they are. It may be run again.

    The table of fences is for guards in transactions of the user's; no store uses it.
    """
    plain = "\n".join(line for line in SCHEMA.splitlines() if not line.startswith("--"))
    fences = fences_ddl("postgresql", fences_table(schema, prefix))
    return f"{_make_schema(schema)}{expand(plain, schema, prefix).strip()}\n\n{fences}"


def _make_schema(schema: str) -> str:
    """Return the SQL that makes a schema if it is missing: IF NOT EXISTS needs the right to make one even if not."""
    if not schema:
        return ""
    missing = f"to_regnamespace('{quote(schema)}') IS NULL"
    return f"DO $$ BEGIN IF {missing} THEN CREATE SCHEMA {quote(schema)}; END IF; END $$;\n\n"


def grants(schema: str, prefix: str, role: str) -> str:
    """Return the SQL that gives a role the least rights that a client needs."""
    usage = f"GRANT USAGE ON SCHEMA {quote(schema)} TO {quote(role)};\n" if schema else ""
    tables = "".join(
        expand(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO ", schema, prefix) + f"{quote(role)};\n"
        for table in ("@names", "@waiters", "@cells")
    )
    meta = expand("GRANT SELECT, UPDATE ON @meta TO ", schema, prefix) + f"{quote(role)};\n"
    return usage + tables + meta + fences_grants("postgresql", fences_table(schema, prefix), role)
