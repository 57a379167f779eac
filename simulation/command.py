"""`python -m simulation`: runs many seeds, or replays one and prints its trace."""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence

from simulation.plan import Plan
from simulation.run import Report, simulate
from simulation.runner import Tally, run_scenarios
from simulation.scenarios import BY_NAME, SCENARIOS, Scenario
from simulation.shrink import shrink
from tenure.errors import UsageError

COMMAND = "python -m simulation"
FRESH = 10**9
"""The smallest random seed, far above the fixed seeds, which find no bug any more."""

ROW = "{:<17} {:>9} {:>7}  {:>9} {:>10} {:>9} {:>9}  {}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a promise was broken, 2 if the arguments are wrong."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs must be 1 or more")
    chosen = options.scenario or ["all"]
    scenarios = SCENARIOS if "all" in chosen else tuple(BY_NAME[name] for name in dict.fromkeys(chosen))
    try:
        if options.seed is not None:
            return max(replay(_plan(each, options.seed, options.plan), quiet=options.quiet) for each in scenarios)
        return run_many(scenarios, options.seeds, _first(options.first), options.jobs)
    except UsageError as error:
        _say(f"{COMMAND}: {error}")
        return 2


def run_many(scenarios: Sequence[Scenario], seeds: int, first: int, jobs: int) -> int:
    """Run the seeds from `first` on, print a table, and explain the first broken promise of each scenario."""
    began = time.monotonic()
    runs = seeds * len(scenarios)
    _say(f"seeds {first} to {first + seeds - 1} of each scenario (--first {first} runs them again)")
    tallies = run_scenarios(scenarios, seeds, first, jobs, _progress(runs))
    elapsed = time.monotonic() - began
    _say(table(tallies))
    _say(f"{runs:,} runs in {elapsed:.1f} s: {runs / elapsed:.0f} runs a second")
    failed = [tally for tally in tallies if tally.broken]
    for tally in failed:
        _explain(tally)
    return 1 if failed else 0


def replay(plan: Plan, *, quiet: bool = False) -> int:
    """Run one plan and print its trace; return 1 if a promise was broken."""
    report = simulate(plan, trace=not quiet)
    _say(plan.describe())
    for line in report.lines:
        _say(line)
    _say(f"{report.events} events, {report.grants} grants in {report.virtual:.1f} virtual seconds")
    _say(f"digest {report.digest}")
    for violation in report.violations:
        promised = "BROKEN" if violation.invariant in plan.scenario.promises else "broken, but not promised"
        _say(f"{promised}: {violation.invariant} at {violation.time:.6f}: {violation.text}")
    return 1 if report.broken() else 0


def replay_command(scenario: str, seed: int, more: str = "") -> str:
    """Return the command that replays a run and prints its trace."""
    return f'make sim SIM_ARGS="--scenario {scenario} --seed {seed}{more}"'


def table(tallies: Sequence[Tally]) -> str:
    """Return the table of the results of each scenario."""
    head = ROW.format(
        "scenario", "seeds", "broken", "grants", "virtual/s", "grants/s", "events/s", "broken, not promised"
    )
    return "\n".join([head, *(_row(tally) for tally in tallies)])


def _row(tally: Tally) -> str:
    spent = tally.spent or 1e-9
    others = ", ".join(f"{name} in {count}" for name, count in sorted(tally.not_promised.items())) or "-"
    return ROW.format(
        tally.scenario,
        f"{tally.seeds:,}",
        len(tally.broken),
        f"{tally.grants:,}",
        f"{tally.virtual / spent:,.0f}",
        f"{tally.grants / spent:,.0f}",
        f"{tally.events / spent:,.0f}",
        others,
    )


def _explain(tally: Tally) -> None:
    """Shrink the first run that broke a promise, and print its trace."""
    seed, invariant, text = tally.broken[0]
    _say(f"\n{tally.scenario} breaks a promise ({invariant}) on {len(tally.broken)} seeds, the first is {seed}: {text}")
    _say(f"replay it:  {replay_command(tally.scenario, seed)}")
    small = shrink(Plan.draw(BY_NAME[tally.scenario], seed), invariant)
    report = simulate(small, trace=True)
    _say(f"\na smaller run that breaks the same promise, {small.describe()}")
    for line in _story(report, f"CHECK    {invariant}:"):
        _say(line)
    extra = "" if small.drawn() else f" --plan {small.text()}"
    _say(f"replay it:  {replay_command(tally.scenario, small.seed, extra)}")


def _story(report: Report, until: str) -> list[str]:
    """Return the trace up to the line that reports the violation."""
    for number, line in enumerate(report.lines):
        if until in line:
            return report.lines[: number + 1]
    return report.lines


def _progress(runs: int) -> Callable[[int], None] | None:
    if not sys.stderr.isatty():
        return None

    def show(done: int) -> None:
        bar = "#" * (30 * done // runs)
        end = "\n" if done == runs else ""
        sys.stderr.write(f"\r[{bar:<30}] {done:,} of {runs:,} runs{end}")
        sys.stderr.flush()

    return show


def _first(given: int | None) -> int:
    """Return the first seed: the given one, or a random one that has hardly been run before."""
    return random.SystemRandom().randrange(FRESH, 10 * FRESH) if given is None else given


def _plan(scenario: Scenario, seed: int, text: str | None) -> Plan:
    return Plan.draw(scenario, seed) if text is None else Plan.parse(scenario, seed, text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(COMMAND, description="Run the shipped protocol in virtual time, under faults.")
    parser.add_argument(
        "--scenario", choices=["all", *BY_NAME], action="append", help="the scenario, once or more (default: all)"
    )
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds a scenario (default: 2000)")
    parser.add_argument("--first", type=int, help="the first seed (default: a random one, so that the seeds are fresh)")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes (default: 2)")
    parser.add_argument("--seed", type=int, help="replay this one seed, and print a trace of it")
    parser.add_argument("--plan", help="with --seed: the plan of a shrunk run, as it was printed")
    traced = parser.add_mutually_exclusive_group()
    traced.add_argument("--trace", action="store_true", help="with --seed: print a trace (the default)")
    traced.add_argument("--quiet", action="store_true", help="with --seed: print the outcome only")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
