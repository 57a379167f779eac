"""A listing of names comes in pages: each takes a bounded number of requests, and together they list each name once."""

import asyncio
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tenure import AsyncClient, Client, StoreUnavailable
from tenure.contracts.messages import Page
from tests.servers import Cluster, EtcdServer, RedisServer, ZooKeeperServer

NAMES = sorted([*(f"{number:02}" for number in range(20)), "a/b", "a%2Fb", "a", "a0", "ä", "a\0b"])
"""Enough for several pages, in an order that is not that of their keys."""

PAGES = (
    patch("tenure.stores.sqlite.store.PAGE", 3),
    patch("tenure.stores.etcd.reads.PAGE", 3),
    patch("tenure.stores.zookeeper.reading.PAGE", 3),
    patch("tenure.stores.redis.servers.SCANNED", "3"),
    patch("tenure.stores.redis.key_scans.PAGE", 2),
)


@pytest.fixture(autouse=True)
def small_pages() -> Iterator[None]:
    """Make the pages so small that a few names need many of them."""
    for page in PAGES:
        page.start()
    yield
    for page in PAGES:
        page.stop()


class Pages:
    """A hook that counts the pages that a client requests, and can lose the answer to one of them."""

    def __init__(self, client: Client | AsyncClient, lost: int = -1) -> None:
        """Lose the answer to the page with this number."""
        self.asked = 0
        store = client.session().store
        names = store.names

        async def listing(prefix: str, until: float, rest: object = None) -> Page:
            self.asked += 1
            if self.asked == lost:
                raise StoreUnavailable("it is lost")
            return await names(prefix, until, rest)

        store.names = listing  # type: ignore[method-assign]


def list_in_pages(url: str, namespace: str) -> int:
    """Hold names, and list them all in both forms of the API, although an answer is lost; return the page count."""
    with Client(url, namespace=namespace) as client, Client(url, namespace=f"{namespace}-other") as other:
        leases = [client.lock(name, ttl=30).acquire() for name in NAMES]
        kept = [client.semaphore("shared", 5, ttl=30).acquire() for _ in range(2)]
        kept.append(other.lock("other", ttl=30).acquire())
        client.lock("free", ttl=30).acquire().release()
        pages = Pages(client, lost=2)
        assert sorted(client.iter_names("[ab]*")) == client.names("[ab]*") == [each for each in NAMES if each[0] == "a"]
        assert client.names("a*b") == sorted(["a/b", "a%2Fb", "a\0b"])
        assert next(client.iter_names("shared")) == "shared"
        assert client.names() == [*NAMES[:-1], "shared", NAMES[-1]]
        asyncio.run(list_side_by_side(url, namespace))
        for lease in leases:
            lease.release()
        assert client.names() == ["shared"]
        for lease in kept:
            lease.release()
        return pages.asked


async def list_side_by_side(url: str, namespace: str) -> None:
    """List all names twice at the same time."""
    async with AsyncClient(url, namespace=namespace) as client:
        assert sorted([each async for each in client.iter_names("1?")]) == [f"1{digit}" for digit in range(10)]
        one, two = await asyncio.gather(client.names(), client.names())
        assert one == two == [*NAMES[:-1], "shared", NAMES[-1]]


def test_a_lock_file_lists_in_pages(tmp_path: Path) -> None:
    """An SQLite file."""
    assert list_in_pages(f"sqlite:///{tmp_path}/locks.db", "file") > len(NAMES) // 3


def test_redis_lists_in_pages(redis_server: RedisServer, name: str) -> None:
    """One server."""
    assert list_in_pages(redis_server.url, name) > len(NAMES) // 10


def test_a_cluster_lists_in_pages(redis_cluster: Cluster, name: str) -> None:
    """All masters of a cluster."""
    assert list_in_pages(redis_cluster.url, name) > len(NAMES) // 10


@pytest.fixture
def name(tmp_path: Path) -> str:
    """Return a name that no other test uses."""
    return tmp_path.name


def test_a_quorum_lists_in_pages(redis_five: list[RedisServer], name: str) -> None:
    """Every node lists in pages; a name that one of them does not know is listed all the same."""
    url = "redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in redis_five) + "?guard=off"
    with Client(url, namespace=name) as client:
        leases = [client.lock(each, ttl=30).acquire() for each in NAMES]
        assert client.names() == NAMES
        for lease in leases:
            lease.release()
        assert client.names() == []


def test_zookeeper_lists_in_pages(zookeeper_server: ZooKeeperServer, name: str) -> None:
    """One server."""
    assert list_in_pages(zookeeper_server.url, name) > len(NAMES) // 3


def test_etcd_lists_in_pages(etcd_server: EtcdServer, name: str) -> None:
    """One server, which also has keys of others that are not text."""
    for tail in (b"x", b"\xff", b"%61/t", "é/t".encode(), b"\xff/t\xff", b"01/tx", b"zz/t"):
        key = f"listing/n/{name}-".encode() + tail
        etcd_server.command("kv/put", key=b64encode(key).decode(), value="")
    assert list_in_pages(f"{etcd_server.url}/listing", name) > len(NAMES) // 3
