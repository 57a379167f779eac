"""The judge of the grant table can fail: it notices every way in which a table is made wrong here."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.core.table import Step
from tests.properties import thorough
from tests.properties.mutants import MUTANTS
from tests.properties.table_machine import TableMachine

HUNT = settings(thorough(12_000, 50), derandomize=True, phases=[Phase.generate])
"""Enough histories to find any of them, the same each time; the shortest one is of no interest."""


@pytest.mark.timeout(900)  # some are met by few examples
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_table_is_noticed(mutant: type[Step]) -> None:
    """A table with one rule broken does not pass."""

    class Mutated(TableMachine):
        make = mutant

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Mutated, settings=HUNT)
