"""What the scenarios promise holds, and what they do not promise is really seen to break."""

import functools
import os

import pytest

from holdfast.testing.simulation import SCENARIOS, Invariant
from holdfast.testing.simulation.command import table
from holdfast.testing.simulation.runner import Tally, run_scenarios

SEEDS = int(os.environ.get("HOLDFAST_SIMULATION_SEEDS", "2000"))

NEVER_PROMISED = {
    "clock_forward": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT},
    "amnesia": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT, Invariant.CLEAN},
    "amnesia_disorder": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT, Invariant.CLEAN, Invariant.TOKENS},
    "force": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT},
}

FAULTS = {
    "calm": {"client crashed", *(f"acquire cancelled at await {number}" for number in range(1, 9))},
    "embedded": {"push lost", "message late", "error answered", "client paused", "client crashed"},
    "wire": {
        "message late",
        "request lost",
        "reply lost",
        "push lost",
        "request repeated",
        "request slow",
        "request cut off",
        "request dropped by a partition",
        "reply dropped by a partition",
        "push dropped by a partition",
        "partition: to",
        "partition: from",
        "partition: to and from",
        "connection cut",
        "connection refused",
        "error answered",
        "store slow",
        "client paused",
        "client crashed",
        "clock back",
        "restart with all",
        *(f"acquire cancelled at await {number}" for number in range(1, 9)),
    },
    "clock_forward": {"clock forward"},
    "amnesia": {"restart with nothing", "restart with some", "failover"},
    "force": {"taken by force"},
}
"""What must be seen to happen in a scenario, many times."""


@functools.cache
def tallies() -> dict[str, Tally]:
    """Run every scenario once, for all tests in here."""
    found = {tally.scenario: tally for tally in run_scenarios(SCENARIOS, SEEDS)}
    print(table(list(found.values())))  # noqa: T201 - shown by pytest -rP, or on failure
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", [scenario.name for scenario in SCENARIOS])
def test_every_promise_is_kept(scenario: str) -> None:
    """No seed breaks what the scenario promises. The first of these tests runs all of them."""
    tally = tallies()[scenario]
    assert tally.seeds == SEEDS
    assert not tally.broken
    assert tally.grants > 5 * SEEDS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", NEVER_PROMISED)
def test_what_is_not_promised_is_seen_to_break(scenario: str) -> None:
    """A check that never fires proves nothing: where a guarantee ends, the checks say so."""
    assert set(tallies()[scenario].not_promised) >= NEVER_PROMISED[scenario]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", FAULTS)
def test_every_fault_happens(scenario: str) -> None:
    """No fault is one in name only."""
    happened = tallies()[scenario].happened
    assert not {fault for fault in FAULTS[scenario] if happened[fault] < SEEDS // 40}
