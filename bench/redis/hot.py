"""Several processes, each with its own client, contend for one lock in Redis without a pause.

The benchmark measures the grants a second, their cost for the server, the waits, and the share of each process.
"""

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import NAME, clock
from bench.contest import Share, contend, contend_asyncio
from bench.harness import Bound, Case, Report, Row, Size, duration, interleave, percentile, ratios
from bench.peers.programs import REDISSON, RUEIDISLOCK
from bench.redis.contenders import (
    ASYNCIO,
    LOOPS,
    MEANINGS,
    OPENERS,
    POTTERY,
    REDIS_LOCK,
    REDIS_PY,
    REDIS_PY_QUICK,
    TEST_TIMEOUT,
    THREADS,
    TTL,
    redis_server,
)
from bench.redis.floor import MEANINGS as FLOOR
from bench.redis.floor import OWN, WAKING, bare_handle, beyond
from bench.redis.usage import OURS, calls, processor
from bench.workers import Worker
from tenure import AsyncClient
from tests.servers import RedisServer

ALL = OPENERS | {OWN: bare_handle}
PEERS = (REDIS_PY, REDIS_PY_QUICK, REDIS_LOCK, POTTERY)
HOLDS = (0.0, 0.002)
START_AFTER = 0.05
COLUMNS = ["acquired/s", "commands each", "server each", "wait p50", "p99", "max", "fewest/most"]

FASTER = {REDIS_LOCK: 3.0, REDIS_PY: 1.8}
"""The least ratio to the speed of each of these peers, with the greatest number of processes and no hold time."""
COMMANDS = 2.0
"""The greatest number of client commands for an acquisition and its release, to two decimals."""
FAIRNESS = 0.8
"""The least ratio of the fewest grants of a process to the most."""

SENT = {
    REDIS_PY: ("set", "evalsha"),
    REDIS_PY_QUICK: ("set", "evalsha"),
    REDIS_LOCK: ("set", "blpop", "get"),
    POTTERY: ("set", "evalsha"),
    RUEIDISLOCK: ("evalsha", "eval"),
    REDISSON: ("evalsha", "eval", "subscribe", "unsubscribe"),
}
"""The commands that a peer's clients send. The server also counts the commands of scripts: the GET of
python-redis-lock's script stands for its EVALSHA, which is not counted here."""


@dataclass(slots=True)
class Contest:
    """The grants of all processes in one window, and their cost for the server."""

    shares: Sequence[Share]
    seconds: float
    commands: float
    """The commands sent by clients, for each acquisition."""
    busy: float
    """The server's processor time for each acquisition, in seconds."""

    def rate(self) -> float:
        """Return the acquisitions a second."""
        return sum(share.grants for share in self.shares) / self.seconds

    def fairness(self) -> float:
        """Return the ratio of the fewest grants to the most."""
        grants = [share.grants for share in self.shares]
        return min(grants) / max(grants) if any(grants) else 0.0


