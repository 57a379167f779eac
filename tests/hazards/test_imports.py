"""A fork may come while another thread uses a client for the first time, so nothing may be imported then."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import (
    Cluster,
    EtcdServer,
    MariaDbServer,
    MemcachedServer,
    NatsServer,
    PostgresServer,
    RedisServer,
    SeaweedServer,
    ZooKeeperServer,
)

USE = """
import asyncio, sys
import tenure

def guard(lease):
    try:
        lease.guard(object())
    except tenure.UsageError as error:
        assert "connection" in str(error) or "no fencing token" in str(error), error

def make_all(client):
    client.lock("a name", reentrant=True)
    client.multilock(["a name"])
    if client._source.capabilities.records:
        client.election("a name")
    if client._source.capabilities.weights:
        client.semaphore("a name", 2)
        client.rwlock("a name")
    if client._source.capabilities.cells:
        client.counter("a name")
        client.limit("a name", 1, 1.0)
        client.stock("a name")
        client.once("a name", key="1")
        client.job("a name")

async def use_async(url):
    client = tenure.AsyncClient(url)
    before = set(sys.modules)
    async with client.lock("a first use"):
        pass
    make_all(client)
    await client.close()
    return before

def use(url):
    client = tenure.Client(url)
    before = set(sys.modules)
    with client.lock("a first use") as lease:
        guard(lease)
    make_all(client)
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

    def test_of_a_folder(self, runtime: str, tmp_path: Path) -> None:
        """It imports nothing."""
        assert imported_by_use(runtime, f"file://{tmp_path}") == ""


@pytest.mark.parametrize("runtime", ["threads", "asyncio"])
class TestFirstUseOfAServer:
    """As above, on stores that load a client of their own."""

    def test_of_an_etcd(self, runtime: str, etcd_server: EtcdServer) -> None:
        """It imports nothing."""
        assert imported_by_use(runtime, etcd_server.url) == ""

    def test_of_a_zookeeper(self, runtime: str, zookeeper_server: ZooKeeperServer) -> None:
        """It imports nothing."""
        assert imported_by_use(runtime, zookeeper_server.url) == ""

    @pytest.mark.parametrize("mode", ["", "?mode=advisory"])
    def test_of_a_postgresql(self, runtime: str, mode: str, postgres_server: PostgresServer) -> None:
        """It imports nothing, in either mode."""
        assert imported_by_use(runtime, postgres_server.url + mode) == ""

    @pytest.mark.parametrize("mode", ["", "?mode=get_lock"])
    def test_of_a_mysql(self, runtime: str, mode: str, mariadb_server: MariaDbServer) -> None:
        """It imports nothing, in either mode."""
        assert imported_by_use(runtime, mariadb_server.url + mode) == ""

    def test_of_a_memcached(self, runtime: str, memcached_server: MemcachedServer) -> None:
        """It imports nothing."""
        assert imported_by_use(runtime, memcached_server.url) == ""

    def test_of_a_nats(self, runtime: str, nats_server: NatsServer) -> None:
        """It imports nothing."""
        assert imported_by_use(runtime, nats_server.url) == ""

    def test_of_a_quorum(self, runtime: str, redis_five: list[RedisServer]) -> None:
        """It imports nothing."""
        nodes = ",".join(f"127.0.0.1:{each.port}" for each in redis_five)
        assert imported_by_use(runtime, f"redlock://{nodes}") == ""

    def test_of_a_cluster(self, runtime: str, redis_cluster: Cluster) -> None:
        """It imports nothing."""
        assert imported_by_use(runtime, redis_cluster.url) == ""

    def test_of_a_bucket(self, runtime: str, seaweed_server: SeaweedServer) -> None:
        """It imports nothing."""
        assert imported_by_use(runtime, seaweed_server.url) == ""

    def test_of_a_dynamodb(self, runtime: str, dynamodb_url: str) -> None:
        """It imports nothing."""
        assert imported_by_use(runtime, dynamodb_url) == ""


def test_asyncio_is_imported_only_where_it_is_used() -> None:
    """A program of threads neither pays for it nor has it in its processes."""
    script = """
import sys, tenure
with tenure.Client("memory://") as client, client.lock("a name"):
    make_all(client)
assert not {"asyncio", "ssl", "tenure.runtimes.aio"} & set(sys.modules)
tenure.AsyncClient("memory://")
assert "tenure.runtimes.aio" in sys.modules
"""
    make_all = USE.partition("def make_all")[1] + USE.partition("def make_all")[2].partition("async def")[0]
    subprocess.run([sys.executable, "-c", make_all + script], check=True, timeout=60)


def test_every_public_name_is_found() -> None:
    """Also those whose modules are imported when they are first used."""
    script = """
import tenure
assert not hasattr(tenure, "no_such_name")
assert set(tenure.__all__) <= set(dir(tenure))
later = {name for names in tenure._LATER.values() for name in names}
assert later <= set(tenure.__all__) and not later & set(vars(tenure))
for name in tenure.__all__:
    assert getattr(tenure, name).__module__.startswith("tenure")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
