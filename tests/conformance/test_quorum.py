"""A quorum of independent nodes keeps every guarantee that it gives at all."""

from pathlib import Path

import pytest

from holdfast.stores.memory import MemoryTable, memory_source
from holdfast.stores.quorum import quorum_source
from holdfast.stores.quorum.store import capabilities_of
from holdfast.stores.redis.deployment import Rules
from holdfast.stores.redis.store import capabilities_of as capabilities_of_redis
from holdfast.stores.store import Capabilities, StoreSource
from holdfast.stores.urls import store_source
from holdfast.testing.conformance import StoreConformance
from holdfast.testing.servers import RedisServer


def voting(node: Capabilities) -> Capabilities:
    """Return what a quorum of such nodes can do."""
    return capabilities_of([StoreSource("node", node, lambda runtime: pytest.fail("not made"))])


class TestQuorumOfTables(StoreConformance):
    """Five tables in memory."""

    capabilities = voting(memory_source(MemoryTable()).capabilities)

    @pytest.fixture
    def source(self) -> StoreSource:
        """Return tables that this test alone uses."""
        return quorum_source([memory_source(MemoryTable(), f"table {number}") for number in range(5)])


class TestQuorumOfFiles(StoreConformance):
    """Three lock files."""

    capabilities = voting(memory_source(MemoryTable()).capabilities)

    @pytest.fixture
    def source(self, tmp_path: Path) -> StoreSource:
        """Return files that this test alone uses."""
        return quorum_source([f"sqlite://{tmp_path}/{number}.db" for number in range(3)])


class TestRedlock(StoreConformance):
    """`redlock://`, five servers."""

    capabilities = voting(capabilities_of_redis(Rules()))

    @pytest.fixture
    def source(self, redis_five: list[RedisServer]) -> StoreSource:
        """Reach them."""
        return store_source("redlock://" + ",".join("{}:{}".format(*server.address) for server in redis_five))
