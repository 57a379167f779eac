"""What holds for every input and every history."""

from hypothesis import Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.properties.seeds import FIRST


def thorough(examples: int, steps: int = 40) -> settings:
    """Return settings for so many examples."""
    return settings(max_examples=examples, stateful_step_count=steps)


def hunt(machine: type[RuleBasedStateMachine], examples: int, steps: int, bug: str) -> None:
    """Run a machine that has to fail, until it does: on the same histories each time, the shortest is of no interest.

    One long search may be caught for a thousand histories in a corner where there is nothing: several short ones,
    which begin elsewhere, come first, and before them one that has met the bug. What none of them meets is left to the
    long one.
    """
    brief = settings(thorough(100, steps), phases=[Phase.generate])
    for number in dict.fromkeys((FIRST.get(bug, 0), *range(5))):
        seeded = type(f"{machine.__name__}{number}", (machine,), {})
        run_state_machine_as_test(seed(number)(seeded), settings=brief)
    long = settings(thorough(examples, steps), derandomize=True, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=long)
