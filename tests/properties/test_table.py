"""The grant table keeps its rules in every history."""

from hypothesis.stateful import run_state_machine_as_test

from tests.properties import thorough
from tests.properties.table_machine import TableMachine


def test_every_step_of_every_history_is_right() -> None:
    """Whatever clients do and clocks show, each step keeps capacity, order, tokens, delays and promises."""
    run_state_machine_as_test(TableMachine, settings=thorough(200, 50))
