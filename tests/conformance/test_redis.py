"""One Redis server keeps every guarantee, over every connection to it."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tenure.contracts.store import StoreSource
from tenure.stores.redis.beside_redis_py import capabilities_beside
from tenure.stores.redis.deployment import Rules
from tenure.stores.redis.store import capabilities_of
from tenure.stores.urls import store_source
from tenure_testing.conformance import CHECKS, StoreConformance
from tests.conformance.transport import TRANSPORT
from tests.redis.servers import PASSWORD, USER, ValkeyServer, assert_mortal, documented_user, tidy
from tests.servers import RedisServer, RedisTlsServer, wait_until


@pytest.fixture(scope="module", autouse=True)
def nothing_immortal(redis_server: RedisServer, redis_tls: RedisTlsServer) -> Iterator[None]:
    """After all tests, check for remaining keys on the servers that others use too."""
    yield
    assert_mortal(redis_server, redis_tls)


class OtherWay(StoreConformance):
    """The checks for another connection to a server, with the default rules."""

    capabilities = capabilities_of(Rules())
    checks = TRANSPORT


class TestServer(StoreConformance):
    """`redis://`."""

    capabilities = capabilities_of(Rules())

    @pytest.fixture
    def source(self, redis_server: RedisServer) -> StoreSource:
        """Reach it by TCP."""
        return store_source(redis_server.url)


class TestBesideRedisPy(StoreConformance):
    """`?also=redis-py`."""

    capabilities = capabilities_beside(capabilities_of(Rules()))
    checks = tuple(each for each in CHECKS if each.name != "release_grants_the_first_waiter")
    """All but the one that renews by a push alone, which has no key yet: a client confirms it first."""

    @pytest.fixture
    def source(self, redis_server: RedisServer) -> StoreSource:
        """Reach it by TCP."""
        return store_source(f"{redis_server.url}?also=redis-py")


class TestTls(OtherWay):
    """`rediss://`."""

    @pytest.fixture
    def source(self, redis_tls: RedisTlsServer, monkeypatch: pytest.MonkeyPatch) -> StoreSource:
        """Reach it by TLS. Each connection reads all authorities that the machine trusts, so it trusts only one."""
        authority = str(redis_tls.certificates.authority)
        monkeypatch.setenv("SSL_CERT_FILE", authority)
        return store_source(f"{redis_tls.url}?ssl_ca_certs={authority}")


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run a server that listens on a Unix socket as well."""
    folder = tmp_path_factory.mktemp("redis")
    with tidy(RedisServer(folder, options=("--unixsocket", str(folder / "socket")))):
        yield folder / "socket"


class TestSocket(OtherWay):
    """`unix://`."""

    @pytest.fixture
    def source(self, socket: Path) -> StoreSource:
        """Reach it by its socket."""
        return store_source(f"unix://{socket}")


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a server with the documented user; check at the end that no command was refused."""
    with tidy(RedisServer(tmp_path_factory.mktemp("redis"))) as server:
        server.command(*documented_user())
        yield server
        refused = server.command("ACL", "LOG")
        assert isinstance(refused, list)
        assert all("client|setinfo" in each for each in refused if isinstance(each, list))


class TestUser(OtherWay):
    """A user who may run the commands that docs/redis.md lists, and no others."""

    @pytest.fixture
    def source(self, strict_server: RedisServer) -> StoreSource:
        """Reach it as that user."""
        return store_source(strict_server.url_for(USER, quote(PASSWORD, safe="")))


@pytest.fixture(scope="module")
def replicated_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a server and its replica."""
    with tidy(RedisServer(tmp_path_factory.mktemp("redis"))) as master:
        follow = ("--replicaof", *map(str, master.address))
        with RedisServer(tmp_path_factory.mktemp("replica"), options=follow) as replica:
            wait_until(lambda: replica.follows(master), "a replica that follows")
            yield master


class TestReplicated(StoreConformance):
    """`redis://...?replicas=1`: a grant counts once a replica has it."""

    capabilities = capabilities_of(Rules(replicas=1))

    @pytest.fixture
    def source(self, replicated_server: RedisServer) -> StoreSource:
        """Reach the master."""
        return store_source(f"{replicated_server.url}?replicas=1")


@pytest.fixture(scope="module")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Run a Valkey server."""
    with tidy(ValkeyServer(tmp_path_factory.mktemp("valkey"))) as server:
        yield server


class TestValkey(OtherWay):
    """`valkey://`."""

    @pytest.fixture
    def source(self, valkey_server: RedisServer) -> StoreSource:
        """Reach it by TCP."""
        return store_source(valkey_server.url.replace("redis", "valkey"))
