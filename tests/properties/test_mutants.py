"""The judge of the grant table can fail: it notices every way in which a table is made wrong here."""

import pytest

from tenure.table.step import Step
from tests.properties import hunt
from tests.properties.mutants import MUTANTS
from tests.properties.table_machine import TableMachine


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_table_is_noticed(mutant: type[Step]) -> None:
    """A table with one rule broken does not pass."""

    class Mutated(TableMachine):
        make = mutant

    with pytest.raises(AssertionError):
        hunt(Mutated, 12_000, 50, mutant.__name__)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_table_overrides_what_there_is(mutant: type[Step]) -> None:
    """A method of a mutant that the table does not have, or has no more, would plant nothing."""
    planted = [name for name in vars(mutant) if not name.startswith("__")]
    assert planted
    assert all(hasattr(Step, name) for name in planted), planted
