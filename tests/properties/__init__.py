"""What holds for every input and every history."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.properties.seeds import FIRST

ROUND = {first * 10**zeros for zeros in range(9) for first in (1, 2, 3, 5)}


def thorough(examples: int, steps: int = 40) -> settings:
    """Return settings for so many examples."""
    return settings(max_examples=examples, stateful_step_count=steps)


def hunt(machine: type[RuleBasedStateMachine], examples: int, steps: int, bug: str) -> None:
    """Run a machine that has to fail, until it does: on the same histories each time, the shortest is of no interest.

    One long search may be caught for a thousand histories in a corner where there is nothing: several short ones,
    which begin elsewhere, come first, and before them one that has met the bug. What none of them meets is left to the
    long one. No bug needs a lease that is handed over, which takes steps away from all else.
    """
    machine = type(machine.__name__, (machine,), {"hand_over": None})
    brief = settings(thorough(100, steps), phases=[Phase.generate])
    long = settings(thorough(examples, steps), derandomize=True, phases=[Phase.generate])
    with _round_numbers():
        for number in dict.fromkeys((FIRST.get(bug, 0), *range(5))):
            seeded = type(f"{machine.__name__}{number}", (machine,), {})
            run_state_machine_as_test(seed(number)(seeded), settings=brief)
        run_state_machine_as_test(machine, settings=long)


@contextmanager
def _round_numbers() -> Generator[None]:
    """Have Hypothesis favour some round numbers, not those that it finds in the modules that happen to be imported.

    Else a seed would stand for another history after any change, anywhere.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(providers, "_get_local_constants", lambda: Constants(integers=ROUND))
        providers.CONSTANTS_CACHE.cache.clear()
        yield
    providers.CONSTANTS_CACHE.cache.clear()
