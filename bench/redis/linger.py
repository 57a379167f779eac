"""The cost of reacquiring a lingering lock in Redis, by one thread."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.contenders import NAME
from bench.harness import Bound, Report, Row, Size, duration, spread
from bench.redis import contenders
from bench.redis.contenders import MEANINGS, REDIS_PY, THREADS
from bench.redis.hot import sent
from bench.timing import blocking, lease_pair, measure_pairs, plain_pair
from tenure import Client, Lock
from tests.servers import RedisServer

LINGER = "linger"
LINGER_WITH = "linger, with"
LEAST = 300_000
"""The least number of pairs a second of one thread."""
COUNTED = 5_000
"""The number of pairs over which commands are counted: several spans of tokens."""

OURS = {
    LINGER: "tenure.Client, lock(..., linger=1), acquire().release()",
    LINGER_WITH: "the same by a with statement",
}


def run(size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders, and count their commands."""
    with ExitStack() as stack:
        server = stack.enter_context(contenders.redis_server(folder))
        pairs = _open_all(stack, server)
        commands = {label: _commands(server, label, pair) for label, pair in pairs.items()}
        medians = measure_pairs({label: blocking(pair) for label, pair in pairs.items()}, size.pairs, size.pair_rounds)
    report = Report("linger", "a lock that one thread takes again and again", _columns())
    report.rows = [_row(label, rounds, commands[label]) for label, rounds in medians.items()]
    report.bounds = _bounds(medians, commands)
    return report


def _open_all(stack: ExitStack, server: RedisServer) -> dict[str, Callable[[], object]]:
    client = stack.enter_context(Client(server.url))
    redis_py = stack.enter_context(contenders.redis_py_client(server.url))
    return {
        LINGER: lease_pair(client.lock(NAME, linger=1.0)),
        LINGER_WITH: _entered(client.lock(f"{NAME}-with", linger=1.0)),
        THREADS: lease_pair(client.lock(f"{NAME}-plain")),
        REDIS_PY: plain_pair(contenders.redis_py_lock(redis_py)),
    }


def _entered(lock: Lock) -> Callable[[], object]:
    def pair() -> None:
        with lock:
            pass

    pair()
    return pair


def _commands(server: RedisServer, label: str, pair: Callable[[], object]) -> float:
    server.command("CONFIG", "RESETSTAT")
    for _ in range(COUNTED):
        pair()
    return sent(server, label) / COUNTED


def _columns() -> list[str]:
    return ["median", "min..max of rounds", "pairs/s", "commands each"]


def _row(label: str, rounds: Sequence[float], commands: float) -> Row:
    found = spread(rounds)
    span = f"{duration(found.low)}..{duration(found.high)}"
    cells = [duration(found.median), span, f"{1 / found.median:,.0f}", f"{commands:.3f}"]
    return Row(label, cells, (OURS | MEANINGS)[label], {"seconds": list(rounds), "commands": commands})


def _bounds(medians: Mapping[str, Sequence[float]], commands: Mapping[str, float]) -> list[Bound]:
    rate = 1 / statistics.median(medians[LINGER])
    why = "all of a pair is Python: two leases are made for each, and the machine was busy if it is much below"
    return [
        Bound(f"{LINGER}: pairs/s", rate, LEAST, at_least=True, why=why),
        Bound(f"{LINGER}: commands each", commands[LINGER], 0.01),
    ]
