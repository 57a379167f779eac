"""Real servers for all tests. Each is started for the first test that uses it, and stopped at the end.

A test may kill and pause a server; the fixtures repair it before the next test that uses it. The data stay, so each
test must use names of its own.

A single Redis server starts at once, and a server of SQL in a fraction of a second, so each process of pytest-xdist has
its own. Servers that start slowly, or that are busy even without requests, are started once: one process runs all tests
that use them.
"""

import os
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from tests.servers import (
    Certificates,
    Cluster,
    DynamoServer,
    EtcdEnsemble,
    EtcdServer,
    MariaDbServer,
    MemcachedServer,
    NatsCluster,
    NatsServer,
    PgBouncer,
    PostgresServer,
    RedisServer,
    RedisTlsServer,
    SeaweedServer,
    SentinelGroup,
    ZooKeeperEnsemble,
    ZooKeeperServer,
    five_nodes,
    templates,
)
from tests.servers.dynamodb import CREDENTIALS

ACL_LOGIN = ("tenure", "a-secret")
ACL_RULES = "~* &* +@all"
"""The rights of the user of `redis_acl`."""
ADMIN_LOGIN = ("admin", "another-secret")


class Mendable(Protocol):
    """A server or a group of servers that a test may damage."""

    def mend(self) -> None:
        """Repair it."""


_started: dict[str, list[Mendable]] = {}

GROUPS = {
    "redis_sentinel": "redis groups",
    "redis_cluster": "redis groups",
    "zookeeper_server": "zookeeper",
    "zookeeper_ensemble": "zookeeper ensemble",
    "etcd_server": "etcd",
    "etcd_ensemble": "etcd ensemble",
    "nats_cluster": "nats cluster",
    "seaweed_server": "seaweed",
    "dynamodb_server": "dynamodb",
    "dynamodb_url": "dynamodb",
}
"""The fixtures that are started once, and the group of tests that one process runs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests that use the same such servers into one process, and run them first, as they take the longest."""
    for item in items:
        if group := _group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: not _group_of(item))


def _group_of(item: pytest.Item) -> str:
    used = [*getattr(item, "fixturenames", [])]
    if "ensemble" in used:
        used.append(f"{getattr(item, 'callspec').params['ensemble']}_ensemble")  # noqa: B009 - of pytest.Function alone
    return next((group for fixture, group in GROUPS.items() if fixture in used), "")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Repair the servers that this test uses, if an earlier test has damaged them."""
    used: list[str] = getattr(item, "fixturenames", [])
    for hurt in (each for name in used for each in _started.get(name, [])):
        hurt.mend()


@pytest.fixture(scope="session", autouse=True)
def shared_templates(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let all processes of the test run share the templates of database servers."""
    own = tmp_path_factory.getbasetemp()
    templates.share(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run one Redis server."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        _started["redis_server"] = [server]
        yield server


@pytest.fixture(scope="session")
def redis_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisTlsServer]:
    """Run one Redis server whose clients use TLS. `certificates.authority` is the file to trust."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with RedisTlsServer(tmp_path_factory.mktemp("redis-tls"), certificates) as server:
        _started["redis_tls"] = [server]
        yield server


@pytest.fixture(scope="session")
def redis_acl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run one Redis server that accepts an administrator, and `ACL_LOGIN` with the rights of `ACL_RULES`."""
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
    """Run five independent Redis servers."""
    with five_nodes(tmp_path_factory.mktemp("redis-five")) as servers:
        _started["redis_five"] = [*servers]
        yield servers


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Run one ZooKeeper server."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        _started["zookeeper_server"] = [server]
        yield server


@pytest.fixture(scope="session")
def zookeeper_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Run three ZooKeeper servers, one of which leads."""
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper-ensemble")) as ensemble:
        _started["zookeeper_ensemble"] = [ensemble]
        yield ensemble


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Run one etcd server."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        _started["etcd_server"] = [server]
        yield server


@pytest.fixture(scope="session")
def etcd_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdEnsemble]:
    """Run three etcd servers that elect a leader."""
    with EtcdEnsemble(tmp_path_factory.mktemp("etcd-ensemble")) as ensemble:
        _started["etcd_ensemble"] = [ensemble]
        yield ensemble


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Run one PostgreSQL server."""
    with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
        _started["postgres_server"] = [server]
        yield server


@pytest.fixture(scope="session")
def pgbouncer(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """Run a PgBouncer in front of `postgres_server`: each transaction gets one of two connections."""
    with PgBouncer(tmp_path_factory.mktemp("pgbouncer"), postgres_server) as server:
        _started["pgbouncer"] = [server]
        yield server


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    """Run one MariaDB server."""
    with MariaDbServer(tmp_path_factory.mktemp("mariadb")) as server:
        _started["mariadb_server"] = [server]
        yield server


@pytest.fixture(scope="session")
def memcached_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemcachedServer]:
    """Run one memcached server."""
    with MemcachedServer(tmp_path_factory.mktemp("memcached")) as server:
        _started["memcached_server"] = [server]
        yield server


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Run one NATS server with JetStream."""
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        _started["nats_server"] = [server]
        yield server


@pytest.fixture(scope="session")
def seaweed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """Run one SeaweedFS server, with a bucket of S3."""
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as server:
        _started["seaweed_server"] = [server]
        yield server


@pytest.fixture(scope="session")
def dynamodb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoServer]:
    """Run one emulator of DynamoDB with a table, and have its credentials in the environment."""
    with DynamoServer(tmp_path_factory.mktemp("dynamodb")) as server, pytest.MonkeyPatch.context() as environment:
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        _started["dynamodb_server"] = _started["dynamodb_url"] = [server]
        yield server


@pytest.fixture(scope="session")
def dynamodb_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of the table of DynamoDB that a variable names, or else of the emulator's."""
    server: Callable[[], DynamoServer] = lambda: request.getfixturevalue("dynamodb_server")  # noqa: E731
    return os.environ.get("TENURE_DYNAMODB_URL") or server().url


@pytest.fixture(scope="session")
def nats_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    """Run three NATS servers that keep each bucket three times."""
    with NatsCluster(tmp_path_factory.mktemp("nats-cluster")) as cluster:
        _started["nats_cluster"] = [cluster]
        yield cluster
