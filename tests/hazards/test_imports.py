"""A fork may come while another thread uses a client for the first time, so nothing may be imported then."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.etcd import EtcdServer
from tests.servers.redis import RedisServer
from tests.servers.zookeeper import ZooKeeperServer

USE = """
import asyncio, sys
import holdfast

async def use_async(url):
    client = holdfast.AsyncClient(url)
    before = set(sys.modules)
    async with client.lock("a first use"):
        pass
    await client.close()
    return before

def use(url):
    client = holdfast.Client(url)
    before = set(sys.modules)
    with client.lock("a first use"):
        pass
    client.close()
    return before

runner = asyncio.Runner()
runner.run(asyncio.sleep(0))  # what asyncio imports by itself
before = runner.run(use_async(sys.argv[2])) if sys.argv[1] == "asyncio" else use(sys.argv[2])
print(*sorted(set(sys.modules) - before))
"""


def imported_by_use(runtime: str, url: str) -> str:
    """Return the modules that the first use of a client imports, in a process of its own."""
    command = [sys.executable, "-c", USE, runtime, url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.mark.parametrize("runtime", ["threads", "asyncio"])
class TestFirstUse:
    """The first use of a client imports nothing, or else a child that is forked meanwhile could block for ever."""

    def test_of_a_table_in_memory(self, runtime: str) -> None:
        """It imports nothing."""
        assert imported_by_use(runtime, "memory://") == ""

    def test_of_a_lock_file(self, runtime: str, tmp_path: Path) -> None:
        """It imports nothing, though it makes the file."""
        assert imported_by_use(runtime, f"sqlite://{tmp_path}/locks.db") == ""

    def test_of_a_redis(self, runtime: str, redis_server: RedisServer) -> None:
        """It imports nothing, though it looks up a host."""
        assert imported_by_use(runtime, f"redis://localhost:{redis_server.port}") == ""

    def test_of_an_etcd(self, runtime: str, etcd_server: EtcdServer) -> None:
        """It imports nothing."""
        assert imported_by_use(runtime, etcd_server.url) == ""

    def test_of_a_zookeeper(self, runtime: str, zookeeper_server: ZooKeeperServer) -> None:
        """It imports nothing."""
        assert imported_by_use(runtime, zookeeper_server.url) == ""
