"""The shrinking of a failing run, so that a person can read its trace."""

from collections.abc import Iterator
from dataclasses import replace

from simulation.invariants import Invariant
from simulation.plan import SIZES, Plan
from simulation.run import simulate

TRIES = 30
"""With how many seeds a smaller plan is tried. Whatever is removed from a plan, the rest of its run differs."""


def shrink(plan: Plan, invariant: Invariant) -> Plan:
    """Return the smallest plan that can be found that still breaks `invariant`.

    Removes faults, clients, tasks, rounds, names and time, one after another, while the smaller plan still fails.
    """
    smaller: Plan | None = plan
    while smaller is not None:
        plan = smaller
        smaller = next((found for each in _smaller(plan) if (found := _failing(each, invariant))), None)
    return plan


def breaks(plan: Plan, invariant: Invariant) -> bool:
    """Tell whether a run breaks an invariant."""
    return any(each.invariant is invariant for each in simulate(plan).violations)


def _smaller(plan: Plan) -> Iterator[Plan]:
    for fault in plan.faults.active():
        yield replace(plan, faults=plan.faults.without(fault))
    for size in SIZES:
        if (count := getattr(plan, size)) > 1:
            yield from (replace(plan, **{size: fewer}) for fewer in dict.fromkeys((count // 2, count - 1)))
    for fault in plan.faults.active():
        count = getattr(plan.faults, fault)
        if isinstance(count, int) and count > 1:
            yield replace(plan, faults=replace(plan.faults, **{fault: count - 1}))
    if plan.duration > 0.5:
        yield replace(plan, duration=round(plan.duration * 0.7, 2))


def _failing(plan: Plan, invariant: Invariant) -> Plan | None:
    for shift in range(TRIES):
        tried = replace(plan, seed=plan.seed + shift)
        if breaks(tried, invariant):
            return tried
    return None
