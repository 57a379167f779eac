"""The PostgreSQL store on a real server, whose clock is a row that the test writes."""

import select
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

from simulation.sql.server import SqlRules
from tenure.contracts.messages import Notification, NotificationKind
from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores import table_codec
from tenure.stores.postgresql import schema
from tenure.stores.postgresql.database import PgDatabase
from tenure.stores.postgresql.options import PgDeployment
from tenure.stores.postgresql.statements import read_text
from tenure.stores.postgresql.threads import PgThreadLink
from tenure.stores.sql.database import SqlDatabase
from tenure.stores.tabled import RETENTION
from tests.properties.sql_machine import SqlMachine
from tests.properties.store_machine import Client
from tests.servers import PostgresServer

if TYPE_CHECKING:
    import psycopg

WITHIN = 20.0
"""Within how many seconds a notification comes that was sent."""

GUARDS = {(False, False): "off", (True, False): "observed", (True, True): "strict"}


class Tables:
    """Tables of their own on a real server, and the connection by which a test sets their clock."""

    def __init__(self, server: PostgresServer) -> None:
        """Name them."""
        self.prefix = f"t{uuid4().hex[:12]}_"
        self.address = server.address
        self.connection: psycopg.Connection[Any] = server.connect()

    def execute(self, sql: str, *args: object) -> list[Any]:
        """Execute a statement, in which `@` is the prefix."""
        done = self.connection.execute(sql.replace("@", self.prefix).encode(), args or None)
        return done.fetchall() if done.description else []


@contextmanager
def tables_with_clock(server: PostgresServer, *changes: tuple[str, str]) -> Generator[Tables]:
    """Make tables whose clock, timeline and start are a row that the test writes, with changes of their SQL."""
    tables, text = Tables(server), schema.SCHEMA
    for before, after in changes:
        assert before in text, f"the schema does not say {before!r}"
        text = text.replace(before, after)
    row = "(SELECT %s FROM " + tables.prefix + "clock)"  # noqa: S608 - a prefix of our own
    names = {f"@{each}": row % each for each in ("now", "timeline", "started")}
    with tables.connection, patch.dict(schema.TOKENS, names), patch.object(schema, "SCHEMA", text):
        tables.execute("CREATE TABLE @clock (now bigint, timeline text, started bigint)")
        tables.execute("INSERT INTO @clock VALUES (1, '1', 1)")
        tables.connection.execute(schema.ddl("", tables.prefix).encode())
        yield tables


class PostgresMachine(SqlMachine):
    """The PostgreSQL store."""

    tables: Tables

    def open_database(self) -> object:
        """Empty the tables."""
        self.shows = 0
        self.tables.execute("DELETE FROM @names")
        self.tables.execute("DELETE FROM @waiters")
        self.tables.execute("UPDATE @clock SET timeline = '1', started = 1")
        self.tables.execute(
            "UPDATE @meta SET floor = 0, timeline = '1', started = 1, longest_ttl = 0, quarantined_since = 0, "
            "quarantined_until = 0"
        )
        self.set_clock()
        return self.tables

    def database(self, runtime: ThreadsRuntime, rules: SqlRules) -> SqlDatabase:
        """Return the access of one client."""
        login = {"user": "tenure", "dbname": "postgres"}
        deployment = PgDeployment([self.tables.address], login, prefix=self.tables.prefix)
        deployment.guard = GUARDS[rules.guarded, rules.strict]
        deployment.max_ttl = rules.longest_ttl / 1e6
        return PgDatabase(runtime, deployment, PgThreadLink)

    def set_clock(self) -> None:
        """Write the time of the test."""
        if self.shows != self.clocks.now:
            self.shows = self.clocks.now
            self.tables.execute("UPDATE @clock SET now = %s", self.shows)

    def become_another(self, *, promoted: bool) -> None:
        """Have the server say so."""
        self.tables.execute(
            "UPDATE @clock SET started = started + 1, timeline = (timeline::integer + %s)::text", int(promoted)
        )

    def names_with_rows(self) -> set[str]:
        """Return the names that have a row."""
        return {read_text(name.encode()) for (name,) in self.tables.execute("SELECT name FROM @names")}

    def sweep(self) -> None:
        """Delete the old rows, some at a time."""
        after, looked_at = "", True
        while looked_at:
            ((after,),) = self.tables.execute('SELECT "@sweep"(%s, 2, %s, 1)', after, RETENTION)
            looked_at = after != ""

    def settle(self) -> None:
        """Send a last notification to each client, and have it take all until that one comes. Count the waiters."""
        ((counted, there),) = self.tables.execute(
            "SELECT (SELECT coalesce(sum(waiting), 0) FROM @names), (SELECT count(*) FROM @waiters)"
        )
        assert counted == there, "rows of waiters are left over, or missing"
        channels = [client.channel for client in self.clients]
        mark = Notification("", NotificationKind.GAP, uuid4().hex)
        text = table_codec.dump_notification(mark).decode()
        self.tables.execute("SELECT pg_notify(channel, %s) FROM unnest(%s::text[]) AS channel", text, channels)
        for client in self.clients:
            _take_until(client, mark.request_id)

    def await_end(self, client: Client) -> None:
        """Return when the session of a client that listened has ended."""
        self.tables.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", client.channel)
        self.tables.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", client.channel)


def _take_until(client: Client, mark: str) -> None:
    until = client.runtime.now() + WITHIN
    while not any(each.request_id == mark for each in client.notifications):
        sources = [source for source, _ in client.runtime._receivers]
        select.select(sources, [], [], max(0.0, until - client.runtime.now()))
        assert client.runtime.now() < until, "a notification did not come"
        client.runtime.pump()
    client.notifications[:] = [each for each in client.notifications if each.request_id != mark]
