"""The cost of one uncontended pair of acquire and release, and the pairs a second of many tasks with a name each.

Each contender runs in a process of its own, so that its processor time is its own.
"""

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import Want, opened, prepare
from bench.harness import (
    Case,
    Column,
    Found,
    Report,
    Round,
    Size,
    duration,
    figures,
    interleave,
    limits,
    middle,
    ratios,
    total,
)
from bench.servers import RedisPlace, busy, distant, placed
from bench.workers import Worker
from bench.workload import Bench, Workload

BATCH = 10
"""The number of pairs that are timed together, so that the cost of reading the clock is negligible."""

COLUMNS = (Column("median", "seconds", middle(duration)), Column("min..max of rounds", "seconds", limits(duration)))
COSTS = (
    Column("requests", "requests", lambda values: f"{statistics.mean(values):.3f}"),
    Column("client each", "client", middle(duration)),
    Column("servers each", "servers", middle(duration)),
    Column("keys left", "left", total),
)
RATE = Column("pairs/s", "pairs/s", middle(",.0f"))


def over(**floors: str) -> tuple[Column, ...]:
    """Return the columns of pairs, with ratios to some rows: `own="..."` makes the column "over own"."""
    ratio = [Column(f"over {head.replace('_', ' ')}", "seconds", str, over=label) for head, label in floors.items()]
    return (*COLUMNS, *ratio, *COSTS)


def run(workload: Workload, size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders."""
    with ExitStack() as stack:
        bench = Bench(stack, workload, size, folder)
        cores = workload.options.get("cores", 0)
        found = _measure(workload, bench, cores)
        notes = list(bench.notes)
        if cores:
            together = _measure(workload, bench, 1)
            notes.append(_on_one_core(workload, together))
    return workload.report(size, found, notes=notes)


def _on_one_core(workload: Workload, found: Found) -> str:
    bare = next(column.over for column in workload.columns if column.over)
    base = next(rounds for case, rounds in found.items() if case.label == bare)
    told = (
        f"{case}: {duration(statistics.median(figures(rounds, 'seconds')))}, "
        f"{ratios(figures(rounds, 'seconds'), figures(base, 'seconds')).median:.2f}"
        for case, rounds in found.items()
    )
    return f"client and server run on two cores; on one core, a pair and its ratio to the {bare}: {'; '.join(told)}"


def _measure(workload: Workload, bench: Bench, cores: int) -> Found:
    options, size = workload.options, bench.size
    with ExitStack() as stack:
        stack.enter_context(busy() if options.get("busy") else nullcontext())
        place = next(iter(bench.places.values()))
        stack.enter_context(placed(place.pid, cores) if cores else nullcontext())
        urls = {
            name: stack.enter_context(distant(each.url, options.get("delay", 0.0)))
            for name, each in bench.places.items()
        }
        cases = [
            Case(label, f"{name}, " if name else "", name)
            for name in urls
            for label in bench.labels
            if name not in options.get("ours_only", ()) or label.startswith("tenure")
        ]
        workers: dict[str, Worker] = {}
        for label in dict.fromkeys(case.label for case in cases):
            mine = {case.place: urls[case.place] for case in cases if case.label == label}
            if not any(bench.program(case) for case in cases if case.label == label):
                workers[label] = stack.enter_context(Worker(serve, bench.store, label, mine))
                workers[label].answer()  # before the next one begins: a floor takes no name that another process holds
        pairs = max(BATCH, size.pairs // options.get("part", 1))
        measures = {
            case: partial(_round, bench, case, workers.get(case.label), pairs, options.get("times", 1))
            for case in cases
        }
        interleave(measures, 1)  # warm up: some servers are slow at first
        return interleave(measures, size.pair_rounds)


def _round(bench: Bench, case: Case, worker: Worker | None, pairs: int, times: int) -> Round:
    place, contender = bench.places[case.place], bench.contenders[case.label]
    program = bench.program(case)
    before = place.begin(contender.sent)
    batches: list[tuple[float, float]] = []
    left = 0
    for _ in range(pairs // BATCH):
        if worker:
            worker.order((case.place, BATCH * times))
            batches.append(worker.answer())
        elif program:
            batches.append(program.pair(BATCH))
        left += place.sweep(contender.key)  # else the next pair waits until the key expires
    seconds, client = (statistics.median(values) for values in zip(*batches, strict=True))
    used = place.used(before, contender.sent, len(batches) * BATCH * times)
    found = {"seconds": seconds, "pairs/s": 1 / seconds, "client": client, **used}
    return {**found, "left": left} if isinstance(place, RedisPlace) and place.wires else found


def serve(line: Connection, store: str, label: str, urls: Mapping[str, str]) -> None:
    """Run the process of one contender: it is told a place and a number of pairs."""
    from bench.contenders import CONTENDERS

    prepare(CONTENDERS[store][label].apart)
    with ExitStack() as stack:
        open_at = {place: stack.enter_context(opened(store, label, url)) for place, url in urls.items()}
        for each in open_at.values():
            each.pair(BATCH)  # connects
        line.send("ready")
        while True:
            place, count = line.recv()
            before = time.process_time()
            seconds = open_at[place].pair(count)
            line.send((seconds, (time.process_time() - before) / count))


# -- many tasks ---------------------------------------------------------------------------------------------------

TASKS = 64


def many(workload: Workload, size: Size, folder: Path) -> Report:
    """Let the tasks of each contender, each with a name of its own, acquire and release for some seconds in turns."""
    tasks = min(TASKS, size.tasks)
    with ExitStack() as stack:
        bench = Bench(stack, workload, size, folder)
        url = bench.places[""].url
        measures = {Case(label): partial(_rate, bench.store, label, url, tasks, size.seconds) for label in bench.labels}
        found = interleave(measures, size.rounds)
    return workload.report(size, found)


def _rate(store: str, label: str, url: str, tasks: int, seconds: float) -> Round:
    with opened(store, label, url, Want(tasks, apart=True)) as contender:
        weight = tasks / len(contender.handles)
        return {"rate": weight * contender.rate(seconds)}
