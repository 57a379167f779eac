"""Runs that once broke a promise on fresh seeds, made smaller: each was a bug, and is kept so that it stays mended."""

import pytest

from simulation import BY_NAME, Plan, simulate
from simulation.at_store import ended
from tenure.table.state import Holder, NameState

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
    # A lease that was lost unheard of was asked for again: the check took the instant of its first grant.
    "a second grant of one request, cut off": (
        "ordered_wire",
        7375338786,
        (
            "clients=4,tasks=1,rounds=4,names=1,duration=4.307017966253074,loss=0.11230812673186148,"
            "straggler=0.04165801107962978,errors=0.003664220033720789,cancel=0.23208276260614902,partitions=2,pauses=1,"
            "crashes=1"
        ),
    ),
    "a second grant of one request, by force": (
        "ordered_force",
        7375336497,
        "clients=2,tasks=6,rounds=2,names=1,duration=4.383611775397203,crashes=1,revokes=3",
    ),
    # The entry that notes a lock delay was written twice, the second time after the release had listed what to remove.
    "a lock delay that was noted twice": (
        "ordered_weights",
        7375337458,
        (
            "clients=4,tasks=2,rounds=1,names=2,duration=3.7952964465778107,loss=0.009964318432295706,"
            "straggler=0.010810391010091203,errors=0.07310489700899751,cuts=1,slow=2,crashes=1"
        ),
    ),
    # A dead heavy head kept lighter ones waiting, as it may; then there was room for it, too, and the check still
    # counted from before.
    "a semaphore that is free for its dead head later than for who waits": (
        "redis_calm",
        7375335315,
        ("clients=2,tasks=6,rounds=2,names=2,duration=3.8486517282961774,crashes=4,drift=0.00029026308695593564"),
    ),
    # Notifications of a waiter were lost, one after another, while the holder went on renewing what nobody had.
    "a lease that lingers while nobody hears the waiter": (
        "embedded",
        2028,
        (
            "clients=3,tasks=1,rounds=2,names=2,duration=3.4342008977269205,loss=0.45929408114355724,"
            "straggler=0.08607232689430183,cancel=0.19665299076997306,pauses=1"
        ),
    ),
    # Only the first waiter notified the holder. It died before it did, and its entry stayed as long as its session.
    "a lease that lingers behind a waiter that died": (
        "ordered_calm",
        2033184270,
        "clients=2,tasks=1,rounds=4,names=1,duration=2.0041451414791354,cancel=0.1452312418822248,crashes=3",
    ),
    # Its request and the release that granted it were taken in one step: the check knew the request before only.
    "a waiter that asks in the step that grants it": (
        "sql_barging_wire",
        4220100950,
        (
            "clients=2,tasks=6,rounds=2,names=1,duration=3.262579553258816,duplicate=0.07994607288945893,"
            "straggler=0.006787090426755038,errors=0.0067881032689578015,cancel=0.2822825497719642,cuts=3,slow=1,"
            "pauses=3,crashes=2,clock_back=1"
        ),
    ),
    # It was dropped as dead and joined again in one step: the check took its new place for the old one.
    "a waiter that joins again in the step that drops it": (
        "sql_failover",
        4220101193,
        (
            "clients=2,tasks=6,rounds=2,names=1,duration=3.2999659050583157,loss=0.024008572859895223,pauses=2,"
            "failovers=1,newcomers=1"
        ),
    ),
    # Its client was paused for longer than a silent waiter lives, while the time of the row stood still. So each
    # request of that client found the other waiters of the same client dead.
    "a waiter that joins again in the step of a client which has seen it silent": (
        "rows_polled_weights",
        765,
        "clients=1,tasks=5,rounds=2,names=1,duration=2.216827111673393,cuts=2,slow=2,pauses=3,crashes=1",
    ),
    # The step of its own client granted it the name, and it was killed there: nothing took its place.
    "a client that dies in the step in which it grants a name": (
        "rows_weights",
        77,
        "clients=1,tasks=2,rounds=2,names=1,duration=3.0,pauses=4,crashes=1",
    ),
}


@pytest.mark.parametrize("found", FOUND)
def test_what_was_found_stays_mended(found: str) -> None:
    """The run keeps all promises of its scenario."""
    scenario, seed, plan = FOUND[found]
    assert not simulate(Plan.parse(BY_NAME[scenario], seed, plan)).broken()


def test_the_delay_of_a_lease_that_is_still_held_has_not_begun() -> None:
    """A holder renewed its lease in the quarantine, so a semaphore had room beside it; it counted as forgotten."""
    kept, gone = (Holder(request_id, "c1", "", 1, 1, 3_000_000, 1, 0, 1) for request_id in ("c1.4", "c2.3"))
    assert ended({"c1.4": kept, "c2.3": gone}, NameState(capacity=3, holders=[kept])) == [gone]
