"""Stores whose requests allow barging answer as the grant table does, in any history."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from simulation.redis import server as redis_server
from tenure.errors import StoreError
from tenure.stores import memory
from tenure.stores.redis import scripts
from tenure.stores.sqlite import database as sqlite_database
from tenure.table.step import Step
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
    monkeypatch.setattr("tenure.stores.sql.store.SWEEP_ON", 1e9)
    monkeypatch.setattr(redis_server, "source_of", keeping_for_ever)


@pytest.mark.parametrize("machine", MACHINES, ids=["memory", "sqlite", "redis", "sql"])
def test_a_store_answers_as_the_grant_table_does(machine: type[StoreMachine]) -> None:
    """In any history a store gives the table's replies, sends its notifications and shows its views."""
    barging = type(f"Barging{machine.__name__}", (BargingMachine, machine), {})
    run_state_machine_as_test(barging, settings=thorough(100, 40))


def test_every_step_of_every_history_is_right() -> None:
    """Whatever clients do and clocks show, each step passes only those that may be passed, and tells who is next."""
    run_state_machine_as_test(BargingTableMachine, settings=thorough(200, 50))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_table_is_noticed(mutant: type[Step]) -> None:
    """A table with the rule of barging broken does not pass."""

    class Mutated(BargingTableMachine):
        make = mutant

    with pytest.raises(AssertionError):
        hunt(Mutated, 12_000, 50, mutant.__name__)


LUA = {
    "passes who has waited for its bound": ("now - it[W_JOINED] < shortest_bound()", "shortest_bound() > 0"),
    "passes a fair waiter": ("return never > 0 and 0 or least", "return least"),
    "wakes nobody": ("if push(it[W_CHANNEL], 'H 0 ' .. head) then", "if true then"),
    "wakes nobody at once": ("local message = impatient and", "local message = not impatient and 'W' or"),
    "counts who has left": ("allow(it[W_FAIR_AFTER], -1)", "local left"),
    "short cut passes who has waited": ("now < barging[1] and fair_after > 0", "fair_after > 0"),
    "short cut lets the fair pass": ("now < barging[1] and fair_after > 0", "now < barging[1]"),
    "short cut hands over too soon": ("local impatient = it and now - it[W_JOINED] >= allowed", "local impatient = it"),
    "short cut joins among others": ("barging[4][1] == fair_after", "true"),
}
"""Bugs of the scripts: what they say, and what they say then."""


@pytest.mark.parametrize("bug", LUA)
def test_a_wrong_script_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts with the rule of barging broken do not answer as the table does."""
    before, after = LUA[bug]
    assert any(before in script.text for script in scripts.ALL)

    def source(text: str) -> str:
        return keeping_for_ever(text).replace(before, after)

    monkeypatch.setattr(redis_server, "source_of", source)
    unrelated = ("ask_for_a_vote", "raise_a_token", "wait_for_no_vote_any_more", "ask_for_several", "resize")
    machine = type("Machine", (BargingMachine, RedisMachine), dict.fromkeys(unrelated))
    with pytest.raises((AssertionError, StoreError)):
        hunt(machine, 5_000, 40, bug)
