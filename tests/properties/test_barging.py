"""Stores whose requests allow barging answer as the grant table does, in any history."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from holdfast.stores import memory
from holdfast.stores.sqlite import database as sqlite_database
from holdfast.table.step import Step
from simulation.redis import server as redis_server
from tests.properties import hunt, thorough
from tests.properties.barging import BargingMachine
from tests.properties.barging_mutants import MUTANTS
from tests.properties.redis_machine import RedisMachine
from tests.properties.sql_machine import SqlMachine
from tests.properties.store_machine import MemoryMachine, SqliteMachine, StoreMachine
from tests.properties.table_machine import BargingTableMachine
from tests.properties.test_stores import keeping_for_ever

MACHINES = [MemoryMachine, SqliteMachine, RedisMachine, SqlMachine]


@pytest.fixture(autouse=True)
def _nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the oracle keeps: names that nobody uses, which a store may forget but for their counters."""
    for module in (memory, sqlite_database):
        monkeypatch.setattr(module, "RETENTION", 2**60)
    monkeypatch.setattr("holdfast.stores.sql.store.SWEEP_ON", 1e9)
    monkeypatch.setattr(redis_server, "source_of", keeping_for_ever)


@pytest.mark.parametrize("machine", MACHINES, ids=["memory", "sqlite", "redis", "sql"])
def test_a_store_answers_as_the_grant_table_does(machine: type[StoreMachine]) -> None:
    """In any history a store gives the table's replies, sends its notifications and shows its views."""
    barging = type(f"Barging{machine.__name__}", (BargingMachine, machine), {})
    run_state_machine_as_test(barging, settings=thorough(100, 40))


def test_every_step_of_every_history_is_right() -> None:
    """Whatever clients do and clocks show, each step passes only those that may be passed, and tells who is next."""
    run_state_machine_as_test(BargingTableMachine, settings=thorough(200, 50))


@pytest.mark.timeout(900)  # some are met by few examples
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_table_is_noticed(mutant: type[Step]) -> None:
    """A table with the rule of barging broken does not pass."""

    class Mutated(BargingTableMachine):
        make = mutant

    with pytest.raises(AssertionError):
        hunt(Mutated, 12_000, 50, mutant.__name__)
