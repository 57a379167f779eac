"""The SQL store answers as the grant table does, on the simulated database and on a real one."""

import os
from collections.abc import Iterator

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tenure.errors import StoreError
from tenure.stores import table_codec
from tenure.table.times import CROWD
from tests.properties import hunt, thorough
from tests.properties.postgresql_machine import PostgresMachine, tables_with_clock
from tests.properties.sql_histories import HISTORIES, History, history_of, play
from tests.properties.sql_machine import SqlMachine
from tests.properties.sql_mutants import FOUND_SOON, WRONG_SQL
from tests.servers import PostgresServer


@pytest.fixture(autouse=True)
def _nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep when a history says so, and not by the real clock."""
    monkeypatch.setattr("tenure.stores.sql.store.SWEEP_ON", 1e9)
    monkeypatch.setattr(table_codec, "PACKED_FROM", 2)  # so that the queues of short histories stand in a text, too


@pytest.mark.parametrize("crowd", [1, CROWD])
@pytest.mark.parametrize("queues", [True, False])
def test_the_store_on_the_simulated_database_answers_as_the_grant_table_does(
    queues: bool, crowd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any history it gives the table's replies, sends its notifications and shows its views."""
    monkeypatch.setattr("tenure.table.times.CROWD", crowd)
    machine = type("Machine", (SqlMachine,), {"queues": queues})
    run_state_machine_as_test(machine, settings=thorough(100, 40))


def test_the_store_on_a_real_database_answers_as_the_grant_table_does(postgres_server: PostgresServer) -> None:
    """The same histories, so that the simulated database does what a real one does."""
    with tables_with_clock(postgres_server) as its:

        class Machine(PostgresMachine):
            tables = its

        run_state_machine_as_test(Machine, settings=thorough(30, 40))


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("queues", [True, False])
def test_a_short_history(history: History, queues: bool) -> None:
    """The simulated database does as the grant table in each of them."""
    play(history, type("Machine", (SqlMachine,), {"queues": queues}))


@pytest.fixture(scope="module")
def right(postgres_server: PostgresServer) -> Iterator[type[SqlMachine]]:
    """Return a machine of a real server."""
    with tables_with_clock(postgres_server) as its:
        yield type("Machine", (PostgresMachine,), {"tables": its})


@pytest.mark.parametrize("history", HISTORIES)
def test_a_short_history_on_a_real_server(history: History, right: type[SqlMachine]) -> None:
    """PostgreSQL does as well."""
    play(history, right)


@pytest.mark.parametrize("wrong", WRONG_SQL)
def test_a_short_history_notices_wrong_sql(wrong: str, postgres_server: PostgresServer) -> None:
    """Each planted bug has a history that cannot do without what it changes."""
    with tables_with_clock(postgres_server, WRONG_SQL[wrong]) as its:
        machine = type("Machine", (PostgresMachine,), {"tables": its})
        with pytest.raises((AssertionError, StoreError)):  # a client cannot read a row whose waiters are gone
            play(history_of(wrong), machine)


@pytest.mark.parametrize("wrong", WRONG_SQL if os.environ.get("TENURE_ALL_MUTANTS") else FOUND_SOON)
def test_wrong_sql_is_noticed(wrong: str, postgres_server: PostgresServer) -> None:
    """Random histories meet some of the bugs as well, sooner or later."""
    with tables_with_clock(postgres_server, WRONG_SQL[wrong]) as its:

        class Machine(PostgresMachine):
            tables = its

        with pytest.raises(AssertionError):
            hunt(Machine, 500, 40, wrong)
