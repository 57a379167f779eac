"""A thread that waits again and again reads its messages itself, and nobody misses any by that."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tenure import Client, LeaseState
from tenure.runtimes.threads import ThreadEvent, drive
from tenure.stores.redis.links import direct_reading
from tenure.stores.redis.links.direct_reading import DirectReading
from tenure.stores.redis.links.link import RedisCallbacks
from tests.planting import planted
from tests.redis.threaded import TEST_TIMEOUT, Driven, at_once, linked
from tests.servers import RedisServer
from tests.servers.waiting import wait_until

CHANNEL = "direct"


class Mailbox:
    """Threads that wait for messages which name them, as acquisitions do."""

    def __init__(self, driven: Driven) -> None:
        """Listen."""
        self.driven = driven
        self.events: dict[bytes, ThreadEvent] = {}
        self.readers: dict[bytes, str] = {}
        """Who took each message: the name of the thread."""

        driven.listen(CHANNEL)
        driven.listener()._callbacks.on_push = self._heard

    @property
    def direct(self) -> DirectReading:
        """Return who decides who reads."""
        direct: DirectReading = self.driven.listener().direct
        return direct

    @property
    def callbacks(self) -> RedisCallbacks:
        """Return the callbacks of the link."""
        callbacks: RedisCallbacks = self.driven.listener()._callbacks
        return callbacks

    def _heard(self, payload: bytes) -> None:
        self.readers[payload] = threading.current_thread().name
        self.events[payload].set()

    def expect(self, name: bytes) -> ThreadEvent:
        """Return the event that the message `name` sets."""
        event = self.events[name] = ThreadEvent()
        return event

    def wait(self, name: bytes, within: float = TEST_TIMEOUT) -> bool:
        """Wait for a message in this thread."""
        return drive(self.driven.link.wait(self.events[name], self.driven.soon(within)))

    def send(self, server: RedisServer, name: bytes) -> None:
        """Send a message."""
        server.command("PUBLISH", CHANNEL, name.decode())

    def exchange(self, server: RedisServer, name: bytes) -> None:
        """Wait for a message that is sent while this thread waits."""
        self.expect(name)
        sender = threading.Timer(0.001, self.send, (server, name))
        sender.start()
        assert self.wait(name)
        sender.join()

    def is_lent(self) -> bool:
        """Tell whether the listener lets others read."""
        return self.direct._lent


@contextmanager
def mailbox(server: RedisServer) -> Generator[Mailbox]:
    """Open a mailbox whose listener has lent its connection."""
    with linked(server) as driven:
        box = Mailbox(driven)
        lend(box, server)
        yield box


def lend(box: Mailbox, server: RedisServer) -> None:
    """Wait again and again, until the listener lends its connection."""
    for number in range(100):
        box.exchange(server, b"first %d" % number)
        if box.is_lent():
            return
    pytest.fail("the listener never lent its connection")


def reading(box: Mailbox, name: bytes) -> threading.Thread:
    """Start a thread that waits for a message, and return it once it reads the connection."""
    reader = threading.Thread(target=box.wait, args=(name,))
    reader.start()
    wait_until(lambda: bool(box.direct._reader), "a thread that reads")
    return reader


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine take its time between two waits."""
    monkeypatch.setattr(direct_reading, "OFTEN", 5.0)


