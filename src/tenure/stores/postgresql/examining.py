"""What a PostgreSQL server tells of its settings. Nothing is written."""

from collections.abc import Callable
from typing import Any

from tenure.doctor.postgresql import RULES, PostgresFacts
from tenure.escaping import shown
from tenure.stores.postgresql.connection import Params, PgConnection, PgStatement, Table
from tenure.stores.postgresql.link import PgLink
from tenure.stores.postgresql.options import PgDeployment
from tenure.stores.postgresql.schema import expand, quote
from tenure.stores.sql.errors import SqlBroken, SqlServerError
from tenure.stores.sql.examining import SqlExaminer, quarantine_of, seen

HEARING = "tenure_doctor"

SETTINGS = PgStatement(
    "tenure_defaults",
    "SELECT name, reset_val FROM pg_settings WHERE name IN ('default_transaction_read_only', "
    "'default_transaction_isolation', 'statement_timeout', 'lock_timeout', 'fsync', 'synchronous_commit', "
    "'synchronous_standby_names', 'max_connections')",
)
"""The settings with which sessions of this role begin: behind a pooler they count."""

CLOCK = PgStatement("tenure_clock", "SELECT extract(epoch FROM clock_timestamp())")

SESSIONS = PgStatement(
    "tenure_sessions",
    "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), "
    "(SELECT count(*) FROM pg_stat_replication)",
)

TABLES = {
    **dict.fromkeys(("@names", "@waiters", "@cells"), "SELECT INSERT UPDATE DELETE"),
    "@meta": "SELECT UPDATE",
}
"""The rights that a client needs, by table."""

Look = Callable[[PgStatement, Params], Any]


class PgExaminer(SqlExaminer[PgConnection, PgDeployment, PostgresFacts]):
    """Looks at the server of one client."""

    rules = RULES

    async def _look(self, link: PgLink, connection: PgConnection, facts: PostgresFacts, ttl: float) -> None:
        async def query(statement: PgStatement, params: Params = ()) -> Table:
            try:
                return await link.run(connection, connection.execute_once(statement, params), self._until())
            except (SqlServerError, SqlBroken) as error:
                raise link.meaning(connection.place, error) from error

        facts.ttl, facts.ahead = ttl, await self._ahead(facts, lambda: query(CLOCK))
        await self._look_at_settings(query, facts)
        if (counts := await seen(facts, ("used", "standbys"), lambda: query(SESSIONS))) is not None:
            facts.used, facts.standbys = (int(each or 0) for each in counts[0])
        await self._look_at_hearing(query, connection, facts)
        if facts.advisory:
            facts.lacks, facts.tables, facts.quarantine, facts.longest_ttl = [], True, 0.0, 0.0
            return
        await self._look_at_tables(query, facts)

    async def _look_at_settings(self, query: Look, facts: PostgresFacts) -> None:
        names = (
            "read_only",
            "isolation",
            "statement_timeout",
            "lock_timeout",
            "commit",
            "synchronous_standbys",
            "most",
        )
        found = await seen(facts, names, lambda: query(SETTINGS, ()))
        said = {(name or b"").decode(): (value or b"").decode("utf-8", "replace") for name, value in found or ()}
        if "fsync" in said:
            facts.fsync = said["fsync"] == "on"
        if "default_transaction_read_only" in said:
            facts.read_only = said["default_transaction_read_only"] == "on"
        facts.isolation = shown(said.get("default_transaction_isolation", "")) or None
        facts.commit = shown(said.get("synchronous_commit", "")) or None
        if "synchronous_standby_names" in said:
            facts.synchronous_standbys = shown(said["synchronous_standby_names"])
        numbers = {name: int(said[key]) if said.get(key, "").isdigit() else None for name, key in NUMBERS.items()}
        facts.statement_timeout, facts.lock_timeout = numbers["statement_timeout"], numbers["lock_timeout"]
        facts.most = numbers["most"]

    async def _look_at_hearing(self, query: Look, connection: PgConnection, facts: PostgresFacts) -> None:
        """Have the session notify itself. Behind a pooler nothing may be left in its sessions."""
        if facts.pooled or facts.standby:
            facts.hears = not facts.pooled
            return

        async def hear() -> bool:
            await query(PgStatement("tenure_listen", f"LISTEN {HEARING}"), ())
            await query(PgStatement("tenure_notify", f"SELECT pg_notify('{HEARING}', '')"), ())
            return b"" in connection.hear()

        facts.hears = await seen(facts, ("hears",), hear)

    async def _look_at_tables(self, query: Look, facts: PostgresFacts) -> None:
        """Look whether the tables are there, what this role may do with them, and what they say of a quarantine."""
        schema, prefix = self._deployment.schema, self._deployment.prefix
        tables = {expand(table, schema, prefix): rights.split() for table, rights in TABLES.items()}
        found = await seen(facts, ("tables", "lacks", "quarantine", "longest_ttl"), lambda: query(_there(tables), ()))
        if found is None:
            return
        facts.tables = all(each == b"t" for each in found[0])
        if not facts.tables:
            facts.quarantine = facts.longest_ttl = 0.0
            facts.lacks = await seen(facts, ("lacks",), lambda: self._rights_to_make(query))
            return
        facts.lacks = await seen(facts, ("lacks",), lambda: _missing(query, tables))
        meta = expand(
            "SELECT @now, quarantined_since, quarantined_until, longest_ttl, timeline <> @timeline, "
            "started <> @started FROM @meta",
            schema,
            prefix,
        )
        rows = await seen(facts, ("quarantine", "longest_ttl"), lambda: query(PgStatement("tenure_meta", meta), ()))
        if not rows:
            return
        now, since, until, longest = (int(each or 0) for each in rows[0][:4])
        other, restarted = (each == b"t" for each in rows[0][4:])
        facts.longest_ttl = longest / 1e6
        other = other or (restarted and self._deployment.strict)
        facts.quarantine, facts.quarantined_because = quarantine_of(self._deployment, since, until, now, other=other)

    async def _rights_to_make(self, query: Look) -> list[str]:
        """Return what the role lacks to make the tables."""
        schema = self._deployment.schema
        place = "current_schema()" if not schema else f"(SELECT nspname FROM pg_namespace WHERE nspname = '{schema}')"  # noqa: S608 - an identifier
        text = (
            f"SELECT {place}, has_schema_privilege({place}, 'CREATE'), "
            "has_database_privilege(current_database(), 'CREATE')"
        )
        (where, may_make, may_make_schema), *_ = await query(PgStatement("tenure_may", text), ())
        if where is None and schema and may_make_schema == b"t":
            return []
        return [] if may_make == b"t" else [f"CREATE in the schema {quote(schema) if schema else 'of the search path'}"]


NUMBERS = {"statement_timeout": "statement_timeout", "lock_timeout": "lock_timeout", "most": "max_connections"}


def _there(tables: dict[str, list[str]]) -> PgStatement:
    places = ", ".join(f"to_regclass('{table}') IS NOT NULL" for table in tables)
    return PgStatement("tenure_there", f"SELECT {places}")


async def _missing(query: Look, tables: dict[str, list[str]]) -> list[str]:
    """Return the rights that the role lacks."""
    needed = [(table, right) for table, rights in tables.items() for right in rights]
    checks = ", ".join(f"has_table_privilege(to_regclass('{table}'), '{right}')" for table, right in needed)
    rows = await query(PgStatement("tenure_rights", f"SELECT {checks}"), ())
    return [f"{right} on {table}" for (table, right), may in zip(needed, rows[0], strict=True) if may != b"t"]
