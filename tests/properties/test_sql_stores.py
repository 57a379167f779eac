"""The SQL store answers as the grant table does, on the simulated database and on a real one."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.properties import hunt, thorough
from tests.properties.postgresql_machine import PostgresMachine, tables_with_clock
from tests.properties.sql_machine import SqlMachine
from tests.properties.sql_mutants import WRONG_SQL
from tests.servers import PostgresServer


@pytest.fixture(autouse=True)
def _nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep when a history says so, and not by the real clock."""
    monkeypatch.setattr("holdfast.stores.sql.store.SWEEP_ON", 1e9)


def test_the_store_on_the_simulated_database_answers_as_the_grant_table_does() -> None:
    """In any history it gives the table's replies, sends its notifications and shows its views."""
    run_state_machine_as_test(SqlMachine, settings=thorough(100, 40))


def test_the_store_on_a_real_database_answers_as_the_grant_table_does(postgres_server: PostgresServer) -> None:
    """The same histories, so that the simulated database does what a real one does."""
    with tables_with_clock(postgres_server) as its:

        class Machine(PostgresMachine):
            tables = its

        run_state_machine_as_test(Machine, settings=thorough(30, 40))


@pytest.mark.timeout(900)  # some are met by few histories
@pytest.mark.parametrize("wrong", WRONG_SQL)
def test_wrong_sql_is_noticed(wrong: str, postgres_server: PostgresServer) -> None:
    """A database whose functions are wrong in one place does not answer as the table does."""
    with tables_with_clock(postgres_server, WRONG_SQL[wrong]) as its:

        class Machine(PostgresMachine):
            tables = its

        with pytest.raises(AssertionError):
            hunt(Machine, 500, 40, wrong)