@pytest.fixture
def long_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the listener wait for long before it takes the connection back by itself."""
    monkeypatch.setattr(direct_reading, "IDLE", 60.0)


@pytest.mark.usefixtures("long_lent")
def test_a_thread_that_waits_again_and_again_reads_itself(redis_server: RedisServer) -> None:
    """No other thread has to be woken first."""
    with mailbox(redis_server) as box:
        for number in range(5):
            name = b"direct %d" % number
            box.exchange(redis_server, name)
            assert box.readers[name] == threading.current_thread().name


@pytest.mark.usefixtures("long_lent")
def test_two_threads_that_wait_both_hear(redis_server: RedisServer) -> None:
    """The one that does not read makes the listener read, or hears from the one that does."""
    with mailbox(redis_server) as box:
        for number in range(20):
            names = [b"%d of %d" % (place, number) for place in range(3)]
            for name in names:
                box.expect(name)
            sender = threading.Timer(0.001, _send_all, (box, redis_server, names))
            sender.start()
            at_once([partial(_assert_heard, box, name) for name in names])
            sender.join()


def _send_all(box: Mailbox, server: RedisServer, names: list[bytes]) -> None:
    for name in names:
        box.send(server, name)


def _assert_heard(box: Mailbox, name: bytes) -> None:
    assert box.wait(name)


@pytest.mark.usefixtures("long_lent")
def test_a_thread_that_waits_beside_a_reader_hears_after_the_reader_has_left(redis_server: RedisServer) -> None:
    """The reader that leaves wakes the listener for it."""
    with mailbox(redis_server) as box:
        box.expect(b"early")
        box.expect(b"late")
        reader = reading(box, b"early")
        other = threading.Thread(target=box.wait, args=(b"late",))
        other.start()
        wait_until(lambda: bool(box.direct._blocked), "a thread that waits beside it")
        box.send(redis_server, b"early")
        reader.join(TEST_TIMEOUT)
        box.send(redis_server, b"late")
        other.join(TEST_TIMEOUT)
        assert not reader.is_alive()
        assert not other.is_alive()


def test_a_message_for_which_no_thread_waits_is_read_soon(redis_server: RedisServer) -> None:
    """A revocation comes while nobody waits: the listener takes the connection back."""
    with mailbox(redis_server) as box:
        event = box.expect(b"revoked")
        box.send(redis_server, b"revoked")
        assert event.block(TEST_TIMEOUT)


@pytest.mark.usefixtures("long_lent")
def test_a_subscription_takes_the_connection_back(redis_server: RedisServer) -> None:
    """The listener has to send something, while a thread reads."""
    with mailbox(redis_server) as box:
        box.expect(b"the last")
        reader = reading(box, b"the last")
        box.driven.listen("another")
        box.send(redis_server, b"the last")
        reader.join(TEST_TIMEOUT)
        assert not reader.is_alive()


@pytest.mark.usefixtures("long_lent")
def test_an_event_that_another_thread_sets_ends_the_wait(redis_server: RedisServer) -> None:
    """So `close` and `Stop` wake a thread that reads."""
    with mailbox(redis_server) as box:
        event = box.expect(b"never sent")
        reader = reading(box, b"never sent")
        event.set()
        reader.join(TEST_TIMEOUT)
        assert not reader.is_alive()


class _SetByAnother(ThreadEvent):
    """An event that another thread sets just after the first look at it."""

    def is_set(self) -> bool:
        before = super().is_set()
        if not before:
            self.set()
        return before


@pytest.mark.usefixtures("long_lent")
def test_a_reader_is_woken_by_others_only(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it reads itself does not wake it. An event that is set between its look and its poll does."""
    with mailbox(redis_server) as box:
        pipe, woken = box.direct._reader_pipe, list[object]()
        assert pipe is not None
        wake = pipe.wake

        def noted() -> None:
            woken.append(None)
            wake()

        monkeypatch.setattr(pipe, "wake", noted)
        for number in range(5):
            box.exchange(redis_server, b"own %d" % number)
        assert not woken
        box.events[b"by another"] = _SetByAnother()
        assert box.wait(b"by another")
        assert woken


ARM = "event.when_set = pipe.wake  # so before the look, or who sets it just after that would wake nobody"
LOOK = "if event.is_set():\n                return True"
WRONG_READERS = {
    "rings for its own": ("event.when_set = None  # this", "pass  # this"),
    "looks before it can be woken": (f"{ARM}\n            {LOOK}", f"{LOOK}\n            {ARM}"),
}


