"""The cost of one uncontended pair of acquire and release in Redis."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.contenders import NAME
from bench.harness import Bound, Report, Size, duration, ratios, spread
from bench.peers import programs
from bench.peers.programs import RUEIDISLOCK, Program
from bench.redis import contenders, floor
from bench.redis.contenders import ASYNCIO, LOOPS, POTTERY, PROGRAMS, REDIS_LOCK, REDIS_PY, THREADS, UVLOOP
from bench.redis.floor import MINIMAL, OWN, beyond
from bench.timing import Measure, awaiting, blocking, lease_pair, measure_pairs, pair_report, plain_pair
from tenure import Client
from tests.servers import RedisServer

LIMITS = ((OWN, 1.4), (MINIMAL, 1.5), (RUEIDISLOCK, 1.0))
"""The greatest ratio to the time of each of these."""
OVER_REDIS_PY = 3.0
"""The least ratio to redis-py's speed."""


def run(size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders."""
    peers = programs.build_all(PROGRAMS, folder / "peers")
    with ExitStack() as stack:
        server = stack.enter_context(contenders.redis_server(folder))
        started = stack.enter_context(programs.started_all(peers, server.address, 1))
        measures = _open_all(stack, server) | {label: _measure(program) for label, program in started.items()}
        medians = measure_pairs(measures, size.pairs, size.pair_rounds)
    meanings = contenders.MEANINGS | floor.MEANINGS | {peer.label: peer.meaning for peer in peers}
    report = pair_report("redis_pair", medians, meanings, {"over own": OWN, "over least": MINIMAL})
    report.bounds = bounds(medians)
    report.notes = [note for peer in peers for note in peer.notes]
    return report


def bounds(medians: Mapping[str, Sequence[float]]) -> list[Bound]:
    """Compare a Client with its floors, with redis-py, and with rueidislock if it was measured."""
    faster, floor_is = (ratios(medians[REDIS_PY], medians[label]).median for label in (THREADS, OWN))
    why = beyond(OWN, floor_is, OVER_REDIS_PY)
    return [
        *(_at_most(medians, *each) for each in LIMITS if each[0] in medians),
        Bound(f"{REDIS_PY} / {THREADS}", faster, OVER_REDIS_PY, at_least=True, why=why),
    ]


def _at_most(medians: Mapping[str, Sequence[float]], other: str, limit: float) -> Bound:
    over, floor_is = (ratios(medians[label], medians[other]).median for label in (THREADS, OWN))
    own_work = spread(one - least for one, least in zip(medians[THREADS], medians[OWN], strict=True)).median
    why = (
        f"{OWN} takes {floor_is:.2f} times as long as {other}; beside its two requests the client works for "
        f"{duration(own_work)}, in Python, on the lease and the connection"
    )
    return Bound(f"{THREADS} / {other}", over, limit, why=why)


def _measure(program: Program) -> Measure:
    return lambda count: program.pair(count)[0]


def _open_all(stack: ExitStack, server: RedisServer) -> dict[str, Measure]:
    enter, url = stack.enter_context, server.url
    client = enter(contenders.redis_py_client(url))
    return {
        THREADS: blocking(lease_pair(enter(Client(url)).lock(NAME))),
        OWN: blocking(floor.own_pair(enter(floor.bare_socket(server)))),
        MINIMAL: blocking(floor.minimal_pair(enter(floor.bare_socket(server)))),
        REDIS_PY: blocking(plain_pair(contenders.redis_py_lock(client))),
        REDIS_LOCK: blocking(plain_pair(contenders.python_redis_lock(client))),
        POTTERY: blocking(plain_pair(contenders.pottery_lock(client))),
        ASYNCIO: enter(awaiting(url, LOOPS[ASYNCIO])),
        UVLOOP: enter(awaiting(url, LOOPS[UVLOOP])),
    }
