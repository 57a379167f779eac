"""The MySQL store answers as the grant table does, on a real server whose clock the test moves."""

import os
from collections.abc import Iterator

import pytest
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import run_state_machine_as_test

from tenure.stores import table_codec
from tenure.stores.mysql import statements
from tests.properties import hunt, thorough
from tests.properties.mysql_machine import FOUND_SOON, WRONG_STATEMENTS, MySqlMachine, tables_by_hand
from tests.properties.sql_histories import HISTORIES, History, history_of, play
from tests.properties.sql_machine import SqlMachine
from tests.servers import MariaDbServer


@pytest.fixture(autouse=True)
def _nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep when a history says so, and not by the real clock."""
    monkeypatch.setattr("tenure.stores.sql.store.SWEEP_ON", 1e9)
    monkeypatch.setattr(table_codec, "PACKED_FROM", 2)  # so that the queues of short histories stand in a text, too,
    monkeypatch.setattr(statements, "LONG", 1)  # which is patched


def test_the_store_answers_as_the_grant_table_does(mariadb_server: MariaDbServer) -> None:
    """In any history it gives the table's replies, sends its notifications and shows its views."""
    with tables_by_hand(mariadb_server) as its:

        class Machine(MySqlMachine):
            tables = its

        run_state_machine_as_test(Machine, settings=thorough(20, 40))


@pytest.fixture(scope="module")
def right(mariadb_server: MariaDbServer) -> Iterator[type[SqlMachine]]:
    """Return a machine of a real server."""
    with tables_by_hand(mariadb_server) as its:
        yield type("Machine", (MySqlMachine,), {"tables": its})


@pytest.mark.parametrize("history", HISTORIES)
def test_a_short_history(history: History, right: type[SqlMachine]) -> None:
    """MariaDB does as the grant table in each of them."""
    play(history, right)


@pytest.mark.parametrize("wrong", WRONG_STATEMENTS)
def test_a_short_history_notices_a_wrong_statement(wrong: str, mariadb_server: MariaDbServer) -> None:
    """Each planted bug has a history that cannot do without what it changes."""
    with tables_by_hand(mariadb_server, WRONG_STATEMENTS[wrong]) as its:
        machine = type("Machine", (MySqlMachine,), {"tables": its})
        with pytest.raises(AssertionError):
            play(history_of(wrong), machine)


@pytest.mark.parametrize("wrong", WRONG_STATEMENTS if os.environ.get("TENURE_ALL_MUTANTS") else FOUND_SOON)
def test_a_wrong_statement_is_noticed(wrong: str, mariadb_server: MariaDbServer) -> None:
    """Random histories meet some of the bugs as well, sooner or later."""
    with tables_by_hand(mariadb_server, WRONG_STATEMENTS[wrong]) as its:

        class Machine(MySqlMachine):
            tables = its

        with pytest.raises(AssertionError):
            _hunt(Machine, wrong)


def _hunt(machine: type[MySqlMachine], wrong: str) -> None:
    """Hunt for a bug. It counts as well if it is not met again in the same history, for the listeners' time is real."""
    try:
        hunt(machine, 300, 40, wrong)
    except FlakyFailure as error:
        if all(isinstance(each, AssertionError) for each in error.exceptions):
            raise error.exceptions[0] from error
        raise
