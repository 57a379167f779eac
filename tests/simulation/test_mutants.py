"""Every bug that is planted in the protocol is noticed: else the simulation has a hole."""

import pytest

from holdfast.testing.simulation import BY_NAME, Plan, simulate
from tests.simulation.mutants import MUTANTS, Mutant

SEEDS = 2_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    """Within 2,000 seeds a promise of the scenario is broken."""
    with mutant.plant():
        caught = _caught(mutant)
    assert caught, f"nobody notices that {mutant.bug}"
    print(caught)  # noqa: T201 - shown by pytest -rP


def _caught(mutant: Mutant) -> str:
    for scenario in mutant.scenarios:
        for seed in range(SEEDS):
            if broken := simulate(mutant.aim(Plan.draw(BY_NAME[scenario], seed))).broken():
                return f"{scenario}, seed {seed}: {broken[0].invariant}"
    return ""


def test_there_are_enough_bugs() -> None:
    """At least twenty bugs are planted, each of its own kind."""
    assert len({mutant.bug for mutant in MUTANTS}) == len(MUTANTS) >= 20
