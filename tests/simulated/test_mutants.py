"""Every bug that is planted in the protocol is noticed: else the simulation has a hole."""

import pytest

from simulation import BY_NAME, Plan, simulate
from tests.simulated.barging_mutants import BARGING_MUTANTS
from tests.simulated.handover_mutants import HANDOVER_MUTANTS
from tests.simulated.job_mutants import JOB_MUTANTS
from tests.simulated.lua_mutants import LUA_MUTANTS
from tests.simulated.mutants import MUTANTS, Mutant
from tests.simulated.ordered_mutants import ORDERED_MUTANTS
from tests.simulated.quantity_mutants import QUANTITY_MUTANTS
from tests.simulated.quorum_mutants import QUORUM_MUTANTS
from tests.simulated.row_mutants import ROW_MUTANTS
from tests.simulated.sql_mutants import SQL_MUTANTS

SEEDS = 2_000


@pytest.mark.parametrize(
    "mutant",
    [
        *MUTANTS,
        *LUA_MUTANTS,
        *QUORUM_MUTANTS,
        *ORDERED_MUTANTS,
        *SQL_MUTANTS,
        *JOB_MUTANTS,
        *QUANTITY_MUTANTS,
        *BARGING_MUTANTS,
        *HANDOVER_MUTANTS,
        *ROW_MUTANTS,
    ],
    ids=lambda mutant: mutant.bug,
)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    """Within 2,000 seeds a promise of the scenario is broken, whichever of them is looked at first."""
    with mutant.plant():
        caught = _caught(mutant)
    assert caught, f"nobody notices that {mutant.bug}"
    print(caught)  # noqa: T201 - shown by pytest -rP


def _caught(mutant: Mutant) -> str:
    for scenario in mutant.scenarios:
        for seed in mutant.seeds(SEEDS):
            if broken := simulate(mutant.aim(Plan.draw(BY_NAME[scenario], seed))).broken():
                return f"{scenario}, seed {seed}: {broken[0].invariant}"
    return ""


def test_there_are_enough_bugs() -> None:
    """At least twenty bugs are planted in the protocol, in the Lua and in the SQL, each of its own kind."""
    for mutants in (MUTANTS, LUA_MUTANTS, SQL_MUTANTS):
        assert len({mutant.bug for mutant in mutants}) == len(mutants) >= 20
