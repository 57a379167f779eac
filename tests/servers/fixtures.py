"""Real servers for all tests, each started when the first test asks for it, and stopped at the end.

Tests that run side by side, in processes of pytest-xdist, have servers of their own. A test may kill and pause them:
before the next test that uses them they are mended. Their data stay, so let each test use names of its own.

Servers that agree with each other have work to do even if nobody asks them anything. So ensembles, and what is of their
kind, live for a module, all of whose tests are run by one process.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Protocol

import pytest

from tests.servers import (
    Certificates,
    Cluster,
    EtcdEnsemble,
    EtcdServer,
    RedisServer,
    RedisTlsServer,
    SentinelGroup,
    ZooKeeperEnsemble,
    ZooKeeperServer,
    five_nodes,
)

ACL_LOGIN = ("holdfast", "a-secret")
ACL_RULES = "~* &* +@all"
"""What the user of `redis_acl` may do."""
ADMIN_LOGIN = ("admin", "another-secret")


class Mendable(Protocol):
    """What can be hurt by a test."""

    def mend(self) -> None:
        """Make it whole again."""


_started: dict[str, list[Mendable]] = {}

BUSY = {"zookeeper_server", "zookeeper_ensemble", "etcd_server", "etcd_ensemble", "ensemble"}
"""The fixtures that are servers which are busy by themselves."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the tests of a module that uses such servers run by one process."""
    for item in items:
        if BUSY.intersection(getattr(item, "fixturenames", [])):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Mend the servers that this test uses, if an earlier one has hurt them."""
    used: list[str] = getattr(item, "fixturenames", [])
    for hurt in (each for name in used for each in _started.get(name, [])):
        hurt.mend()


@contextmanager
def known(name: str, hurt: Mendable) -> Generator[None, None, None]:
    """Have what a fixture gives mended while it lives, and not any more then."""
    _started[name] = [hurt]
    try:
        yield
    finally:
        del _started[name]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run one Redis server."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        _started["redis_server"] = [server]
        yield server


@pytest.fixture(scope="session")
def redis_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisTlsServer]:
    """Run one Redis server whose clients speak TLS; `certificates.authority` is the file to trust."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with RedisTlsServer(tmp_path_factory.mktemp("redis-tls"), certificates) as server:
        _started["redis_tls"] = [server]
        yield server


@pytest.fixture(scope="session")
def redis_acl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run one Redis server that lets in an administrator and `ACL_LOGIN`, who may do what `ACL_RULES` say."""
    users = [
        "default off",
        f"{ADMIN_LOGIN[0]} on >{ADMIN_LOGIN[1]} ~* &* +@all",
        f"{ACL_LOGIN[0]} on >{ACL_LOGIN[1]} {ACL_RULES}",
    ]
    with RedisServer(tmp_path_factory.mktemp("redis-acl"), users=users, login=ADMIN_LOGIN) as server:
        _started["redis_acl"] = [server]
        yield server


@pytest.fixture(scope="session")
def redis_sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    """Run a Redis master, two replicas and three sentinels."""
    with SentinelGroup(tmp_path_factory.mktemp("redis-sentinel")) as group:
        _started["redis_sentinel"] = [group]
        yield group


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a Redis Cluster of three masters, each with a replica."""
    with Cluster(tmp_path_factory.mktemp("redis-cluster")) as cluster:
        _started["redis_cluster"] = [cluster]
        yield cluster


@pytest.fixture(scope="session")
def redis_five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """Run five Redis servers that know nothing of each other."""
    with five_nodes(tmp_path_factory.mktemp("redis-five")) as servers:
        _started["redis_five"] = [*servers]
        yield servers


@pytest.fixture(scope="module")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Run one ZooKeeper server."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server, known("zookeeper_server", server):
        yield server


@pytest.fixture(scope="module")
def zookeeper_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Run three ZooKeeper servers, one of which leads."""
    with (
        ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper-ensemble")) as ensemble,
        known("zookeeper_ensemble", ensemble),
    ):
        yield ensemble


@pytest.fixture(scope="module")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Run one etcd server."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server, known("etcd_server", server):
        yield server


@pytest.fixture(scope="module")
def etcd_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdEnsemble]:
    """Run three etcd servers that elect a leader."""
    with EtcdEnsemble(tmp_path_factory.mktemp("etcd-ensemble")) as ensemble, known("etcd_ensemble", ensemble):
        yield ensemble
