"""The listener of a link hears every message it may hear, and says so when it may have missed one."""

import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tenure import Client
from tenure.errors import StoreUnavailable
from tenure.runtimes.threads import complete
from tenure.stores.redis.links import listener
from tenure.stores.redis.links.link import RedisAccess, RedisAddress, RedisCallbacks, ReplyError
from tenure.stores.redis.links.listener import RedisListener
from tenure.stores.redis.links.threads import RedisThreadLink
from tenure.transport import listener_thread
from tests.redis.threaded import TEST_TIMEOUT, Driven, at_once, linked
from tests.servers import Cluster, Proxy, RedisServer, wait_until


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """Put a proxy in front of the server."""
    with Proxy(redis_server.address) as running:
        yield running


def listeners(server: RedisServer, channel: str) -> int:
    """Count who has subscribed to a channel."""
    reply = server.command("PUBSUB", "NUMSUB", channel)
    assert isinstance(reply, list)
    return int(str(reply[1]))


def test_what_is_published_is_heard(redis_server: RedisServer) -> None:
    """A message that is published after listen() has returned is heard."""
    with linked(redis_server) as driven:
        for number in range(20):
            driven.listen(f"heard-{number % 4}")
            redis_server.command("PUBLISH", f"heard-{number % 4}", number)
        assert [driven.ear.push() for _ in range(20)] == [b"%d" % number for number in range(20)]
        assert listeners(redis_server, "heard-0") == 1


