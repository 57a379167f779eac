"""One client that holds many leases in Redis and only renews them: the cost for the client and the server.

Its renewer renews up to 100 leases in one request, after about a third of their ttl.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from bench.contenders import NAME
from bench.harness import Bound, Report, Row, Size
from bench.redis.contenders import ASYNCIO, MEANINGS, TEST_TIMEOUT, THREADS, redis_server
from bench.redis.usage import calls, processor
from tenure import AsyncClient, Client, Outcome
from tests.servers import RedisServer

TTLS = 1.5
"""How long the leases are held, as a multiple of their ttl: about four renewals of each."""
AT_ONCE = 100
SHARE, FEW, TTL = 0.03, 10_000, 30.0
"""The greatest share of a processor for the renewals of so many leases with such a ttl, in seconds."""
MOST = 0.2
"""The greatest share for any number of leases."""

R = TypeVar("R")


@dataclass(slots=True)
class Kept:
    """The cost of the renewals a second, and the number of lost leases."""

    client: float
    """The processor time, in seconds."""
    server: float
    requests: float
    lost: int


class Meter:
    """Measures a period in which this process only renews leases."""

    def __init__(self, server: RedisServer) -> None:
        """Begin the period."""
        self._server = server
        server.command("CONFIG", "RESETSTAT")
        self._before = processor(server)
        self._mine, self._began = time.process_time(), time.monotonic()

    def stop(self) -> Kept:
        """Return the cost, without the number of lost leases, which is not known yet."""
        passed = time.monotonic() - self._began
        mine = time.process_time() - self._mine
        theirs, requests = processor(self._server) - self._before, calls(self._server).get("evalsha", 0)
        return Kept(mine / passed, theirs / passed, requests / passed, 0)


def run(size: Size, folder: Path) -> Report:
    """Renew leases of a Client, then of an AsyncClient."""
    names = [f"{NAME}-{number}" for number in range(size.leases)]
    with _quiet(), redis_server(folder) as server:
        kept = {
            THREADS: _keep(server, names, size.leases_ttl),
            ASYNCIO: asyncio.run(_keep_async(server, names, size.leases_ttl)),
        }
    ttl, seconds = size.leases_ttl, size.leases_ttl * TTLS
    title = f"{size.leases:,} leases of one client, ttl {ttl:g} s, kept for {seconds:g} s"
    report = Report("redis_keep", title, ["client's CPU", "server's CPU", "requests/s", "leases lost"])
    for label, found in kept.items():
        cells = [f"{found.client:.1%}", f"{found.server:.1%}", f"{found.requests:,.0f}", str(found.lost)]
        figures = {"client": found.client, "server": found.server, "requests": found.requests, "lost": found.lost}
        report.rows.append(Row(label, cells, MEANINGS[label], figures))
        why = f"the renewals took {found.client:.0%} of a processor, which a busy machine may not have to spare"
        report.bounds.append(Bound(f"{label}: leases lost", found.lost, 0, why=why))
        share = min(SHARE * size.leases / FEW * TTL / size.leases_ttl, MOST)
        report.bounds.append(Bound(f"{label}: share of a processor", found.client, share))
    return report


@contextmanager
def _quiet() -> Generator[None]:
    """Disable the log of lost leases, which are counted instead."""
    logger = logging.getLogger("tenure")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _keep(server: RedisServer, names: Sequence[str], ttl: float) -> Kept:
    with Client(server.url, operation_timeout=TEST_TIMEOUT) as client:
        leases = [client.lock(name, ttl).acquire() for name in names]
        meter = Meter(server)
        time.sleep(ttl * TTLS)
        kept = meter.stop()
        held = [lease.remaining() > 0 for lease in leases]
        kept.lost = _lost(held, [lease.release() for lease in leases])
    return kept


async def _keep_async(server: RedisServer, names: Sequence[str], ttl: float) -> Kept:
    async with AsyncClient(server.url, operation_timeout=TEST_TIMEOUT) as client:
        leases = await _gather(client.lock(name, ttl).acquire() for name in names)
        meter = Meter(server)
        await asyncio.sleep(ttl * TTLS)
        kept = meter.stop()
        held = [lease.remaining() > 0 for lease in leases]
        kept.lost = _lost(held, await _gather(lease.release() for lease in leases))
    return kept


async def _gather(calls: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Await all, some at a time: ten thousand at once would exceed the timeout of a request."""
    left, results = iter(calls), list[R]()
    while batch := list(islice(left, AT_ONCE)):
        results += await asyncio.gather(*batch)
    return results


def _lost(held: Sequence[bool], outcomes: Sequence[Outcome]) -> int:
    """Return the number of leases that were lost by the client's clock, or unknown to the server at their release."""
    kept = sum(mine and outcome is Outcome.RELEASED for mine, outcome in zip(held, outcomes, strict=True))
    return len(outcomes) - kept
