"""What the scenarios promise holds, and what they do not promise is really seen to break."""

import functools
import os
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from simulation import BY_NAME, SCENARIOS, Invariant
from simulation.command import replay_command, table
from simulation.plan import Plan
from simulation.run import simulate
from simulation.runner import CHUNK, Tally, run_scenarios
from tenure.core.lease import CoreLease

SEEDS = int(os.environ.get("TENURE_SIMULATION_SEEDS", "30"))
"""How many seeds of each scenario are run: in `make test` as many as take 90 seconds of the processor, later more."""

ENOUGH = 1_000
"""After so many seeds every fault has happened as often as it should."""

NEVER_PROMISED = {
    "clock_forward": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT},
    "amnesia": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT, Invariant.CLEAN},
    "amnesia_disorder": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT, Invariant.CLEAN, Invariant.TOKENS},
    "force": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT},
    "redis_amnesia": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT, Invariant.CLEAN},
    "redis_emptied": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT},
    "quorum_drift": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT},
    "ordered_force": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT},
    "sql_clock_forward": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT},
    "sql_force": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT},
    "sql_unguarded": {Invariant.EXCLUSION, Invariant.BACKED, Invariant.KEPT, Invariant.CLEAN},
}

FAULTS = {
    "calm": {"client crashed", *(f"acquire cancelled at await {number}" for number in range(1, 9))},
    "embedded": {"lease handed off", "push lost", "message late", "error answered", "client paused", "client crashed"},
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
    "redis_calm": {"client crashed", "script not known"},
    "redis_strict": {"restart with nothing", "restart with some", "restart with all", "failover", "long lock delay"},
    "redis_observed": {"restart with all", "failover", "long lock delay"},
    "redis_emptied": {"restart with nothing"},
    "redis_failback": {"failover", "failback", "lease taken up again", "long lock delay"},
    "redis_known": {"restart with nothing", "client crashed", "long lock delay"},
    "redis_replicas": {"failover", "replicas stalled"},
    "quorum_amnesia": {"restart with nothing", "restart with some", "restart with all"},
    "quorum_drift": {"clock forward"},
}
FAULTS["redis_wire"] = FAULTS["wire"] | {"scripts forgotten", "script not known"}
FAULTS["quorum"] = FAULTS["wire"]
FAULTS["handover"] = {"lease detached", "lease adopted", "adoption failed: Cancelled", "client crashed"}
FAULTS["ordered_calm"] = FAULTS["calm"] | {"lease handed off"}
FAULTS["ordered_wire"] = FAULTS["wire"] - {"request repeated", "clock back"} | {"lease handed off"}
FAULTS["ordered_weights"] = FAULTS["wire"] - {"request repeated", "clock back"}
FAULTS["ordered_force"] = FAULTS["force"]
FAULTS["sql_calm"] = FAULTS["calm"]
FAULTS["sql_wire"] = FAULTS["sql_weights"] = FAULTS["wire"]
FAULTS["sql_clock_forward"] = FAULTS["clock_forward"]
FAULTS["sql_force"] = FAULTS["force"]
FAULTS["sql_failover"] = {"failover", "lease taken up again", "long lock delay", "message late"}
FAULTS["sql_unguarded"] = {"failover"}
FAULTS["quantities"] = {each for each in FAULTS["wire"] if not each.startswith(("acquire", "push"))}
FAULTS["redis_amnesia"] = FAULTS["amnesia"]
"""What must be seen to happen in a scenario, many times."""


