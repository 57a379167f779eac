"""How long after a release in one process a lock in Redis is held in another, near the server and far from it.

A wake-up cannot be sooner than a message takes to the server and back out of it, as a PING does. So PINGs are measured
beside, through the same proxy: its timers are coarse, and what it adds is more than it was told to.
"""

import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.handoff import handoff_row, two_players
from bench.harness import Report, Size, interleave
from bench.redis.contenders import ASYNCIO, MEANINGS, OPENERS, REDIS_LOCK, REDIS_PY, THREADS, redis_server
from tests.servers import Proxy, RedisServer
from tests.servers.resp import RespWire

LABELS = (THREADS, ASYNCIO, REDIS_PY, REDIS_LOCK)
PING = "PING"
MEANING = MEANINGS | {PING: "floor: one PING and its reply, on an idle connection"}
DELAYS = (0.0, 0.001, 0.004)
"""How long a message is delayed, each way, in seconds; without delay there is no proxy either."""
HOLD = (0.02, 0.12)
"""As for files; all of the 100 ms that redis-py sleeps between polls, after the time that a slow request takes."""


def run(size: Size, folder: Path) -> Report:
    """Pass the lock of each contender between two processes, from every distance."""
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
    return report


def _distance(delay: float) -> str:
    return f"{delay * 1000:g} ms"


@contextmanager
def _place(server: RedisServer, delay: float) -> Generator[tuple[str, int]]:
    """Return where to connect so that every message is delayed."""
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
