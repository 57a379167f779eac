"""What is kept at a server: under which keys, and for how long."""

from collections.abc import Generator

import pytest

from tenure import Client, LockTimeout
from tenure.contracts.messages import AcquireRequest, Queued
from tenure.runtimes.threads import drive
from tenure.stores.redis.names import NODE, name_of, state_key
from tenure_testing.conformance.kit import Kit
from tests.faults.scenes import API_FORMS, client_at, play
from tests.redis.servers import keys_of, tidy
from tests.servers import RedisServer

HOUR = 3_600_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer, None, None]:
    """Run a server of this module's own."""
    with tidy(RedisServer(tmp_path_factory.mktemp("redis"))) as running:
        yield running


@pytest.mark.parametrize("guard", ["observed", "strict", "off"])
@pytest.mark.parametrize("form", API_FORMS)
def test_every_key_ends_by_itself(server: RedisServer, guard: str, form: str) -> None:
    """From its first use on, whatever is kept of a name ends some hours after its last use, and the marker in a day."""
    url = f"{server.url}?guard={guard}&max_ttl=3"

    def lives(key: str) -> int:
        left = server.command("PTTL", key)
        assert isinstance(left, int)
        return left

    async def scene(kit: Kit) -> None:
        here, there, hurried = client_at(kit, url), client_at(kit, url), client_at(kit, url)
        await hurried.inspect("name")
        key = state_key(f"{kit.space}:name")
        lease = await here.lock("name", ttl=3).acquire()
        assert 0 < lives(key) < 3 * HOUR
        waiting = kit.start(lambda: there.lock("name", ttl=3).acquire())
        await kit.waiters(here, "name", 1)
        assert 0 < lives(f"{key}:q") < 3 * HOUR
        with pytest.raises(LockTimeout):
            await hurried.lock("name", ttl=3).acquire(timeout=0.02)
        (tombstone,) = [each for each in keys_of(server) if each.startswith(f"{key}:t:")]
        assert 0 < lives(tombstone) <= 30_000
        await lease.release()
        await (await waiting.result()).release()
        assert 0 < lives(key) < 3 * HOUR
        assert lives(f"{key}:q") == -2
        if guard != "off":
            assert HOUR < lives(NODE) < 30 * HOUR

    play(form, url, scene)


def test_a_queue_that_was_lost_ends_by_itself(server: RedisServer) -> None:
    """A waiter that asks again after its queue was deleted makes a new one, which ends as well."""
    with Client(server.url) as client, client.lock("lost"):
        session = client.session()
        until = session.runtime.now() + 5
        request = AcquireRequest("lost", "waiter", "", "owner", 1_000_000, 1_000_000, 4_000_000)
        for _ in range(2):
            assert isinstance(drive(session.store.acquire(request, until)), Queued)
            left = server.command("PTTL", state_key("lost") + ":q")
            assert isinstance(left, int)
            assert 0 < left < 3 * HOUR
            server.command("DEL", state_key("lost") + ":q")


@pytest.mark.parametrize("name", ["plain", "{braces}", "}{", "%7B", "a:b c*?[é", "名"])
def test_a_name_is_found_again_in_its_key(name: str) -> None:
    """Names that hold what means something in a key are told apart, and one slot of a Cluster holds all of a name."""
    key = state_key(name)
    assert name_of(key) == name
    tag = key[key.index("{") + 1 :]
    assert tag.index("}") == len(tag) - 1, "the tag ends with the key"
