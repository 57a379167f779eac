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
    # The clock stepped forward over the time for which a given-up request is refused: the table says so now.
    "a step forward of more than a request is refused for": (
        "clock_forward",
        7375338029,
        ("clients=2,tasks=6,rounds=2,names=1,duration=4.255822487858458,cancel=0.14941041892294926,clock_forward=2"),
    ),
    # A late renewal took a lease up again in a quarantine, after its release: the server did not know the lease.
    "a late renewal of what was released in a quarantine": (
        "redis_several",
        7375335116,
        (
            "clients=2,tasks=1,rounds=3,names=1,duration=2.8393837095140277,straggler=0.06699936615614809,"
            "cancel=0.13417883354554982,pauses=1,clock_back=1,restarts=1"
        ),
    ),
}


@pytest.mark.parametrize("found", FOUND)
def test_what_was_found_stays_mended(found: str) -> None:
    """The run keeps all promises of its scenario."""
    scenario, seed, plan = FOUND[found]
    assert not simulate(Plan.parse(BY_NAME[scenario], seed, plan)).broken()