def test_a_client_that_was_interrupted_while_it_opened_listens_afterwards(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next acquisition opens it again, at the same server: that is no move, after which it would stop to listen."""
    listen, channels = RedisThreadLink.listen, list[str]()

    async def interrupted_once(self: RedisThreadLink, channel: str, until: float) -> None:
        channels.append(channel)
        if len(channels) == 1:
            raise KeyboardInterrupt
        await listen(self, channel, until)

    monkeypatch.setattr(RedisThreadLink, "listen", interrupted_once)
    with Client(redis_server.url) as client:
        lock = client.lock("interrupted", timeout=TEST_TIMEOUT)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        lock.acquire().release()
        store: Any = client.session().store
        link = store._links[store._channels.home]
        complete(link.listen("another", client.session().runtime.now() + TEST_TIMEOUT))  # sends what is not sent yet
        assert listeners(redis_server, channels[1]) == 1


def test_what_is_ignored_is_not_heard(redis_server: RedisServer) -> None:
    """A subscription can be given up, and taken again at once."""
    with linked(redis_server) as driven:
        driven.listen("kept")
        driven.listen("ignored")
        driven.ignore("ignored")
        driven.ignore("never heard of")
        wait_until(lambda: listeners(redis_server, "ignored") == 0, "a subscription that ends")
        redis_server.command("PUBLISH", "ignored", "no")
        redis_server.command("PUBLISH", "kept", "yes")
        assert driven.ear.push() == b"yes"
        for _ in range(20):
            driven.listen("ignored")
            driven.ignore("ignored")
        driven.listen("ignored")
        assert listeners(redis_server, "ignored") == 1


def test_many_threads_listen(redis_server: RedisServer) -> None:
    """Threads that listen side by side, to the same channels too, are all told when they are heard."""
    with linked(redis_server) as driven:

        def work(number: int) -> None:
            for each in range(20):
                driven.listen(f"many-{each}")
                driven.listen(f"many-{number}-{each}")
                assert listeners(redis_server, f"many-{number}-{each}") == 1

        at_once([partial(work, number) for number in range(8)])
        assert listeners(redis_server, "many-3") == 1


def test_a_lost_connection_is_made_again(redis_server: RedisServer) -> None:
    """When the connection is lost, everything is subscribed again before the gap is told; then messages come."""
    channels = [f"again-{number}" for number in range(5)]
    with linked(redis_server) as driven:
        for channel in channels:
            driven.listen(channel)
        for _ in range(3):
            redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
            driven.ear.gap()
            for channel in channels:
                assert redis_server.command("PUBLISH", channel, channel) == 1
                assert driven.ear.push() == channel.encode()
        assert driven.ear.gaps.empty()


def test_a_restart_of_the_server_is_a_gap(tmp_path: Path) -> None:
    """A server that was away for a while is listened to again; listen() waits for that."""
    with RedisServer(tmp_path) as server, linked(server) as driven:
        driven.listen("restart")
        server.kill()
        wait_until(lambda: driven.listener()._failures > 0, "a connection that could not be made")
        with pytest.raises(StoreUnavailable):
            driven.listen("restart")
        server.start()
        driven.ear.gap()
        driven.listen("restart")
        server.command("PUBLISH", "restart", "hello")
        assert driven.ear.push() == b"hello"


def test_a_silent_peer_is_noticed(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection on which nothing comes any more, and which nobody closes, is given up for another."""
    monkeypatch.setattr(RedisListener, "quiet", 0.05)
    with linked(proxy.address, access=RedisAccess(connect_timeout=0.2)) as driven:
        driven.listen("half-open")
        first = driven.listener()._connection
        proxy.blackhole()
        wait_until(lambda: driven.listener()._connection is not first, "a connection that is given up")
        monkeypatch.setattr(RedisListener, "quiet", TEST_TIMEOUT)
        proxy.heal()
        driven.ear.gap()


def test_a_peer_without_messages_is_kept(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has nothing to say answers when it is asked whether it is there: with and without channels."""
    monkeypatch.setattr(RedisListener, "quiet", TEST_TIMEOUT)
    with linked(redis_server) as driven:
        driven.listen("quiet")
        first = driven.listener()._connection
        probes = count_calls(driven.listener()._subscriptions.probe)
        driven.listener()._subscriptions.probe = probes

        def let_a_silence_pass() -> None:
            before = probes.calls
            driven.listener()._heard -= TEST_TIMEOUT
            driven.listener()._wakeup_pipe.wake()
            wait_until(lambda: probes.calls > before and not driven.listener()._probed, "a ping and its answer")

        for _ in range(3):
            let_a_silence_pass()
        driven.ignore("quiet")
        wait_until(lambda: listeners(redis_server, "quiet") == 0, "a subscription that ends")
        for _ in range(3):
            let_a_silence_pass()
        assert driven.listener()._connection is first
        assert driven.ear.gaps.empty()


class count_calls:  # noqa: N801 - it is used as a function
    """A function that counts its calls."""

    def __init__(self, function: Callable[[], bytes]) -> None:
        self.calls = 0
        self._function = function

    def __call__(self) -> bytes:
        """Count, and call."""
        self.calls += 1
        return self._function()


def test_nobody_is_asked_in_a_loop(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts to connect are further and further apart, and not the same for all clients."""
    pauses: list[float] = []
    enough = threading.Event()
    pause = RedisListener._pause

    def note(self: RedisListener, seconds: float | None) -> None:
        if seconds is not None:
            pauses.append(seconds)
        if len(pauses) < 10:
            return
        enough.set()
        pause(self, seconds)

    with Proxy(redis_server.address) as proxy, linked(proxy.address) as driven:
        driven.listen("loop")
        monkeypatch.setattr(RedisListener, "_pause", note)
        proxy.refuse()
        proxy.cut()
        assert enough.wait(TEST_TIMEOUT)
        longest = [min(listener.FIRST_PAUSE * 2**number, listener.LONGEST_PAUSE) for number in range(len(pauses))]
        assert all(most / 2 <= seconds <= most for seconds, most in zip(pauses, longest, strict=True))
        assert len({seconds / most for seconds, most in zip(pauses, longest, strict=True)}) > 1


def test_an_error_of_who_hears_is_survived(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that fails is reported, and called again with what comes next."""
    heard = threading.Semaphore(0)

    def fail(*_what: object) -> None:
        heard.release()
        message = "cannot hear"
        raise ValueError(message)

    driven = Driven(RedisAddress(*redis_server.address))
    driven.link = RedisThreadLink(
        driven.runtime, RedisAccess(), RedisAddress(*redis_server.address), RedisCallbacks(fail, fail)
    )
    try:
        driven.listen("failing")
        for _ in range(2):
            redis_server.command("PUBLISH", "failing", "hello")
            assert heard.acquire(timeout=TEST_TIMEOUT)
        redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
        assert heard.acquire(timeout=TEST_TIMEOUT)
        redis_server.command("PUBLISH", "failing", "hello")
        assert heard.acquire(timeout=TEST_TIMEOUT)
    finally:
        driven.close()
    assert caplog.text.count("cannot hear") >= 3


def test_who_is_not_heard_in_time_leaves_nothing(redis_server: RedisServer) -> None:
    """A subscription that was not confirmed in time is given up; one that was is not."""
    with linked(redis_server) as driven:
        driven.listen("old")
        redis_server.pause()
        with pytest.raises(StoreUnavailable):
            driven.listen("new", within=0.05)
        redis_server.resume()
        driven.listen("newest")
        wait_until(lambda: listeners(redis_server, "new") == 0, "a subscription that ends")
        assert listeners(redis_server, "old") == 1


def test_a_refused_subscription_is_told(redis_acl: RedisServer) -> None:
    """Whoever may not hear a channel gets the server's error, and others still hear theirs."""
    redis_acl.command("ACL", "SETUSER", "deaf", "on", ">deaf", "~*", "resetchannels", "&open", "+@all")
    with linked(redis_acl, access=RedisAccess({"username": "deaf", "password": "deaf"})) as driven:
        driven.listen("open")
        for _ in range(2):
            with pytest.raises(ReplyError) as caught:
                driven.listen("closed")
            assert caught.value.code == "NOPERM"
        redis_acl.command("PUBLISH", "open", "hello")
        assert driven.ear.push() == b"hello"


def test_a_subscription_that_is_refused_later_is_a_gap(redis_acl: RedisServer) -> None:
    """A channel that may no longer be heard is not asked for again and again, but the gap is told."""
    user = ("ACL", "SETUSER", "fading", "on", ">fading", "~*", "resetchannels", "&open", "+@all")
    redis_acl.command(*user, "&fading")
    with linked(redis_acl, access=RedisAccess({"username": "fading", "password": "fading"})) as driven:
        driven.listen("open")
        driven.listen("fading")
        redis_acl.command(*user)
        driven.ear.gap()
        assert redis_acl.command("PUBLISH", "open", "hello") == 1
        assert driven.ear.push() == b"hello"
        with pytest.raises(ReplyError):
            driven.listen("fading")


def test_channels_of_a_slot(redis_cluster: Cluster) -> None:
    """In a cluster, channels are heard at the node of their slot; the others say where that is."""
    heard, sent_on = 0, 0
    for node in [node for node in redis_cluster.nodes if node.is_master()]:
        with linked(node, sharded=True) as driven:
            try:
                driven.listen("{slot}channel")
            except ReplyError as error:
                assert error.code == "MOVED"  # noqa: PT017 - one of the nodes raises none
                sent_on += 1
            else:
                heard += 1
                node.command("SPUBLISH", "{slot}channel", "hello")
                assert driven.ear.push() == b"hello"
                driven.ignore("{slot}channel")
                driven.listen("{slot}channel")
    assert (heard, sent_on) == (1, 2)


def test_errors_are_not_shared(redis_server: RedisServer) -> None:
    """Threads that are told of the same trouble raise errors of their own, each with its own traceback."""
    errors: list[StoreUnavailable] = []
    with Proxy(redis_server.address) as proxy, linked(proxy.address) as driven:
        proxy.refuse()

        def work() -> None:
            with pytest.raises(StoreUnavailable) as caught:
                driven.listen("nobody")
            errors.append(caught.value)

        at_once([work] * 8)
        assert len(set(map(id, errors))) == 8
        assert all(len(traceback.extract_tb(error.__traceback__)) < 10 for error in errors)


def test_a_listener_closes_while_it_connects(monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer) -> None:
    """Close does not wait for a server that does not answer; the thread goes by itself."""
    monkeypatch.setattr(listener_thread, "CLOSING", 0.05)
    with Proxy(redis_server.address) as proxy:
        proxy.blackhole()
        with linked(proxy.address, access=RedisAccess(connect_timeout=0.5)) as driven:
            with pytest.raises(StoreUnavailable):
                driven.listen("connecting", within=0.05)
            thread = driven.listener()._thread
        thread.join(TEST_TIMEOUT)
        assert not thread.is_alive()


def test_a_callback_may_close(redis_server: RedisServer) -> None:
    """A link can be closed by what it hears."""
    closed = threading.Event()
    driven = Driven(RedisAddress(*redis_server.address))

    def close(_payload: bytes) -> None:
        driven.close()
        closed.set()

    driven.link = RedisThreadLink(
        driven.runtime, RedisAccess(), RedisAddress(*redis_server.address), RedisCallbacks(close, close_nothing)
    )
    complete(driven.link.listen("closing", driven.soon()))
    redis_server.command("PUBLISH", "closing", "now")
    assert closed.wait(TEST_TIMEOUT)
    driven.listener()._thread.join(TEST_TIMEOUT)


def close_nothing() -> None:
    """Do nothing."""
