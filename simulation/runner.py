"""Many runs in several processes, and the sums of their results."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from simulation.invariants import Invariant
from simulation.plan import Plan
from simulation.run import simulate
from simulation.scenarios import BY_NAME, Scenario

CHUNK = 50
"""How many seeds a process runs at a time."""


@dataclass(slots=True)
class Tally:
    """The sums of the results of some runs of a scenario."""

    scenario: str
    seeds: int = 0
    broken: list[tuple[int, Invariant, str]] = field(default_factory=list[tuple[int, Invariant, str]])
    """The seed, the invariant and the text of the first promise that each run broke."""
    not_promised: Counter[Invariant] = field(default_factory=Counter[Invariant])
    """How many runs broke each invariant that the scenario does not promise."""
    happened: Counter[str] = field(default_factory=Counter[str])
    """How often each fault occurred."""
    grants: int = 0
    events: int = 0
    virtual: float = 0.0
    spent: float = 0.0
    """Processor seconds."""

    def add(self, other: "Tally") -> None:
        """Add the results of other runs of the same scenario."""
        self.seeds += other.seeds
        self.broken = sorted(self.broken + other.broken, key=lambda each: each[0])
        self.not_promised += other.not_promised
        self.happened += other.happened
        self.grants += other.grants
        self.events += other.events
        self.virtual += other.virtual
        self.spent += other.spent


def run_seeds(name: str, seeds: Iterable[int]) -> Tally:
    """Run a scenario on some seeds, in this process."""
    tally, began = Tally(name), time.process_time()
    for seed in seeds:
        report = simulate(Plan.draw(BY_NAME[name], seed))
        tally.seeds += 1
        tally.broken += [(seed, each.invariant, each.text) for each in report.broken()[:1]]
        tally.not_promised.update(report.broken_by_design())
        tally.happened.update(report.happened)
        tally.grants += report.grants
        tally.events += report.events
        tally.virtual += report.virtual
    tally.spent = time.process_time() - began
    return tally


def run_scenarios(
    scenarios: Sequence[Scenario],
    seeds: int,
    first: int = 0,
    jobs: int = 2,
    progress: Callable[[int], None] | None = None,
) -> list[Tally]:
    """Run each scenario on `seeds` seeds, in `jobs` processes; call `progress` with the number of finished runs."""
    tallies = {scenario.name: Tally(scenario.name) for scenario in scenarios}
    chunks = [
        (scenario.name, range(start, min(start + CHUNK, first + seeds)))
        for start in range(first, first + seeds, CHUNK)
        for scenario in scenarios
    ]
    done = 0
    for tally in _carry_out(chunks, jobs):
        tallies[tally.scenario].add(tally)
        done += tally.seeds
        if progress is not None:
            progress(done)
    return list(tallies.values())


def _carry_out(chunks: list[tuple[str, range]], jobs: int) -> Iterator[Tally]:
    if jobs <= 1:
        yield from (run_seeds(name, seeds) for name, seeds in chunks)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _end_with_parent) as pool:
        try:
            yield from pool.map(run_seeds, [name for name, _ in chunks], [seeds for _, seeds in chunks])
        except BaseException:
            for process in multiprocessing.active_children():  # rather than wait for the ends of their chunks
                process.kill()
            raise


def _end_with_parent() -> None:
    """In a worker: end as soon as the parent does, however that ends. An idle worker would wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent kills this process then
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_behind, args=(parent,), daemon=True).start()


def _end_behind(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
