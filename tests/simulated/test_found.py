"""Runs that once broke a promise on fresh seeds, made smaller: each was a bug, and is kept so that it stays mended."""

import pytest

from simulation import BY_NAME, Plan, simulate

FOUND = {
    # A push from before a failover was counted from a request that the promoted replica answered: it knew of no grant.
    "a push from before a failover, strict": (
        "redis_strict",
        7375335276,
        (
            "clients=4,tasks=1,rounds=3,names=1,duration=3.8184699909217614,loss=0.04780368585701775,pauses=1,"
            "restarts=1,failovers=1"
        ),
    ),
    "a push from before a failover, observed": (
        "redis_observed",
        7375336872,
        "clients=3,tasks=2,rounds=3,names=2,duration=4.623532098254451,cuts=1,pauses=1,restarts=1,failovers=1",
    ),
}


@pytest.mark.parametrize("found", FOUND)
def test_what_was_found_stays_mended(found: str) -> None:
    """The run keeps all promises of its scenario."""
    scenario, seed, plan = FOUND[found]
    assert not simulate(Plan.parse(BY_NAME[scenario], seed, plan)).broken()