def run(size: Size, folder: Path) -> Report:
    """Let processes contend, one window each in turns."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        workers = [stack.enter_context(Worker(serve, server.url)) for _ in range(max(size.hot))]
        for worker in workers:
            worker.answer()
        contests: dict[Case, list[Contest]] = {}
        for processes in size.hot:
            for hold in HOLDS:
                contests |= _contend_in_turns(server, workers[:processes], hold, size)
    report = Report("redis_hot", f"processes on one hot lock, each holds it for so long, {size.window:g} s", COLUMNS)
    report.rows = [row(case, found) for case, found in contests.items()]
    report.bounds = bounds(contests, max(size.hot))
    return report


def _contend_in_turns(
    server: RedisServer, workers: Sequence[Worker], hold: float, size: Size
) -> dict[Case, list[Contest]]:
    labels = [THREADS, *PEERS]
    if hold == 0 and len(workers) == max(size.hot):
        labels[1:1] = [ASYNCIO, OWN]
    cases = {label: Case(label, len(workers), hold) for label in labels}
    measures = {label: partial(contest, server, workers, case, size.window) for label, case in cases.items()}
    return {cases[label]: found for label, found in interleave(measures, size.hot_rounds).items()}


def contest(server: RedisServer, workers: Sequence[Worker], case: Case, seconds: float) -> Contest:
    """Let the processes contend for so long."""
    for worker in workers:
        worker.order((case.label, case.hold))
    for worker in workers:
        worker.answer()
    server.command("CONFIG", "RESETSTAT")
    before = processor(server)
    start = clock() + START_AFTER
    for worker in workers:
        worker.order((start, start + seconds))
    shares: list[Share] = [worker.answer() for worker in workers]
    acquired = sum(len(share.waits) for share in shares)
    return Contest(shares, seconds, sent(server, case.label) / acquired, (processor(server) - before) / acquired)


def sent(server: RedisServer, label: str) -> int:
    """Return the number of client commands since the statistics were reset."""
    counts = calls(server)
    return sum(counts.get(name, 0) for name in SENT.get(label, OURS))


def row(case: Case, contests: Sequence[Contest]) -> Row:
    """Return the row of a case."""
    waits = [wait for contest in contests for share in contest.shares for wait in share.waits]
    half, most, longest = percentile(waits, 0.5), percentile(waits, 0.99), percentile(waits, 1.0)
    rates, commands, busy, fairness = (
        [contest.rate() for contest in contests],
        [contest.commands for contest in contests],
        [contest.busy for contest in contests],
        [contest.fairness() for contest in contests],
    )
    cells = [
        f"{statistics.median(rates):,.0f}",
        f"{statistics.median(commands):.2f}",
        duration(statistics.median(busy)),
        *map(duration, (half, most, longest)),
        f"{statistics.median(fairness):.2f}",
    ]
    figures = {"rates": rates, "commands": commands, "server_seconds": busy, "fairness": fairness}
    return Row(str(case), cells, (MEANINGS | FLOOR)[case.label], figures | {"p50": half, "p99": most, "max": longest})


def bounds(contests: Mapping[Case, Sequence[Contest]], most: int) -> list[Bound]:
    """Compare the greatest number of processes, without a hold time, with its peers and among themselves."""
    hot = {case.label: found for case, found in contests.items() if case.processes == most and case.hold == 0}
    commands = statistics.median(contest.commands for contest in hot[THREADS])
    where = f"{most} x 0 ms, {THREADS}"
    spent = f"{where}: commands each, to two decimals (exactly {commands:.4f})"
    polls = "the head of the queue re-polls, and the holder renews, without a notification"
    return [
        *(_faster(where, hot, peer, limit) for peer, limit in FASTER.items()),
        Bound(spent, round(commands, 2), COMMANDS, why=polls),
        Bound(f"{where}: fewest/most", _fairness(hot[THREADS]), FAIRNESS, at_least=True),
    ]


def _faster(where: str, hot: Mapping[str, Sequence[Contest]], peer: str, limit: float) -> Bound:
    rates = {label: [max(each.rate(), 1 / each.seconds) for each in hot[label]] for label in (THREADS, OWN, peer)}
    longest = max(wait for contest in hot[peer] for share in contest.shares for wait in share.waits)
    why = (
        f"{beyond(OWN, ratios(rates[OWN], rates[peer]).median, limit, WAKING)}; the fewest/most of that peer, which is"
        f" faster in sum if it grants one process again and again, is {_fairness(hot[peer]):.2f}, its longest wait"
        f" {duration(longest)}"
    )
    return Bound(f"{where} / {peer}", ratios(rates[THREADS], rates[peer]).median, limit, at_least=True, why=why)


def _fairness(contests: Sequence[Contest]) -> float:
    return statistics.median(contest.fairness() for contest in contests)


def serve(line: Connection, url: str) -> None:
    """Run one of the processes."""
    line.send("there")
    while True:
        label, hold = line.recv()
        if label == ASYNCIO:
            _serve_asyncio(line, url, hold)
        else:
            with ALL[label](url) as handle:
                line.send("ready")
                start, until = line.recv()
                time.sleep(max(0.0, start - clock()))
                line.send(contend(handle, hold, until))


def _serve_asyncio(line: Connection, url: str, hold: float) -> None:
    with asyncio.Runner(loop_factory=LOOPS[ASYNCIO]) as runner:
        client = AsyncClient(url, operation_timeout=TEST_TIMEOUT)
        runner.run(client.inspect(NAME))
        line.send("ready")
        start, until = line.recv()
        time.sleep(max(0.0, start - clock()))
        line.send(runner.run(contend_asyncio(client.lock(NAME, TTL), hold, until)))
        runner.run(client.close())
