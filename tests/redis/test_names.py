"""Listing the names at a server: in pages, so that it takes few requests however many names there were."""

import asyncio
from collections.abc import Generator

import pytest

from tenure import AsyncClient
from tenure.stores.redis.key_scans import PAGE
from tests.redis.servers import tidy
from tests.servers import RedisServer

FREE, HELD = 3 * PAGE, 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer, None, None]:
    """Run a server of this module's own."""
    with tidy(RedisServer(tmp_path_factory.mktemp("redis"))) as running:
        yield running


def scripts_run(server: RedisServer) -> int:
    """Return how many scripts the server has run."""
    stats = server.command("INFO", "commandstats")
    text = stats.decode() if isinstance(stats, bytes) else str(stats)
    return sum(
        int(line.partition("calls=")[2].partition(",")[0])
        for line in text.splitlines()
        if line.startswith("cmdstat_evalsha:")
    )


def test_names_are_looked_at_in_pages(server: RedisServer) -> None:
    """All names in use are listed, and no others, in one request for each page of names that the server remembers."""

    async def main() -> None:
        async with AsyncClient(server.url, operation_timeout=30) as here:
            for number in range(FREE):
                await (await here.lock(f"free {number:04}").acquire()).release()
            held = [await here.lock(f"held {number:04}", ttl=30).acquire() for number in range(HELD)]
            held += [await here.semaphore("shared", 5).acquire(), await here.semaphore("shared", 5).acquire()]
            await here.names()  # the server knows the script now
            before = scripts_run(server)
            names = await here.names()
            requests = scripts_run(server) - before
            assert names == sorted({lease.name for lease in held})
            assert requests <= (FREE + HELD + 1) // PAGE + 1
            for lease in held:
                await lease.release()
            assert await here.names() == []

    asyncio.run(main())
