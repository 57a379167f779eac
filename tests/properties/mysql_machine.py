"""The MySQL store on a real server, whose clock is a row that the test writes."""

import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from simulation.sql.server import SqlRules
from tenure.contracts.messages import Notification, NotificationKind
from tenure.runtimes.threads import ThreadsRuntime, complete
from tenure.stores import table_codec
from tenure.stores.mysql import database, schema, statements
from tenure.stores.mysql.database import MySqlDatabase
from tenure.stores.mysql.options import MySqlDeployment
from tenure.stores.mysql.threads import MySqlThreadLink
from tenure.stores.sql.database import SqlDatabase
from tenure.stores.sql.store import SqlStore
from tests.properties.sql_machine import SqlMachine
from tests.properties.store_machine import Client
from tests.servers import MariaDbServer
from tests.servers.mariadb import DATABASE, PASSWORD, USER

WITHIN = 20.0
"""Within how many seconds a notification comes that was sent."""

GUARDS = {(False, False): "off", (True, False): "observed", (True, True): "strict"}


class MySqlTables:
    """Tables of their own on a real server, and the connection by which a test sets their clock."""

    def __init__(self, server: MariaDbServer) -> None:
        """Name them."""
        self.prefix = f"t{uuid4().hex[:12]}_"
        self.address = server.address
        self.connection = server.connect()

    def execute(self, sql: str, *args: object) -> list[tuple[Any, ...]]:
        """Execute a statement, in which `$` is the prefix."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql.replace("$", self.prefix), args or None)
            return list(cursor.fetchall()) if cursor.description else []


@contextmanager
def tables_by_hand(server: MariaDbServer, *changes: tuple[str, str, str]) -> Generator[MySqlTables]:
    """Make tables whose clock, timeline and start are a row that the test writes, with changes of the statements."""
    tables = MySqlTables(server)
    changed: dict[str, str] = {}
    for template, before, after in changes:
        text: str = changed.get(template) or getattr(statements, template)
        assert before in text, f"{template} does not say {before!r}"
        changed[template] = text.replace(before, after)
    row = "(SELECT %s FROM " + tables.prefix + "clock)"  # noqa: S608 - a prefix of our own
    names = {f"${each}": row % each for each in ("now", "timeline", "started")}
    with (
        tables.connection,
        patch.dict(schema.TOKENS, names),
        _changed(changed),
        patch.object(database, "SWEEP_AT_MOST", 2),
    ):
        tables.execute("CREATE TABLE $clock (now BIGINT, timeline VARBINARY(20), started BIGINT) ENGINE = InnoDB")
        tables.execute("INSERT INTO $clock VALUES (1, '1', 1)")
        for statement in schema.ddl_statements(tables.prefix):
            tables.execute(statement)
        yield tables


@contextmanager
def _changed(templates: dict[str, str]) -> Generator[None]:
    with ExitStack() as changes:
        for template, text in templates.items():
            changes.enter_context(patch.object(statements, template, text))
        yield


class MySqlMachine(SqlMachine):
    """The MySQL store."""

    tables: MySqlTables

    def open_database(self) -> object:
        """Empty the tables."""
        self.shows = 0
        self.tables.execute("DELETE FROM $names")
        self.tables.execute("DELETE FROM $messages")
        self.tables.execute("UPDATE $clock SET timeline = '1', started = 1")
        self.tables.execute(
            "UPDATE $meta SET floor = 0, timeline = '1', started = 1, longest_ttl = 0, quarantined_since = 0, "
            "quarantined_until = 0"
        )
        self.set_clock()
        return self.tables

    def database(self, runtime: ThreadsRuntime, rules: SqlRules) -> SqlDatabase:
        """Return the access of one client."""
        deployment = MySqlDeployment([self.tables.address], USER, PASSWORD, DATABASE, prefix=self.tables.prefix)
        deployment.guard = GUARDS[rules.guarded, rules.strict]
        deployment.max_ttl = rules.longest_ttl / 1e6
        started = schema.TOKENS["$started"] if rules.strict else "0"
        with patch.dict(schema.TOKENS, {"$started": started}):
            return MySqlDatabase(runtime, deployment, MySqlThreadLink)

    def set_clock(self) -> None:
        """Write the time of the test."""
        if self.shows != self.clocks.now:
            self.shows = self.clocks.now
            self.tables.execute("UPDATE $clock SET now = %s", self.shows)

    def become_another(self, *, promoted: bool) -> None:
        """Have the server say so."""
        self.tables.execute("UPDATE $clock SET started = started + 1")
        if promoted:
            self.tables.execute("UPDATE $clock SET timeline = timeline + 1")

    def names_with_rows(self) -> set[str]:
        """Return the names that have a row."""
        return {name.decode() for (name,) in self.tables.execute("SELECT name FROM $names")}

    def sweep(self) -> None:
        """Delete the old rows, some at a time."""
        store = self.clients[0].store
        assert isinstance(store, SqlStore)
        after = ""
        while after := complete(store._database.sweep(after, self.clients[0].until())):
            pass

    def settle(self) -> None:
        """Leave a last message for each client, and wait until it comes."""
        mark = Notification("", NotificationKind.GAP, uuid4().hex)
        for client in self.clients:
            self.tables.execute(
                "INSERT INTO $messages (channel, payload, sent_at) VALUES (%s, %s, %s)",
                client.channel,
                table_codec.dump_notification(mark),
                self.clocks.now,
            )
            self._wake(client.channel)
        for client in self.clients:
            _take_until(client, mark.request_id)

    def _wake(self, channel: str) -> None:
        ((session,),) = self.tables.execute("SELECT IS_USED_LOCK(%s)", channel)
        self.tables.execute(f"KILL QUERY {session}")

    def await_end(self, client: Client) -> None:
        """Return when the session of a client that listened has ended."""
        assert self.tables.execute("SELECT GET_LOCK(%s, %s)", client.channel, WITHIN) == [(1,)]
        self.tables.execute("SELECT RELEASE_LOCK(%s)", client.channel)


def _take_until(client: Client, mark: str) -> None:
    until = client.runtime.now() + WITHIN
    while not any(each.request_id == mark for each in client.notifications):
        assert client.runtime.now() < until, "a notification did not come"
        time.sleep(0.001)
    client.notifications[:] = [each for each in client.notifications if each.request_id != mark]


WRONG_STATEMENTS: dict[str, tuple[str, str, str]] = {
    "a lease that has not ended is taken": ("ACQUIRE", "n.expires_at <= $now AND n.lock_delay = 0", "n.plain = 1"),
    "a lock delay is forgotten": ("ACQUIRE", " AND n.lock_delay = 0", ""),
    "a withdrawn request is granted": ("ACQUIRE", "AND LOCATE(%(request_id)s, n.tombstones) = 0 ", ""),
    "a released request is granted again": ("ACQUIRE", "AND n.last_released <> %(request_id)s ", ""),
    "a quarantine is not kept": ("ACQUIRE", " AND m.quarantined_until <= $now", ""),
    "a promoted replica is not noticed": ("ACQUIRE", "AND m.timeline = $timeline ", ""),
    "a token is used twice": ("ACQUIRE", "n.counter + 1, m.floor + 1,", "n.counter, m.floor,"),
    "an ended lease is released": ("RELEASE", " AND expires_at > $now", ""),
    "any request releases": ("RELEASE", "AND request_id = %(request_id)s ", ""),
    "an ended lease is renewed": ("RENEW", "AND expires_at > $now ", ""),
    "a renewal shortens a lease": ("RENEW", "GREATEST(expires_at, $now + %(ttl)d), ", "$now + %(ttl)d, "),
    "a row is written whatever it was": ("WRITE", "AND version = %(before)d", "AND version >= 0"),
    "write: notifications whatever is written": ("SEND", "%(if)s", "(%(if)s OR 1 = 1)"),
    "silent clients seem to listen": ("READ", "IS NULL", "= -1"),
}
"""Statements with a bug, each: the template, what it says, and what it says then."""

FOUND_SOON = ("a lease that has not ended is taken", "a quarantine is not kept")
"""Those that random histories look for each time. The others take minutes each: set TENURE_ALL_MUTANTS."""
