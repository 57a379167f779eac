"""The tables of Tenure in MySQL and MariaDB, as SQL: to make them, and to print them for an administrator."""

import re
from importlib import resources

from tenure.contracts import forms
from tenure.fencing.schema import fences_ddl, fences_grants, fences_table, quoted_role
from tenure.stores.sql.database import NEW_FOR
from tenure.table.times import LATEST, PROPOSAL_BOUND

SCHEMA = resources.files("tenure.stores.mysql").joinpath("schema.sql").read_text("utf-8")
"""Read at import time: reading a resource imports modules, and a fork must not interrupt an import."""

TOKENS = {
    "$now": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    "$timeline": "CONCAT(@@server_id, '/', @@hostname, '/', @@port, '/', @@datadir)",
    "$started": "COALESCE(@tenure_started, 0)",
    "$form": str(forms.WRITES),
    "$needed": f"'{forms.READ_SINCE[forms.WRITES]}'",
    "$reads": str(forms.READS),
    "$mark": "CONCAT('form ', m.form, ' ', m.needs, ' ')",
    "$latest": str(LATEST),
    "$proposal_bound": str(PROPOSAL_BOUND),
    "$new_for": str(NEW_FOR),
}
"""The tokens of the SQL that are no names, and what they stand for.

`$form` is the form that this release writes, and `$needed` the first that reads it; `$reads` the latest form that this
release reads: no statement grants or removes a row of a later one; `$mark` is the mark that the table `m` has.

`$now` is when the statement began, so a statement that waited for a row may write an instant before that of the last
write. Therefore no statement shortens a lease; whatever lies ahead of `$now` is left to a step, which reads the clock
after the row. Too early an instant is safe for the rest: a lease counts as alive for longer, and a new lease ends
before its client's own count, which began when the statement was sent.

`$started` is when the server started, if a restart of it counts, else 0. A connection learns it once, because it does
not outlive the server.
"""


def quote(identifier: str) -> str:
    """Return an identifier in backquotes."""
    return "`" + identifier.replace("`", "``") + "`"


def expand(sql: str, schema: str, prefix: str) -> str:
    """Replace the tokens of the SQL: `$names` by the table of this database and prefix."""
    owner = f"{quote(schema)}." if schema else ""

    def replace(found: re.Match[str]) -> str:
        return TOKENS.get(found[0]) or owner + quote(prefix + found[0][1:])

    return re.sub(r"\$[a-z_]+", replace, sql)


def ddl(schema: str, prefix: str) -> str:
    """Return the SQL that makes the tables, or leaves them as they are. It may be run again.

    The table of fences is for guards in transactions of the user's; no store uses it.
    """
    plain = "\n".join(line for line in SCHEMA.splitlines() if not line.startswith("--"))
    made = f"CREATE DATABASE IF NOT EXISTS {quote(schema)};\n\n" if schema else ""
    fences = fences_ddl("mysql", fences_table(schema, prefix))
    return f"{made}{expand(plain, schema, prefix).strip()}\n\n{fences}"


def ddl_statements(prefix: str, *, doubted: bool = False) -> list[str]:
    """Return the same as single statements, for the database of a connection.

    Tables that are `doubted` are those of no server, so the first request begins a quarantine.
    """
    text = ddl("", prefix)
    if doubted:
        text = text.replace(TOKENS["$timeline"], "''")
    return [each.strip() for each in text.split(";") if each.strip()]


def grants(schema: str, prefix: str, role: str) -> str:
    """Return the SQL that gives a user, as `name` or `name@host`, the least rights that a client needs."""
    user = quoted_role("mysql", role)
    rights = {
        "$names": "SELECT, INSERT, UPDATE, DELETE",
        "$meta": "SELECT, INSERT, UPDATE",
        "$messages": "SELECT, INSERT, DELETE",
        "$cells": "SELECT, INSERT, UPDATE, DELETE",
    }
    store = "".join(f"GRANT {right} ON {expand(table, schema, prefix)} TO {user};\n" for table, right in rights.items())
    return store + fences_grants("mysql", fences_table(schema, prefix), role)
