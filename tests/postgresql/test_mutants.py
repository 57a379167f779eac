"""Planted bugs: each is one that a maintainer could really make in the link, the channel or the tables."""

from collections.abc import Callable
from typing import Any

import pytest

from tenure import TenureError
from tenure.stores.postgresql import connection, database, link
from tenure.stores.postgresql.channel import PgChannel
from tenure.stores.postgresql.connection import PgConnection, PgStatement
from tenure.stores.postgresql.errors import PgServerError
from tenure.stores.postgresql.link import PgLink
from tenure.stores.sql.errors import SqlBroken
from tests.faults.scenes import API_FORMS
from tests.postgresql import test_channel, test_connections, test_faults_sessions
from tests.servers import PostgresServer

Patch = pytest.MonkeyPatch


def keep_what_timed_out(patch: Patch) -> None:
    """Put a connection back although its reply is still due."""

    async def carry_out(self: PgLink, connection: PgConnection, work: Any, until: float) -> Any:  # noqa: ANN401
        try:
            return await self.run(connection, work, until)
        except connection_errors as error:
            self.put_back(connection)
            raise self.meaning(connection.place, error) from error

    connection_errors = (SqlBroken,)
    patch.setattr(PgLink, "_carry_out", carry_out)


def look_once(patch: Patch) -> None:
    """Take a session that the server has ended for an open one."""

    def is_stale(_: PgConnection) -> bool:
        return False

    patch.setattr(PgConnection, "is_stale", is_stale)


def give_up_conflicts(patch: Patch) -> None:
    """Report a conflict of transactions instead of retrying it."""
    patch.setattr(database.PgDatabase, "conflicts", frozenset[str]())


def misread_refusals(patch: Patch) -> None:
    """Take a server that starts for one without the database."""
    patch.setattr(connection, "SENTENCES", (("database ", "3D000"), *connection.SENTENCES))


def set_no_interval(patch: Patch) -> None:
    """Let a statement that nobody waits for go on."""
    patch.setattr(link, "SETTINGS", PgStatement("tenure_settings", "SELECT 1"))


def ignore_poolers(patch: Patch) -> None:
    """Take a pooler for the server itself, also for its settings and prepared statements."""
    there = PgLink._greet

    async def greet(self: PgLink, connection: PgConnection, until: float) -> None:
        await there(self, connection, until)
        await self.run(connection, connection.execute(link.SETTINGS, ()), until)

    patch.setattr(PgLink, "_greet", greet)


def stay_deaf(patch: Patch) -> None:
    """Never connect the channel again."""

    async def reconnect(_: PgChannel) -> None: ...

    patch.setattr(PgChannel, "_reconnect", reconnect)


def leave_open(patch: Patch) -> None:
    """Do not close the idle connections with the client."""

    async def close(_: PgLink) -> None: ...

    patch.setattr(PgLink, "close", close)


def server_of(given: pytest.FixtureRequest) -> PostgresServer:
    """Return the server of the tests."""
    server: PostgresServer = given.getfixturevalue("postgres_server")
    return server


PLANTED: dict[str, tuple[Callable[[Patch], None], Callable[[pytest.FixtureRequest], None]]] = {
    "a connection that timed out is put back": (
        keep_what_timed_out,
        lambda given: test_connections.test_no_reply_is_taken_for_that_of_another_request(
            server_of(given), API_FORMS[0]
        ),
    ),
    "an ended session is used": (
        look_once,
        lambda given: test_connections.test_a_connection_that_the_server_ended_is_not_used(
            server_of(given), API_FORMS[0]
        ),
    ),
    "a server that starts is taken for a missing database": (
        misread_refusals,
        lambda _: test_connections.test_a_refused_connection_is_retried_if_that_helps(
            "the database system is starting up"
        ),
    ),
    "a statement goes on without its client": (
        set_no_interval,
        lambda given: test_connections.test_the_server_notices_that_a_client_gave_up(server_of(given), API_FORMS[0]),
    ),
    "the channel does not come back": (
        stay_deaf,
        lambda given: test_faults_sessions.test_a_waiter_is_served_though_its_listening_session_was_ended(
            server_of(given), API_FORMS[0]
        ),
    ),
    "a conflict is reported": (
        give_up_conflicts,
        lambda _: test_connections.test_a_conflict_is_retried(API_FORMS[0], "40001"),
    ),
    "settings are applied through a pooler": (
        ignore_poolers,
        lambda given: test_channel.test_many_clients_behind_a_pooler_of_two(
            given.getfixturevalue("pgbouncer"), API_FORMS[0], given.getfixturevalue("caplog")
        ),
    ),
    "connections stay open": (
        leave_open,
        lambda given: test_connections.test_connections_end_with_their_client(server_of(given), API_FORMS[0]),
    ),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(request: pytest.FixtureRequest, monkeypatch: Patch, bug: str) -> None:
    """The test of the guarantee fails with the bug."""
    plant, test = PLANTED[bug]
    plant(monkeypatch)
    with pytest.raises((AssertionError, TenureError, PgServerError)):
        test(request)
