"""What the fencing tokens of a quorum rest on: that nodes remember, or that clocks are in order. One is enough."""

from dataclasses import replace

from simulation import BY_NAME, Invariant, Plan, simulate
from simulation.faults import Faults

FORGET, DISORDER = 6, 60.0


def disordered(seed: int, faults: Faults) -> bool:
    """Tell whether somebody got a smaller token than had been granted before it asked."""
    plan = replace(Plan.draw(BY_NAME["quorum_disorder"], seed), faults=faults)
    return any(violation.invariant is Invariant.TOKENS for violation in simulate(plan).violations)


def test_nodes_that_forget_do_no_harm_while_clocks_agree() -> None:
    """No token is smaller than its proposal."""
    assert not [seed for seed in range(100) if disordered(seed, Faults(amnesia=FORGET))]


def test_clocks_that_disagree_do_no_harm_while_nodes_remember() -> None:
    """What a node issues grows, whatever is proposed; and any two quorums share one."""
    assert not [seed for seed in range(100) if disordered(seed, Faults(disorder=DISORDER))]


def test_both_at_once_are_seen_to_break_the_order() -> None:
    """As docs/tokens.md says; so the two others show something."""
    assert any(disordered(seed, Faults(amnesia=FORGET, disorder=DISORDER)) for seed in range(100))
