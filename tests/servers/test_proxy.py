"""The proxy applies the faults of a test to requests and replies, and counts them."""

from collections.abc import Iterator
from functools import partial

import pytest

from tenure.runtimes.clocks import steady
from tests.faults.metronome import Metronome
from tests.servers import Proxy, RedisServer, wait_until
from tests.servers.resp import RespWire

MANY = 40
"""The number of requests that show whether delays overlap."""


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """Put a proxy in front of an empty server."""
    redis_server.command("FLUSHALL")
    with Proxy(redis_server.address) as proxy:
        yield proxy


@pytest.fixture
def wire(proxy: Proxy) -> Iterator[RespWire]:
    """Connect through the proxy, and receive one reply."""
    with RespWire(proxy.address) as wire:
        wire.command("PING")
        yield wire


def has_passed(proxy: Proxy, requests: int) -> bool:
    """Tell whether so many requests have reached the proxy."""
    return proxy.counts.requests == requests


def reached(server: RedisServer, number: int) -> None:
    """Wait until the server has carried out so many requests."""
    wait_until(lambda: server.command("GET", "counter") == str(number), f"{number} requests carried out")


def test_it_passes_on_all_in_order(proxy: Proxy, wire: RespWire) -> None:
    """Without faults the proxy forwards everything in order."""
    for _ in range(100):
        wire.send("INCR", "counter")
    assert [wire.receive() for _ in range(100)] == list(range(1, 101))
    assert wire.command("ECHO", "x" * 1_000_000) == "x" * 1_000_000
    assert (proxy.counts.connections, proxy.counts.swallowed, proxy.counts.lost, proxy.counts.cut) == (1, 0, 0, 0)


def test_delays_overlap_and_keep_the_order(proxy: Proxy, wire: RespWire, metronome: Metronome) -> None:
    """Delayed chunks are under way at the same time, and keep their order."""
    proxy.delay(up=0.05, down=0.05)
    began = steady()
    wire.command("PING")
    one = metronome.elapsed(began)
    began = steady()
    for number in range(MANY):
        wire.send("ECHO", number)
        wait_until(partial(has_passed, proxy, number + 3), "a chunk of its own")
    assert [wire.receive() for _ in range(MANY)] == [str(number) for number in range(MANY)]
    assert metronome.elapsed(began) < MANY * one / 2


def test_a_shorter_delay_overtakes_nothing(proxy: Proxy, wire: RespWire) -> None:
    """A chunk that is under way arrives before later ones, even if the delay becomes shorter."""
    proxy.delay(up=0.2)
    wire.send("INCR", "counter")
    wait_until(lambda: proxy.counts.requests == 2, "the first on its way")
    proxy.delay()
    wire.send("SET", "counter", "second")
    assert [wire.receive(), wire.receive()] == [1, "OK"]


@pytest.mark.parametrize("ways", [{"up"}, {"down"}, {"up", "down"}])
def test_a_partition_holds_back_and_then_delivers(
    redis_server: RedisServer, proxy: Proxy, wire: RespWire, ways: set[str]
) -> None:
    """A partition holds all chunks of a direction, and delivers them when it is over."""
    proxy.blackhole(up="up" in ways, down="down" in ways)
    wire.send("INCR", "counter")
    wait_until(lambda: proxy.counts.requests == 2, "the request to reach the proxy")
    if "up" in ways:
        assert redis_server.command("GET", "counter") is None
    else:
        wait_until(lambda: proxy.counts.replies == 2, "the reply to reach the proxy")
    proxy.heal()
    assert wire.receive() == 1


def test_a_swallowed_reply_breaks_the_connection_of_what_was_carried_out(
    redis_server: RedisServer, proxy: Proxy, wire: RespWire
) -> None:
    """The connection breaks when the server has carried out the request; only so many requests are hit."""
    proxy.swallow(1)
    with pytest.raises(ConnectionResetError):
        wire.command("INCR", "counter")
    assert redis_server.command("GET", "counter") == "1"
    with RespWire(proxy.address) as next_wire:
        assert next_wire.command("INCR", "counter") == 2
    assert (proxy.counts.swallowed, proxy.counts.cut) == (1, 1)


def test_a_swallowed_reply_may_leave_silence(redis_server: RedisServer, proxy: Proxy) -> None:
    """Without `cut` the connection stays open, and dead, until `cut()`."""
    proxy.swallow(cut=False)
    with RespWire(proxy.address, timeout=0.1) as wire:
        wire.send("INCR", "counter")
        reached(redis_server, 1)
        with pytest.raises(TimeoutError):
            wire.receive()
    with RespWire(proxy.address) as wire:
        proxy.swallow(cut=False)
        wire.send("INCR", "counter")
        reached(redis_server, 2)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            wire.receive()


