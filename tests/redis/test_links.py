"""A client has one link to each server, whoever needs it first."""

from urllib.parse import urlsplit

import pytest

from tenure.contracts.runtime import Runtime
from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores.redis.deployment import RedisDeployment
from tenure.stores.redis.links.link import RedisAddress, RedisCallbacks, RedisLink
from tenure.stores.redis.options import deployment_of
from tenure.stores.redis.store import RedisStore


def test_threads_that_need_a_node_at_once_share_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would ever close a second one, nor end the thread that listens on it."""
    node = RedisAddress("127.0.0.1", 1)
    store = RedisStore(deployment_of(urlsplit("redis+cluster://127.0.0.1:1")), ThreadsRuntime())
    make = RedisDeployment.link
    others: list[RedisLink] = []

    def while_another_does_so_too(
        self: RedisDeployment, runtime: Runtime, address: RedisAddress, callbacks: RedisCallbacks
    ) -> RedisLink:
        if not others:
            others.append(make(self, runtime, address, callbacks))
            others[0] = store._servers.link(address)
        return make(self, runtime, address, callbacks)

    monkeypatch.setattr(RedisDeployment, "link", while_another_does_so_too)
    assert store._servers.link(node) is others[0]
    assert store._servers.link(node) is others[0]
