"""Counters: a whole number, exactly, within the bounds that every store keeps."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import UsageError
from tenure.table import counter
from tenure.table.counter import FARTHEST

numbers = st.integers(-FARTHEST, FARTHEST) | st.integers(-3, 3)


@given(st.lists(st.tuples(st.sampled_from(["add", "reset", "compare"]), numbers, numbers)))
def test_a_counter_is_a_number(calls: list[tuple[str, int, int]]) -> None:
    """Each call does to the state what it says of the number, and a refused call changes nothing."""
    state: Any = None
    model = 0
    for kind, one, other in calls:
        if kind == "add":
            if abs(model + one) > FARTHEST:
                with pytest.raises(UsageError, match="leads beyond"):
                    counter.add(one)(state, 0)
                continue
            change = counter.add(one)(state, 0)
            model += one
            assert change.reply == model
        elif kind == "reset":
            change = counter.reset(one)(state, 0)
            assert change.reply == model
            model = one
        else:
            change = counter.compare_and_set(one, other)(state, 0)
            assert change.reply is (model == one)
            model = other if model == one else model
        state = change.state if change.changed else state
        assert counter.value_of(state) == model


def test_an_addition_has_the_bounds_of_the_function() -> None:
    """A store that adds by itself refuses what the function refuses."""
    made = counter.addition(5)
    assert (made.by, made.least, made.most, made.reply) == (5, -FARTHEST, FARTHEST, None)


@pytest.mark.parametrize("value", [2**53, -(2**53), 1.0, True, "1", None])
def test_a_number_out_of_bounds_is_refused(value: object) -> None:
    """Also what is no whole number."""
    with pytest.raises(UsageError, match="whole number"):
        counter.check_value(value, "n")
