"""A seed says everything: a run can be replayed bit for bit, anywhere, and made smaller."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from unittest.mock import patch

import pytest

from simulation import BY_NAME, SCENARIOS, Faults, Invariant, Plan, simulate
from simulation.command import main
from simulation.scenarios import ALLOWED_DRIFT
from simulation.shrink import breaks, shrink
from tenure.core import attempt, lease
from tenure.errors import UsageError
from tests.simulated.mutants import MUTANTS, without_drift

SEEDS = range(40, 42)


def digests() -> list[str]:
    """Run a few seeds of every scenario."""
    return [simulate(Plan.draw(scenario, seed)).digest for scenario in SCENARIOS for seed in SEEDS]


def test_the_same_seed_gives_the_same_run() -> None:
    """Twice in one process, with and without a trace."""
    plan = Plan.draw(BY_NAME["wire"], 3)
    assert digests() == digests()
    assert simulate(plan).digest == simulate(plan, trace=True).digest
    assert len(set(digests())) == len(SCENARIOS) * len(SEEDS)


@pytest.mark.parametrize("hash_seed", ["1", "4711"])
def test_another_process_gives_the_same_run(hash_seed: str) -> None:
    """Nothing hangs on the order of a set or on an address."""
    code = "from tests.simulated.test_replay import digests; print(*digests())"
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == digests()


def test_a_plan_can_be_written_and_read() -> None:
    """What is printed for a shrunk run replays that very run."""
    plan = replace(Plan.draw(BY_NAME["wire"], 17), clients=2, duration=1.25)
    again = Plan.parse(BY_NAME["wire"], 17, plan.text())
    assert again == plan
    assert simulate(again).digest == simulate(plan).digest
    assert not plan.drawn()


@pytest.mark.parametrize("text", ["clients", "clients=many", "elephants=1"])
def test_a_plan_that_makes_no_sense_is_refused(text: str) -> None:
    """The message says what is allowed."""
    with pytest.raises(UsageError, match="no part of a plan"):
        Plan.parse(BY_NAME["wire"], 0, text)


def test_a_shrunk_run_still_fails() -> None:
    """It breaks the same invariant, with less of everything."""
    mutant = next(mutant for mutant in MUTANTS if mutant.bug == "newcomers overtake the queue")
    with mutant.plant():
        plans = (Plan.draw(BY_NAME["wire"], seed) for seed in range(400))
        large = (plan for plan in plans if len(plan.faults.active()) > 4 and plan.clients > 3 < plan.rounds)
        plan = next(plan for plan in large if breaks(plan, Invariant.FIFO))
        small = shrink(plan, Invariant.FIFO)
        assert breaks(small, Invariant.FIFO)
    assert len(small.faults.active()) < len(plan.faults.active())
    assert small.clients * small.tasks * small.rounds < plan.clients * plan.tasks * plan.rounds
    assert not breaks(small, Invariant.FIFO)


def test_a_broken_promise_is_told_small(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the seed, shrinks the run, tells its story, says how to replay it, and fails."""
    mutant = next(mutant for mutant in MUTANTS if mutant.bug == "the last to come is served first")
    with mutant.plant():
        assert main(["--scenario", "calm", "--first", "0", "--seeds", "20", "--jobs", "1"]) == 1
        told = capsys.readouterr().out
        replays = [each.split() for each in re.findall(r'SIM_ARGS="(.*)"', told)]
        assert "CHECK    fifo" in told
        assert len(replays) == 2
        for arguments in replays:
            assert main([*arguments, "--quiet"]) == 1
            assert "BROKEN: fifo" in capsys.readouterr().out


def test_a_replay_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    """It says who asked what, what the store did, and what was believed."""
    assert main(["--scenario", "wire", "--seed", "5"]) == 0
    told = capsys.readouterr().out
    for words in ("wire, seed 5: ", " requests ", "granted to", "and believes in it for", "releases", "digest "):
        assert words in told


def test_several_scenarios_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """Each that is named has its row in the table, and no other."""
    assert main(["--scenario", "calm", "--scenario", "wire", "--seeds", "3", "--jobs", "1"]) == 0
    _seeds, *lines = capsys.readouterr().out.splitlines()
    rows = [line.split()[0] for line in lines]
    assert rows == ["scenario", "calm", "wire", "6"]


def test_drift_beyond_the_allowance_is_seen() -> None:
    """Clocks that are worse than assumed break what rests on them; within the allowance nothing breaks."""
    bad = Faults(drift=0.1, pauses=2)
    plans = [replace(Plan.draw(BY_NAME["wire"], seed), faults=bad) for seed in range(60)]
    assert any(breaks(plan, Invariant.BACKED) for plan in plans)
    within = [replace(plan, faults=replace(bad, drift=ALLOWED_DRIFT)) for plan in plans]
    assert not any(breaks(plan, Invariant.BACKED) for plan in within)
    with patch.object(attempt, "valid_until", without_drift), patch.object(lease, "valid_until", without_drift):
        assert any(breaks(plan, Invariant.BACKED) for plan in within)


@pytest.mark.parametrize("option", ["--seeds", "--jobs"])
def test_no_run_is_no_success(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who asks for no seed by mistake is told."""
    with pytest.raises(SystemExit) as ended:
        main(["--scenario", "calm", option, "0"])
    assert ended.value.code == 2
    assert "must be 1 or more" in capsys.readouterr().err