def test_a_lost_request_is_never_carried_out(redis_server: RedisServer, proxy: Proxy, wire: RespWire) -> None:
    """The server never carries out a lost request; for the client it looks like a swallowed reply."""
    proxy.lose(1)
    with pytest.raises(ConnectionResetError):
        wire.command("INCR", "counter")
    assert redis_server.command("GET", "counter") is None
    assert (proxy.counts.swallowed, proxy.counts.lost) == (0, 1)


def test_only_some_requests_are_hit(proxy: Proxy, wire: RespWire) -> None:
    """A fault hits only requests that contain the given bytes."""
    proxy.swallow(1, containing=b"INCR")
    assert wire.command("PING") == "PONG"
    with pytest.raises(ConnectionResetError):
        wire.command("INCR", "counter")


def test_a_handshake_is_spared(redis_server: RedisServer) -> None:
    """The first chunks of each connection pass, so that a client completes its handshake."""
    with Proxy(redis_server.address, spared=2) as proxy:
        proxy.swallow(None)
        for _ in range(2):
            with RespWire(proxy.address) as wire:
                assert [wire.command("PING"), wire.command("PING")] == ["PONG", "PONG"]
                with pytest.raises(ConnectionResetError):
                    wire.command("PING")
        assert proxy.counts.swallowed == 2


def fates(server: RedisServer, seed: int) -> list[bool]:
    """Return which of fifty requests get a reply when some are swallowed at random."""
    answered: list[bool] = []
    with Proxy(server.address, seed=seed) as proxy:
        proxy.swallow(None, probability=0.3)
        for _ in range(50):
            with RespWire(proxy.address) as wire:
                try:
                    answered.append(wire.command("PING") == "PONG")
                except ConnectionResetError:
                    answered.append(False)
    return answered


def test_chance_is_repeatable(redis_server: RedisServer) -> None:
    """The same seed makes the same fates."""
    first = fates(redis_server, seed=1)
    assert first == fates(redis_server, seed=1)
    assert first != fates(redis_server, seed=2)
    assert 0 < first.count(False) < 50


def test_a_slow_request_that_is_swallowed_is_still_carried_out(
    redis_server: RedisServer, proxy: Proxy, wire: RespWire
) -> None:
    """The reply to an earlier request does not trigger the fate of a later one."""
    proxy.delay(up=0.05)
    wire.send("INCR", "counter")
    wait_until(lambda: proxy.counts.requests == 2, "the first on its way")
    proxy.swallow()
    wire.send("INCR", "counter")
    assert wire.receive() == 1
    with pytest.raises(ConnectionResetError):
        wire.receive()
    assert redis_server.command("GET", "counter") == "2"


def test_all_connections_can_be_cut(proxy: Proxy, wire: RespWire) -> None:
    """After a cut clients see a reset, and can connect again."""
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        wire.receive()
    with RespWire(proxy.address) as wire_again:
        assert wire_again.command("PING") == "PONG"
    assert proxy.counts.cut == 1


def test_new_connections_can_be_refused(proxy: Proxy, wire: RespWire) -> None:
    """The proxy refuses new connections while open ones continue."""
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        RespWire(proxy.address)
    assert wire.command("PING") == "PONG"
    proxy.accept()
    with RespWire(proxy.address) as wire_again:
        assert wire_again.command("PING") == "PONG"


def test_both_sides_learn_of_an_orderly_end(redis_server: RedisServer, proxy: Proxy) -> None:
    """A connection that the client closes is closed at the server, and vice versa."""
    alone = len(str(redis_server.command("CLIENT", "LIST")).splitlines())
    with RespWire(proxy.address) as wire:
        wire.command("PING")
        assert len(str(redis_server.command("CLIENT", "LIST")).splitlines()) == alone + 1
    wait_until(
        lambda: len(str(redis_server.command("CLIENT", "LIST")).splitlines()) == alone, "no more than one client"
    )
    with RespWire(proxy.address) as wire:
        wire.command("PING")
        redis_server.kill()
        with pytest.raises(ConnectionResetError):
            wire.receive()


def test_it_can_be_stopped_at_any_time(redis_server: RedisServer) -> None:
    """A proxy that is stopped with open, held and slow connections leaves no thread and no socket."""
    with Proxy(redis_server.address) as proxy:
        proxy.delay(up=10, down=10)
        with RespWire(proxy.address) as wire:
            wire.send("PING")
            wait_until(lambda: proxy.counts.requests == 1, "a request on its way")
            proxy.blackhole()
            proxy.stop()
            with pytest.raises(ConnectionResetError):
                wire.receive()
        proxy.start()
