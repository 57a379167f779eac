"""Bugs to plant in what lets requests pass others for a time, one at a time, to see that the simulation notices."""

# ruff: noqa: D103 - each function is told by the bug that it plants, and replaces a method of the table
from dataclasses import replace
from typing import Any

from simulation import Plan
from tenure.contracts.messages import AcquireRequest
from tenure.table.step import Step
from tests.properties.barging_mutants import FairIsPassed, ImpatientIsPassed
from tests.simulated.lua_mutants import lua
from tests.simulated.mutants import Mutant, do_nothing, replaced, wrapped


def crowd(plan: Plan) -> Plan:
    """Have many clients contend for one name."""
    return replace(plan, clients=4, tasks=1, rounds=6, names=1, duration=5.0)


def pass_anyhow(original: Any, self: Step, request: AcquireRequest) -> Any:  # noqa: ANN401 - wraps a method
    return original(self, replace(request, fair_after=1))


def count_from_last_request(self: Step) -> bool:
    head = self.state.queue[0]
    return self.now - (head.fresh_until - head.request.waiter_ttl) < self.state.queue.fair_after


BARGING_MUTANTS = (
    Mutant(
        "a newcomer passes who has waited for its bound",
        replaced(Step, "_is_passable", ImpatientIsPassed._is_passable),
        ("barging",),
        crowd,
    ),
    Mutant(
        "only the head must allow barging",
        replaced(Step, "_is_passable", FairIsPassed._is_passable),
        ("barging",),
        crowd,
    ),
    Mutant(
        "a bound is counted from the last request",
        replaced(Step, "_is_passable", count_from_last_request),
        ("barging",),
        crowd,
    ),
    Mutant("a fair newcomer passes", wrapped(Step, "_may_barge", pass_anyhow), ("barging",), crowd),
    Mutant("a name is freed in silence", replaced(Step, "_notify_that_free", do_nothing), ("barging",), crowd),
    lua(
        "the scripts pass who has waited for its bound",
        ("now < barging[1] and fair_after > 0", "fair_after > 0"),
        scenario="redis_barging",
        aim=crowd,
        first=73,
    ),
    lua(
        "the scripts let a fair newcomer pass",
        ("now < barging[1] and fair_after > 0", "now < barging[1]"),
        scenario="redis_barging",
        aim=crowd,
    ),
    lua(
        "the scripts pass a fair waiter",
        ("return never > 0 and 0 or least", "return least"),
        scenario="redis_barging",
        aim=crowd,
    ),
    lua(
        "the scripts notify nobody that a name is free",
        ("now < barging[1] and (now < barging[2] or now >= barging[3])", "now < barging[1]"),
        scenario="redis_barging",
        aim=crowd,
    ),
    lua(
        "the scripts free a name for ever",
        (
            "local passed = usual and barging and now < barging[1] and (now < barging[2] or now >= barging[3])",
            "local passed = usual and barging",
        ),
        scenario="redis_barging",
        aim=crowd,
    ),
)
