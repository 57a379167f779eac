"""Writers that wait behind a reader for one name in Redis: the cost of a request for the server, and the grants."""

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.contenders import NAME
from bench.harness import Bound, Report, Row, Size
from bench.redis.contenders import ASYNCIO, TEST_TIMEOUT, redis_server
from bench.redis.usage import calls, script_micros
from tenure import AsyncClient, TenureError
from tenure.stores.redis.names import state_key
from tests.servers import RedisServer, wait_until

FEW = 10
TIMES = 3.0
"""The greatest ratio of the cost of a request in the long queue to that in the short one."""


@dataclass(slots=True)
class Waited:
    """The measurements of some waiting writers."""

    waiting: int
    served: int
    scripts: int
    """The number of scripts that ran until all waited."""
    micros: float
    """The time of one script in the server, in microseconds."""


def run(size: Size, folder: Path) -> Report:
    """Let few writers wait behind a reader, then many."""
    counts = (min(FEW, size.tasks_waiting), size.tasks_waiting)
    found = [asyncio.run(_wait(folder / str(place), count)) for place, count in enumerate(counts)]
    report = Report("redis_writers", "writers wait behind a reader", ["waiting", "served", "scripts", "us a script"])
    for each in found:
        cells = [f"{each.waiting:,}", f"{each.served:,}", f"{each.scripts:,.0f}", f"{each.micros:.0f}"]
        report.rows.append(Row(f"{ASYNCIO}, {each.waiting}", cells, "tasks of one tenure.AsyncClient", asdict(each)))
    few, many = found
    report.bounds.append(Bound("writers that were not served", many.waiting - many.served, 0))
    report.bounds.append(Bound("a script in the long queue, over one in the short", many.micros / few.micros, TIMES))
    return report


async def _wait(folder: Path, count: int) -> Waited:
    with redis_server(folder) as server:
        async with (
            AsyncClient(server.url, operation_timeout=TEST_TIMEOUT) as reader,
            AsyncClient(server.url, operation_timeout=TEST_TIMEOUT) as writers,
        ):
            lease = await reader.rwlock(NAME).read().acquire()
            await asyncio.to_thread(server.command, "CONFIG", "RESETSTAT")
            tasks = [asyncio.create_task(_write(writers)) for _ in range(count)]
            await asyncio.to_thread(wait_until, lambda: _queue(server) == count, "all waiting")
            scripts, micros = calls(server)["evalsha"], script_micros(server)
            await lease.release()
            served = sum(await asyncio.gather(*tasks))
    return Waited(count, served, scripts, micros)


def _queue(server: RedisServer) -> int:
    return int(str(server.command("ZCARD", f"{state_key(NAME)}:q")))


async def _write(client: AsyncClient) -> bool:
    try:
        lease = await client.rwlock(NAME, timeout=300.0).write().acquire()
        return (await lease.release()).kept
    except TenureError:
        return False
