"""What a MySQL or MariaDB server tells of its settings. Nothing is written."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tenure.doctor.mysql import RULES, MySqlFacts
from tenure.errors import StoreError
from tenure.escaping import shown
from tenure.stores.mysql.channel import MySqlChannel
from tenure.stores.mysql.connection import MySqlConnection
from tenure.stores.mysql.errors import DENIED, Row, text_of
from tenure.stores.mysql.link import MySqlLink
from tenure.stores.mysql.options import MySqlDeployment
from tenure.stores.mysql.schema import expand
from tenure.stores.mysql.statements import MySqlStatements
from tenure.stores.sql.deployment import OFF
from tenure.stores.sql.errors import SqlBroken, SqlServerError
from tenure.stores.sql.examining import SqlExaminer, quarantine_of, seen

CLOCK = "SELECT UNIX_TIMESTAMP(NOW(6))"

SETTINGS = (
    "SELECT @@global.sync_binlog, @@global.log_bin, @@session.binlog_format, @@global.wait_timeout, @@max_connections"
)

SESSIONS = "SHOW GLOBAL STATUS LIKE 'Threads_connected'"

GROUPS = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', "
    "'wsrep_on', 'group_replication_group_name')"
)

MINE = "GRANTEE = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''')"
"""The condition that a privilege is one of this user."""

MAY_SEE_SESSIONS = (
    f"SELECT COUNT(*) FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'PROCESS' AND {MINE}"  # noqa: S608 - constants
)
"""Without this right a user sees its own sessions only, and would take a primary for one without replicas."""

REPLICAS = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"

TABLES = (
    "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
    "AND TABLE_NAME IN ('%snames', '%smeta', '%smessages', '%scells')"
)
NEEDED_TABLES = 4

MAY_MAKE = (
    "SELECT CURRENT_ROLE(), (SELECT COUNT(*) FROM information_schema.USER_PRIVILEGES "  # noqa: S608 - constants
    f"WHERE PRIVILEGE_TYPE = 'CREATE' AND {MINE}) + (SELECT COUNT(*) FROM information_schema.SCHEMA_PRIVILEGES "
    f"WHERE PRIVILEGE_TYPE = 'CREATE' AND DATABASE() LIKE TABLE_SCHEMA AND {MINE})"
)

RIGHTS = {
    ("SELECT", "$names"): "EXPLAIN SELECT name FROM $names LIMIT 1",
    ("INSERT", "$names"): "EXPLAIN INSERT INTO $names SELECT * FROM $names",
    ("UPDATE", "$names"): "EXPLAIN UPDATE $names SET version = version",
    ("DELETE", "$names"): "EXPLAIN DELETE FROM $names",
    ("SELECT", "$meta"): "EXPLAIN SELECT floor FROM $meta LIMIT 1",
    ("UPDATE", "$meta"): "EXPLAIN UPDATE $meta SET floor = floor",
    ("SELECT", "$messages"): "EXPLAIN SELECT id FROM $messages LIMIT 1",
    ("INSERT", "$messages"): "EXPLAIN INSERT INTO $messages SELECT * FROM $messages",
    ("DELETE", "$messages"): "EXPLAIN DELETE FROM $messages",
    ("SELECT", "$cells"): "EXPLAIN SELECT name FROM $cells LIMIT 1",
    ("INSERT", "$cells"): "EXPLAIN INSERT INTO $cells SELECT * FROM $cells",
    ("UPDATE", "$cells"): "EXPLAIN UPDATE $cells SET version = version",
    ("DELETE", "$cells"): "EXPLAIN DELETE FROM $cells",
}
"""A statement for each right that a client needs. EXPLAIN needs the same right, and runs nothing."""

NO_ROLE = frozenset({"NONE", "None", ""})

Query = Callable[[str], Coroutine[Any, Any, Sequence[Row]]]


class MySqlExaminer(SqlExaminer[MySqlConnection, MySqlDeployment, MySqlFacts]):
    """Looks at the server of one client."""

    rules = RULES

    async def _look(self, link: MySqlLink, connection: MySqlConnection, facts: MySqlFacts, ttl: float) -> None:
        async def query(statement: str) -> Sequence[Row]:
            try:
                return (await connection.run((statement,), self._until()))[0].rows
            except (SqlServerError, SqlBroken) as error:
                raise link.meaning(connection.place, error) from error

        facts.ttl, facts.ahead = ttl, await self._ahead(facts, lambda: query(CLOCK))
        await self._look_at_settings(query, facts)
        await self._look_at_group(query, facts)
        if facts.get_lock:
            facts.lacks, facts.quarantine, facts.longest_ttl, facts.why_silent = [], 0.0, 0.0, ""
            return
        await self._look_at_tables(query, facts)
        await self._look_at_channel(link, facts)

    async def _look_at_settings(self, query: Query, facts: MySqlFacts) -> None:
        names = ("sync_binlog", "log_bin", "binlog_format", "wait_timeout", "most")
        if (rows := await seen(facts, names, lambda: query(SETTINGS))) is not None:
            sync, log_bin, form, wait, most = rows[0]
            facts.sync_binlog, facts.wait_timeout, facts.most = int(sync), int(wait), int(most)
            facts.log_bin = text_of(log_bin).upper() in {"1", "ON"}
            facts.binlog_format = shown(text_of(form)).upper()
        if rows := await seen(facts, ("used",), lambda: query(SESSIONS)):
            facts.used = int(rows[0][1])

    async def _look_at_group(self, query: Query, facts: MySqlFacts) -> None:
        """Look for replicas, and for a cluster."""
        if (rows := await seen(facts, ("galera", "semi_sync"), lambda: query(GROUPS))) is not None:
            said = {text_of(name).lower(): text_of(value).upper() for name, value in rows}
            facts.galera = said.get("wsrep_on") == "ON" or bool(said.get("group_replication_group_name"))
            facts.semi_sync = "ON" in {said.get(f"rpl_semi_sync_{each}_enabled") for each in ("master", "source")}
        if (rows := await seen(facts, ("replicas",), lambda: query(MAY_SEE_SESSIONS))) is None:
            return
        if not int(rows[0][0]):
            facts.unseen["replicas"] = "this user has no right to PROCESS"
        elif (rows := await seen(facts, ("replicas",), lambda: query(REPLICAS))) is not None:
            facts.replicas = int(rows[0][0])

    async def _look_at_tables(self, query: Query, facts: MySqlFacts) -> None:
        """Look whether the tables are there, what this user may do with them, and what they say of a quarantine."""
        prefix = self._deployment.prefix
        names = ("lacks", "quarantine", "longest_ttl")
        rows = await seen(facts, names, lambda: query(TABLES.replace("%s", prefix)))
        if rows is None:
            return
        if int(rows[0][0]) < NEEDED_TABLES:
            facts.quarantine = facts.longest_ttl = 0.0
            await self._look_at_right_to_make(query, facts)
            return
        facts.lacks = await seen(facts, ("lacks",), lambda: _missing(query, prefix))
        meta = "SELECT $now, quarantined_since, quarantined_until, longest_ttl, timeline <> $timeline FROM $meta"
        rows = await seen(facts, ("quarantine", "longest_ttl"), lambda: query(expand(meta, "", prefix)))
        if not rows:
            return
        now, since, until, longest, other = map(int, rows[0])
        facts.longest_ttl = longest / 1e6
        facts.quarantine, facts.quarantined_because = quarantine_of(
            self._deployment, since, until, now, other=bool(other)
        )

    async def _look_at_right_to_make(self, query: Query, facts: MySqlFacts) -> None:
        rows = await seen(facts, ("lacks",), lambda: query(MAY_MAKE))
        if rows is None:
            return
        role, rights = rows[0]
        if int(rights):
            facts.lacks = []
        elif text_of(role) in NO_ROLE:
            facts.lacks = ["CREATE in the database"]
        else:
            facts.unseen["lacks"] = "the tables are not there yet, and the server does not tell what the role may make"

    async def _look_at_channel(self, link: MySqlLink, facts: MySqlFacts) -> None:
        """Try out whether a session can be woken."""
        if self._deployment.notify == OFF or facts.read_only:
            facts.why_silent = ""
            return
        channel = MySqlChannel(self._runtime, link, MySqlStatements(self._deployment.prefix))
        facts.why_silent = await seen(facts, ("why_silent",), lambda: channel.try_out(self._until()))


async def _missing(query: Query, prefix: str) -> list[str]:
    """Return the rights that the user lacks. Raises StoreError."""
    lacks: list[str] = []
    for (right, table), statement in RIGHTS.items():
        try:
            await query(expand(statement, "", prefix))
        except StoreError as error:
            if getattr(error.__cause__, "code", 0) not in DENIED:
                raise
            lacks.append(f"{right} on {expand(table, '', prefix)}")
    return lacks
