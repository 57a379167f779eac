"""The time from a release in one process to the grant in another, for a lock in Redis, near the server and far from it.

A wake-up takes at least as long as a message to the server and its reply, as of a PING. So PINGs are measured as well,
through the same proxy, whose timers are coarse: it delays messages by more than its setting.
"""

import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.handoff import handoff_row, two_players
from bench.harness import Bound, Report, Size, interleave, ratios
from bench.redis.contenders import ASYNCIO, MEANINGS, OPENERS, REDIS_LOCK, REDIS_PY, THREADS, redis_server
from tests.servers import Proxy, RedisServer
from tests.servers.resp import RespWire

LABELS = (THREADS, ASYNCIO, REDIS_PY, REDIS_LOCK)
PING = "PING"
MEANING = MEANINGS | {PING: "floor: one PING and its reply, on an idle connection"}
DELAYS = (0.0, 0.001, 0.004)
"""The delays of a message, each way, in seconds. Without a delay there is no proxy."""
HOLD = (0.02, 0.12)
"""The limits of the hold time: the whole 100 ms of redis-py's sleep between polls, after the time of a slow request."""

OVER_REDIS_LOCK = 0.4
"""The greatest ratio to the median of python-redis-lock, near the server."""


def run(size: Size, folder: Path) -> Report:
    """Hand the lock of each contender off between two processes, at each distance."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder))
        places = {_distance(delay): stack.enter_context(_place(server, delay)) for delay in DELAYS}
        openers = {
            f"{far}, {label}": partial(OPENERS[label], "redis://{}:{}/0".format(*address))
            for far, address in places.items()
            for label in LABELS
        }
        passed = stack.enter_context(two_players(openers, HOLD))
        contenders = {each: partial(passed, each, size.passes) for each in openers}
        contenders |= {f"{far}, {PING}": partial(_pings, address, size.passes) for far, address in places.items()}
        rounds = interleave(contenders, size.rounds)
    title = "from the start of a release in one process to the return of acquire in the next, by delay each way"
    report = Report("redis_handoff", title, ["p50", "p99", f"p50 over {PING}"])
    for far in places:
        for label in (PING, *LABELS):
            key = f"{far}, {label}"
            report.rows.append(handoff_row(key, rounds[key], rounds[f"{far}, {PING}"], MEANING[label]))
    report.bounds = [bound({label: rounds[f"{_distance(0.0)}, {label}"] for label in (PING, *LABELS)})]
    return report


def bound(rounds: Mapping[str, Sequence[Sequence[float]]]) -> Bound:
    """Compare a Client with python-redis-lock."""
    medians = {label: list(map(statistics.median, found)) for label, found in rounds.items()}
    over, floor_is = (ratios(medians[label], medians[REDIS_LOCK]).median for label in (THREADS, PING))
    why = (
        f"{PING} alone takes {floor_is:.2f} of that peer's time; the rest is the work of three processes on these cores"
    )
    return Bound(f"{_distance(0.0)}, {THREADS} / {REDIS_LOCK}, p50", over, OVER_REDIS_LOCK, why=why)


def _distance(delay: float) -> str:
    return f"{delay * 1000:g} ms"


@contextmanager
def _place(server: RedisServer, delay: float) -> Generator[tuple[str, int]]:
    """Return the address of a proxy that delays every message."""
    if not delay:
        yield server.address
        return
    with Proxy(server.address) as proxy:
        proxy.delay(up=delay, down=delay)
        yield proxy.address


def _pings(address: tuple[str, int], count: int) -> list[float]:
    waits: list[float] = []
    with RespWire(address) as wire:
        wire.command("PING")
        for _ in range(count):
            started = time.perf_counter()
            wire.command("PING")
            waits.append(time.perf_counter() - started)
    return waits