def each(scenarios: Iterable[str]) -> list[Any]:
    """Return scenarios to test, each in a group of its own, so that one process runs all tests of its tally."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in scenarios]


@functools.cache
def tally_of(scenario: str) -> Tally:
    """Run a scenario, once for all tests of it in here; in one process if they are spread over several anyway."""
    [tally] = run_scenarios([BY_NAME[scenario]], SEEDS, jobs=1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
    print(table([tally]))  # noqa: T201 - shown by pytest -rP, or on failure
    return tally


@pytest.mark.parametrize("scenario", each(BY_NAME))
def test_every_promise_is_kept(scenario: str) -> None:
    """No seed breaks what the scenario promises. The first test of a scenario runs it for all of them."""
    tally = tally_of(scenario)
    assert tally.seeds == SEEDS
    broken = [
        f"{invariant}: {text}\n  replay it: {replay_command(scenario, seed)}" for seed, invariant, text in tally.broken
    ]
    assert not broken, "\n".join(broken)
    assert tally.grants > 5 * tally.seeds


@pytest.mark.parametrize("scenario", each(name for name in BY_NAME if name.startswith("sql_")))
def test_promises_are_kept_in_long_queues(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where one waiter ahead counts as many: then the next may be silent for longer."""
    monkeypatch.setattr("tenure.table.times.CROWD", 1)
    unhurried = replace(BY_NAME[scenario], ttls=(10.0,))  # with a short ttl nobody may be silent
    reports = [simulate(Plan.draw(unhurried, seed)) for seed in range(SEEDS)]
    assert [(seed, report.broken()) for seed, report in enumerate(reports) if report.broken()] == []
    assert sum(report.grants for report in reports) > 5 * SEEDS


SENT = [
    "redis_calm",
    "redis_wire",
    "redis_strict",
    "redis_replicas",
    "sql_calm",
    "sql_wire",
    "sql_force",
    "sql_failover",
    "ordered_calm",
    "ordered_wire",
    "ordered_weights",
    "ordered_force",
]


@pytest.mark.parametrize("scenario", each(SENT))
def test_promises_are_kept_without_waiting_for_releases(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where every release is sent and its reply taken later, as at the end of a quick `with`."""
    monkeypatch.setattr(CoreLease, "awaited", False)
    reports = [simulate(Plan.draw(BY_NAME[scenario], seed)) for seed in range(SEEDS)]
    assert [(seed, report.broken()) for seed, report in enumerate(reports) if report.broken()] == []
    assert sum(report.grants for report in reports) > 5 * SEEDS
    assert sum(report.happened["release sent"] for report in reports) > SEEDS


@pytest.mark.parametrize("scenario", each(NEVER_PROMISED))
def test_what_is_not_promised_is_seen_to_break(scenario: str) -> None:
    """A check that never fires proves nothing: where a guarantee ends, the checks say so. Few seeds may miss one."""
    tally = deepcopy(tally_of(scenario))
    while missed := NEVER_PROMISED[scenario] - set(tally.not_promised):
        assert tally.seeds < ENOUGH, missed
        [more] = run_scenarios([BY_NAME[scenario]], CHUNK, first=tally.seeds, jobs=1)
        tally.add(more)


@pytest.mark.parametrize("scenario", each(FAULTS))
def test_every_fault_happens(scenario: str) -> None:
    """No fault is one in name only. Few seeds may happen to miss one: then more are run."""
    tally = deepcopy(tally_of(scenario))
    while missed := {fault for fault in FAULTS[scenario] if tally.happened[fault] < max(1, tally.seeds // 40)}:
        assert tally.seeds < ENOUGH, missed
        [more] = run_scenarios([BY_NAME[scenario]], CHUNK, first=tally.seeds, jobs=1)
        tally.add(more)
    assert not tally.broken


@pytest.mark.xdist_group("redis_strict")
def test_holders_keep_their_leases_through_a_failover() -> None:
    """A lease that the promoted server has never heard of is taken up again by its holder, and goes on."""
    tally = tally_of("redis_strict")
    assert tally.happened["lease taken up again"] > tally.seeds // 20


def test_scenarios_of_one_row_promise_the_same() -> None:
    """A row of the guarantee table holds for every scenario that stands behind it."""
    for scenario in SCENARIOS:
        if scenario.row:
            row = BY_NAME[scenario.row]
            assert (scenario.promises, scenario.description, scenario.exceptions) == (
                row.promises,
                row.description,
                row.exceptions,
            )