@pytest.mark.usefixtures("long_lent")
@pytest.mark.parametrize("wrong", WRONG_READERS)
def test_a_reader_that_is_woken_wrongly_is_noticed(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Each bug fails the test of what wakes a reader."""
    monkeypatch.setattr(DirectReading, "_read", planted(DirectReading, "_read", *WRONG_READERS[wrong]))
    with pytest.raises(AssertionError):
        test_a_reader_is_woken_by_others_only(redis_server, monkeypatch)


@pytest.mark.usefixtures("long_lent")
def test_a_wait_ends_in_time(redis_server: RedisServer) -> None:
    """A thread that reads looks at the clock."""
    with mailbox(redis_server) as box:
        box.expect(b"never sent")
        assert not box.wait(b"never sent", within=0.05)
        box.exchange(redis_server, b"afterwards")


@pytest.mark.usefixtures("long_lent")
def test_a_reader_that_is_interrupted_may_have_lost_a_message(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener connects again and tells of a gap, after which whoever waits asks again."""
    with mailbox(redis_server) as box:
        monkeypatch.setattr(box.direct, "_take", _interrupted)
        box.expect(b"lost")
        box.send(redis_server, b"lost")
        with pytest.raises(KeyboardInterrupt):
            box.wait(b"lost")
        monkeypatch.undo()
        box.driven.ear.gap()
        box.exchange(redis_server, b"afterwards")


@pytest.mark.usefixtures("long_lent")
def test_a_reader_that_is_interrupted_when_it_leaves_still_lets_others_read(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the listener would wait for ever for a thread that no longer reads."""
    with mailbox(redis_server) as box:
        leave, calls = box.direct._leave, list[ThreadEvent]()

        def interrupted_once(event: ThreadEvent) -> None:
            calls.append(event)
            if len(calls) == 1:
                raise KeyboardInterrupt
            leave(event)

        monkeypatch.setattr(box.direct, "_leave", interrupted_once)
        box.expect(b"the last")
        box.send(redis_server, b"the last")
        with pytest.raises(KeyboardInterrupt):
            box.wait(b"the last")
        assert not box.direct._reader
        box.exchange(redis_server, b"afterwards")


def _interrupted(connection: object) -> bool:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("long_lent")
def test_a_reader_takes_only_what_waiters_wait_for(redis_server: RedisServer) -> None:
    """Callbacks of a lease, which may lock what the reader has locked, do not run in the reader's thread."""
    with mailbox(redis_server) as box:
        box.callbacks.is_for_waiter = _is_grant
        for name in (b"granted", b"revoked", b"left"):
            box.expect(name)
        reader = reading(box, b"granted")
        box.send(redis_server, b"revoked")
        assert box.events[b"revoked"].block(TEST_TIMEOUT)
        box.send(redis_server, b"granted")
        reader.join(TEST_TIMEOUT)
        assert not reader.is_alive()
        assert box.readers[b"revoked"] == "tenure-redis-channel"


@pytest.mark.usefixtures("long_lent")
def test_a_reader_that_is_interrupted_has_left_the_messages_of_others_to_the_listener(
    redis_server: RedisServer,
) -> None:
    """The listener takes them before it connects again."""
    with mailbox(redis_server) as box:

        def take(payload: bytes) -> None:
            (_late if _is_grant(payload) else box._heard)(payload)

        box.callbacks.is_for_waiter, box.callbacks.on_push = _is_grant, take
        event = box.expect(b"revoked")
        box.expect(b"granted")
        with redis_server.connect() as wire:
            wire.command("MULTI")
            wire.command("PUBLISH", CHANNEL, "revoked")
            wire.command("PUBLISH", CHANNEL, "granted")
            wire.command("EXEC")
        with pytest.raises(_SoftTimeLimitError):
            box.wait(b"granted")
        assert event.block(TEST_TIMEOUT)


@pytest.mark.usefixtures("long_lent")
def test_an_error_that_a_signal_handler_raises_while_a_thread_reads_is_not_swallowed(redis_server: RedisServer) -> None:
    """It belongs to the caller, as it would if the thread only waited."""
    with mailbox(redis_server) as box:
        box.callbacks.on_push = _late
        box.expect(b"granted")
        box.send(redis_server, b"granted")
        with pytest.raises(_SoftTimeLimitError):
            box.wait(b"granted")
        box.callbacks.on_push = box._heard
        box.driven.ear.gap()
        box.exchange(redis_server, b"afterwards")


def _is_grant(payload: bytes) -> bool:
    return payload == b"granted"


class _SoftTimeLimitError(Exception):
    """An error that a signal handler raises in the thread that it interrupts."""


def _late(payload: bytes) -> None:
    raise _SoftTimeLimitError


@pytest.mark.usefixtures("long_lent")
def test_a_lost_lease_is_not_told_in_a_thread_that_waits_for_another_lock(redis_server: RedisServer) -> None:
    """Its callback may lock what that thread has locked: there it would wait for itself for ever."""
    threads: list[str] = []
    with Client(redis_server.url, owner="ours") as ours, Client(redis_server.url, owner="theirs") as theirs:
        held = ours.lock("direct:revoked", on_lost=lambda _: threads.append(threading.current_thread().name)).acquire()
        with _reading_client(ours, theirs):
            theirs.revoke("direct:revoked", force=True)
            wait_until(lambda: bool(threads), "the loss is told")
        assert held.state is LeaseState.LOST
    assert threads == ["tenure-redis-channel"]


@contextmanager
def _reading_client(ours: Client, theirs: Client) -> Generator[None]:
    """Have a thread of `ours` wait for a lock that `theirs` holds, and read the connection meanwhile."""
    direct = _direct_of(ours)
    for number in range(100):
        with theirs.lock("direct:hot", timeout=TEST_TIMEOUT):
            waiter = threading.Thread(target=lambda: ours.lock("direct:hot", timeout=TEST_TIMEOUT).acquire().release())
            waiter.start()
            wait_until(lambda: bool(direct._blocked or (direct._lent and direct._reader)), f"wait {number}")
            if reads := bool(direct._lent and direct._reader):
                yield
        waiter.join(TEST_TIMEOUT)
        if reads:
            return
    pytest.fail("no thread ever read")


def _direct_of(client: Client) -> DirectReading:
    store: Any = client.session().store
    direct: DirectReading = store._links[store._channels.home]._listener.direct
    return direct


@pytest.mark.usefixtures("long_lent")
def test_a_connection_that_breaks_while_a_thread_reads_is_made_again(redis_server: RedisServer) -> None:
    """The thread goes on to wait, and hears of the gap."""
    with mailbox(redis_server) as box:
        box.expect(b"through")
        reader = reading(box, b"through")
        redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
        box.driven.ear.gap()
        box.send(redis_server, b"through")
        reader.join(TEST_TIMEOUT)
        assert not reader.is_alive()


@pytest.mark.usefixtures("long_lent")
def test_a_client_that_is_closed_while_its_connection_is_lent(redis_server: RedisServer) -> None:
    """Closing waits for nobody."""
    with mailbox(redis_server) as box:
        assert box.is_lent()


def test_a_hot_lock_between_two_clients_is_exclusive_and_loses_no_waiter(redis_server: RedisServer) -> None:
    """Both clients wait again and again, so that both read themselves."""
    inside = 0
    rounds = 150

    def work(name: str) -> None:
        nonlocal inside
        with Client(redis_server.url, owner=name) as client:
            lock = client.lock("direct:hot", timeout=TEST_TIMEOUT)
            for _ in range(rounds):
                with lock:
                    inside += 1
                    assert inside == 1
                    inside -= 1

    at_once([partial(work, "a"), partial(work, "b")])


def _forget_the_blocked(direct: DirectReading) -> None:
    direct._blocked = _NeverFull()  # type: ignore[assignment]


class _NeverFull(list[ThreadEvent]):
    def __bool__(self) -> bool:
        return False


def _forget_the_pipe(direct: DirectReading) -> None:
    direct._wakeup_pipe.wake = lambda: None  # type: ignore[method-assign]


@pytest.mark.usefixtures("long_lent")
@pytest.mark.parametrize("plant", [_forget_the_blocked, _forget_the_pipe])
def test_a_reader_that_leaves_without_a_word_is_noticed(
    redis_server: RedisServer, plant: Callable[[DirectReading], None]
) -> None:
    """The test of the thread beside a reader fails if the reader does not wake the listener."""
    with mailbox(redis_server) as box:
        box.expect(b"early")
        box.expect(b"late")
        reader = reading(box, b"early")
        wake = box.direct._wakeup_pipe.wake
        plant(box.direct)
        other = threading.Thread(target=box.wait, args=(b"late",))
        other.start()
        wait_until(lambda: len(box.direct._blocked) > 0, "a thread that waits beside it")
        box.send(redis_server, b"early")
        reader.join(TEST_TIMEOUT)
        box.send(redis_server, b"late")
        other.join(0.2)
        assert other.is_alive()
        box.direct._wakeup_pipe.wake = wake  # type: ignore[method-assign]
        wake()
        other.join(TEST_TIMEOUT)
        assert not other.is_alive()
