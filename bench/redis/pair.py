"""The cost of one uncontended pair of acquire and release in Redis."""

from contextlib import ExitStack
from pathlib import Path

from bench.contenders import NAME
from bench.harness import Bound, Report, Size, duration, ratios, spread
from bench.redis import contenders, floor
from bench.redis.contenders import ASYNCIO, LOOPS, POTTERY, REDIS_LOCK, REDIS_PY, THREADS, UVLOOP
from bench.redis.floor import MINIMAL, OWN, beyond
from bench.timing import Measure, awaiting, blocking, lease_pair, measure_pairs, pair_report, plain_pair
from holdfast import Client
from tests.servers import RedisServer

OVER_OWN = 1.4
OVER_REDIS_PY = 2.5


def run(size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders."""
    with ExitStack() as stack:
        server = stack.enter_context(contenders.redis_server(folder))
        medians = measure_pairs(_open_all(stack, server), size.pairs, size.pair_rounds)
    meanings = contenders.MEANINGS | floor.MEANINGS
    report = pair_report("redis_pair", medians, meanings, {"over own": OWN, "over least": MINIMAL})
    over_own, over_least = (ratios(medians[THREADS], medians[bare]).median for bare in (OWN, MINIMAL))
    faster, floor_is = (ratios(medians[REDIS_PY], medians[label]).median for label in (THREADS, OWN))
    own_work = spread(one - other for one, other in zip(medians[THREADS], medians[OWN], strict=True)).median
    why = (
        f"beside the two requests the client works for {duration(own_work)}, in Python, on the lease and the connection"
    )
    report.bounds = [
        Bound(f"{THREADS} / {OWN} (and {over_least:.3g} of the least)", over_own, OVER_OWN, why=why),
        Bound(
            f"{REDIS_PY} / {THREADS}", faster, OVER_REDIS_PY, at_least=True, why=beyond(OWN, floor_is, OVER_REDIS_PY)
        ),
    ]
    return report


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
