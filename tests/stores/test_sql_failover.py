"""What a promoted standby does with a write whose rows were read from the primary, and with a lease that ran out."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from simulation.sql.direct import capabilities_of
from simulation.sql.server import SqlRules
from tenure.contracts.messages import AcquireRequest, Granted
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.postgresql.database import PgDatabase
from tenure.stores.postgresql.options import PgDeployment
from tenure.stores.postgresql.threads import PgThreadLink
from tenure.stores.sql.database import SqlWrite
from tenure.stores.sql.rows import SqlRow
from tenure.stores.sql.store import SqlStore
from tests.servers import PostgresServer

MAX_TTL = 60_000_000
"""The length of a quarantine, in microseconds."""


def soon() -> float:
    """Return a deadline for a request."""
    return ThreadsRuntime().now() + 10


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[PgDatabase]:
    """Return tables of their own in a real database."""
    host, port = postgres_server.address
    login = {"user": "tenure", "dbname": "postgres"}
    deployment = PgDeployment([(host, port)], login, prefix=f"failover_{uuid4().hex[:12]}_")
    database = PgDatabase(ThreadsRuntime(), deployment, PgThreadLink)
    drive(database.open(lambda notification: None, soon()))
    yield database
    drive(database.close())


def write_after(database: PgDatabase, server: PostgresServer, sql: str) -> frozenset[str]:
    """Read a row, change the table `meta`, and write the row."""
    snapshot = drive(database.read(["name"], soon()))
    [row] = snapshot.rows
    after = SqlRow("name", row.version, 7, used_at=snapshot.now, idle_after=snapshot.now)
    if sql:
        server.execute(f'UPDATE "{database._deployment.prefix}meta" SET {sql}')  # noqa: S608 - the test's own text
    return drive(database.write(SqlWrite(snapshot.now, snapshot.quarantined_since, [after]), soon()))


def test_a_server_that_forgot_nothing_writes_the_row(database: PgDatabase, postgres_server: PostgresServer) -> None:
    """So the other tests show something."""
    assert write_after(database, postgres_server, "") == {"name"}


@pytest.mark.parametrize(
    "failover",
    ["timeline = 'another'", "quarantined_since = 1, quarantined_until = 2"],
    ids=["before the quarantine", "in or after the quarantine"],
)
def test_a_promoted_standby_writes_no_row_that_was_read_before(
    database: PgDatabase, postgres_server: PostgresServer, failover: str
) -> None:
    """It may have forgotten grants, and its row of that version may be another one."""
    assert write_after(database, postgres_server, failover) == frozenset()
    request = AcquireRequest("name", "mine", "", "somebody", 1_000_000, 1, 1)
    granted = drive(database.acquire(request, soon()))
    assert not isinstance(granted, int) or "timeline" not in failover


@pytest.mark.parametrize("promoted", [True, False])
def test_a_lock_delay_begins_after_the_quarantine_if_renewals_may_be_forgotten(
    database: PgDatabase, postgres_server: PostgresServer, promoted: bool
) -> None:
    """A lease that has run out for the promoted standby may have been renewed at the primary until it died."""
    store = SqlStore("here", ThreadsRuntime(), database, capabilities_of(SqlRules(MAX_TTL)))
    request = AcquireRequest("name", "mine", "", "somebody", 20_000_000, 1, 1, lock_delay=10_000_000)
    assert isinstance(drive(store.acquire(request, soon())), Granted)
    prefix = database._deployment.prefix
    changes = "expires_at = expires_at - 21000000, granted_at = granted_at - 21000000"
    postgres_server.execute(f'UPDATE "{prefix}names" SET {changes}')  # noqa: S608 - the test's own text
    if promoted:
        postgres_server.execute(f"UPDATE \"{prefix}meta\" SET timeline = 'another'")  # noqa: S608 - as above
    view = drive(store.inspect("name", soon()))
    assert not view.holders
    if promoted:
        assert view.quarantined_for > 25
        assert view.blocked_for == pytest.approx(view.quarantined_for + 10)
    else:
        assert not view.quarantined_for
        assert 0 < view.blocked_for < 10
