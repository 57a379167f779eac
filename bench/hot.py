"""Many members (processes, and the threads or tasks of each) contend for one lock without a pause.

The benchmark measures the grants a second, their cost for the servers, the waits and timeouts, the share of each
member, whether two ever held the lock at once, and the keys that are left behind.
"""

import statistics
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import Share, Want, clock, opened, prepare
from bench.harness import Case, Column, Report, Round, Size, duration, interleave, limits, middle, total, waited
from bench.peers.programs import Program
from bench.workers import Worker
from bench.workload import Bench, Workload

START_AFTER = 0.1
TURN = -1.0
"""The hold time of one turn of the event loop."""

COLUMNS = (
    Column("acquired/s", "rate", middle(",.0f")),
    Column("min..max of rounds", "rate", limits(",.0f")),
    Column("commands each", "requests", middle(".3f")),
    Column("servers each", "servers", middle(duration)),
    Column("wait p50", "waits", waited(0.5)),
    Column("p99", "waits", waited(0.99)),
    Column("max", "waits", waited(1.0)),
    Column("max / mean", "worst", middle(".1f")),
    Column("not in time", "failures", total),
    Column("fewest/most", "fairness", middle(".2f")),
    Column("of processes", "even", middle(".2f")),
    Column("farthest", "farthest", middle(lambda percent: f"{percent:.0f} %")),
    Column("overlaps", "overlaps", total),
    Column("keys left", "left", total),
)


def share_of(floor: str) -> tuple[Column, ...]:
    """Return the columns, with the share of the rate of a floor."""
    return (COLUMNS[0], Column(f"share of {floor}", "rate", lambda share: f"{share.median:.4f}", floor), *COLUMNS[1:])


def run(workload: Workload, size: Size, folder: Path) -> Report:
    """Let members contend, one window for each contender in turns."""
    options = workload.options
    with ExitStack() as stack:
        bench = Bench(stack, workload, size, folder)
        cases = [case for case in options.get("cases", _none)(size, list(bench.places)) if case.label in bench.labels]
        groups: dict[str, list[Worker]] = {}
        for case in cases:
            group = groups.setdefault(bench.contenders[case.label].apart, [])
            missing = case.processes - len(group) if not bench.program(case) else 0
            group += [
                stack.enter_context(Worker(serve, bench.store, bench.contenders[case.label].apart))
                for _ in range(missing)
            ]
        for worker in (each for group in groups.values() for each in group):
            worker.answer()
        found: dict[Case, list[Round]] = {}
        for prefix in dict.fromkeys(case.prefix for case in cases):
            mine = [case for case in cases if case.prefix == prefix]
            measures = {
                case: partial(
                    _round, bench, case, groups[bench.contenders[case.label].apart][: case.processes], workload
                )
                for case in mine
            }
            if options.get("warm"):
                interleave(measures, 1)
            found |= interleave(measures, getattr(size, options.get("rounds", "rounds")))
    return workload.report(size, found, notes=bench.notes)


def _none(_size: Size, _places: Sequence[str]) -> list[Case]:
    return []


def _round(bench: Bench, case: Case, workers: Sequence[Worker], workload: Workload) -> Round:
    place, contender = bench.places[case.place], bench.contenders[case.label]
    seconds = getattr(bench.size, workload.options.get("window", "seconds"))
    seconds = max(seconds, workload.options.get("share", 0.0) * case.processes)
    timeout = workload.options.get("timeout")
    if program := bench.program(case):
        before = place.begin(contender.sent)
        rates, acquired = _of_program(program, seconds)
        return {**rates, **place.used(before, contender.sent, acquired)}
    for worker in workers:
        worker.order((case.label, place.url, Want(case.members, timeout=timeout)))
    for worker in workers:
        worker.answer()
    place.sweep(contender.key)
    before = place.begin(contender.sent)
    start = clock() + START_AFTER
    for worker in workers:
        worker.order((start, start + seconds, case.hold, timeout))
    shares: list[list[Share]] = [worker.answer() for worker in workers]
    acquired = sum(len(share.held) // 2 for process in shares for share in process)
    used = place.used(before, contender.sent, acquired)
    for worker in workers:
        worker.order("close")
    found = summed(shares, seconds)
    if timeout is None:
        del found["failures"]
    return {**found, **used, **({"left": place.sweep(contender.key)} if timeout else {})}


def _of_program(program: Program, seconds: float) -> tuple[dict[str, float], int]:
    overlaps, grants = program.hot(seconds)
    fairness = min(grants) / max(1, *grants)
    return {"rate": sum(grants) / seconds, "fairness": fairness, "overlaps": overlaps}, sum(grants)


def summed(shares: Sequence[Sequence[Share]], seconds: float) -> dict[str, object]:
    """Return the figures of one window, from the shares of the members of each process."""
    grants = [[share.grants for share in process] for process in shares]
    each, processes = [count for process in grants for count in process], list(map(sum, grants))
    waits = array("d", (wait for process in shares for share in process for wait in share.waits))
    found: dict[str, object] = {
        "rate": sum(each) / seconds,
        "waits": waits,
        "longest": max(waits, default=float("nan")),
        "worst": max(waits) / statistics.fmean(waits) if waits else float("nan"),
        "failures": sum(share.failures for process in shares for share in process),
        "fairness": fairness(each),
        "overlaps": overlaps([share for process in shares for share in process]),
    }
    if len(processes) > 1:
        found |= {"even": fairness(processes), "farthest": unfairness(processes)}
    return found


def fairness(grants: Sequence[int]) -> float:
    """Return the fewest grants over the most: 1 is fair; 0: a member was never granted."""
    return min(grants) / max(grants) if any(grants) else 0.0


def unfairness(grants: Sequence[int]) -> float:
    """Return the greatest distance from the mean, in percent of the mean."""
    mean = statistics.mean(grants)
    return max(abs(each - mean) for each in grants) / mean * 100 if mean else float("inf")


def overlaps(shares: Sequence[Share]) -> int:
    """Return how many of the periods in which members held the lock begin before an earlier one has ended."""
    periods = sorted(
        (begin, end) for share in shares for begin, end in zip(share.held[::2], share.held[1::2], strict=True)
    )
    found, until = 0, float("-inf")
    for begin, end in periods:
        found += begin < until
        until = max(until, end)
    return found


def serve(line: Connection, store: str, folder: str) -> None:
    """Run one of the processes, for all contenders with the same folder."""
    prepare(folder)
    line.send("there")
    while True:
        label, url, want = line.recv()
        with opened(store, label, url, want) as contender:
            line.send("ready")
            start, until, hold, timeout = line.recv()
            line.send(contender.contend(start, until, hold, timeout))
            line.recv()  # so that no client closes while others are measured
