"""Locks with `fair=False` and the default lock of redis-py, which is not fair either, on one hot lock in one run."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.harness import Bound, Case, Report, Size, interleave, ratios
from bench.redis.contenders import BARGING, REDIS_PY, THREADS, redis_server
from bench.redis.hot import COLUMNS, HOLDS, Contest, contest, row, serve
from bench.workers import Worker
from tests.servers import RedisServer

LABELS = (BARGING, THREADS, REDIS_PY)

FASTER = 1.0
"""The least ratio to the speed of redis-py's default, with the greatest number of processes and no hold time."""
LONGEST = 1.0
"""The longest wait of a process, in seconds."""


def run(size: Size, folder: Path) -> Report:
    """Let processes contend, one window each in turns."""
    contests: dict[Case, list[Contest]] = {}
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        workers = [stack.enter_context(Worker(serve, server.url)) for _ in range(max(size.hot))]
        for worker in workers:
            worker.answer()
        for hold in HOLDS:
            contests |= _contend_in_turns(server, workers, hold, size)
    title = f"{len(workers)} processes on one hot lock, each holds it for so long, {size.window:g} s"
    report = Report("redis_barging", title, COLUMNS)
    report.rows = [row(case, found) for case, found in contests.items()]
    report.bounds = _bounds({case.label: found for case, found in contests.items() if case.hold == 0})
    return report


def _contend_in_turns(
    server: RedisServer, workers: Sequence[Worker], hold: float, size: Size
) -> dict[Case, list[Contest]]:
    cases = {label: Case(label, len(workers), hold) for label in LABELS}
    measures = {label: partial(contest, server, workers, case, size.window) for label, case in cases.items()}
    return {cases[label]: found for label, found in interleave(measures, size.hot_rounds).items()}


def _bounds(contests: Mapping[str, Sequence[Contest]]) -> list[Bound]:
    rates = {label: [each.rate() for each in found] for label, found in contests.items()}
    longest = max(wait for each in contests[BARGING] for share in each.shares for wait in share.waits)
    faster = ratios(rates[BARGING], rates[REDIS_PY]).median
    return [
        Bound(f"{BARGING} / {REDIS_PY}, its default", faster, FASTER, at_least=True),
        Bound(f"{BARGING}: the longest wait", longest, LONGEST, " s"),
    ]
