"""The rules of a counter: pure functions of the state in its cell, which is a list with one whole number.

A counter without a cell is at 0.
"""

from collections.abc import Callable
from typing import Any

from tenure.contracts.cells import Addition, Change
from tenure.errors import UsageError

FARTHEST = 2**53 - 1
"""The largest number of a counter, and with a minus sign the least: every language and server keeps these exactly."""


def value_of(state: Any) -> int:  # noqa: ANN401 - what JSON knows
    """Return the number that a counter is at."""
    return state[0] if state else 0


def check_value(value: object, what: str) -> int:
    """Return `value` if a counter can be at this number; else raise UsageError."""
    if isinstance(value, bool) or not isinstance(value, int) or not -FARTHEST <= value <= FARTHEST:
        raise UsageError(f"{what} must be a whole number from -(2**53 - 1) to 2**53 - 1, not {value!r}")
    return value


def add(by: int) -> Callable[[Any, int], Change]:
    """Return the function that adds to a counter and replies with the new number. Beyond the bounds it raises."""

    def change(state: Any, _now: int) -> Change:  # noqa: ANN401
        value = value_of(state) + by
        if not -FARTHEST <= value <= FARTHEST:
            raise UsageError(
                f"the counter is at {value - by}, and {by:+d} leads beyond +-(2**53 - 1): reset() it, or use several"
            )
        return Change([value], value)

    return change


def addition(by: int) -> Addition:
    """Return the same change for stores that make it in one request."""
    return Addition(by, -FARTHEST, FARTHEST)


def reset(to: int) -> Callable[[Any, int], Change]:
    """Return the function that sets a counter and replies with the number before."""
    return lambda state, _now: Change([to], value_of(state))


def compare_and_set(expected: int, value: int) -> Callable[[Any, int], Change]:
    """Return the function that sets a counter that is at `expected`, and replies whether it was."""

    def change(state: Any, _now: int) -> Change:  # noqa: ANN401
        same = value_of(state) == expected
        return Change([value], same, changed=same)

    return change
