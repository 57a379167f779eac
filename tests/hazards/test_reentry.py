"""Signal handlers, finalizers and functions of `atexit` call Tenure, in the middle of another call or at the end."""

import gc
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tenure import Client, EventKind, Lease, LeaseState, LockEvent, Outcome, UsageError, reentry
from tenure.primitives.multilock import MultiLease
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, Script, disturbed, eventually

TTL = 1000.0
"""Longer than any test: what is free again was released."""


class Within:
    """Calls something in the middle of an operation of the store, in the thread of the operation, once."""

    def __init__(self) -> None:
        """Begin with nothing to call."""
        self.call: Callable[[], object] | None = None
        self.result: object = None
        self.error: BaseException | None = None

    def begin(self, call: Callable[[], object]) -> None:
        """Have something called within the next acquisition."""
        self.call, self.result, self.error = call, None, None

    async def __call__(self, operation: str, done: bool) -> None:
        """Call it within the first acquisition."""
        call = self.call
        if operation != "acquire" or done or call is None:
            return
        self.call = None
        try:
            self.result = call()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error


class World:
    """A client, the means to call something within one of its operations, and another client of the same store."""

    def __init__(self, on_event: Callable[[LockEvent], object] | None = None) -> None:
        """Make the clients."""
        source = virtual.source()
        self.within = Within()
        self.client = Client(store=disturbed(source, self.within), on_event=on_event)
        self.other = Client(store=source)

    def call_within(self, call: Callable[[], object]) -> object:
        """Call `call` in the middle of an acquisition; return what it returned, or raise what it raised."""
        within = self.within
        within.begin(call)
        with self.client.lock("in the middle of it"):
            pass
        assert within.call is None
        if within.error is not None:
            raise within.error
        return within.result

    def is_free(self, name: str) -> bool:
        """Return whether nobody holds a name."""
        return not self.other.inspect(name).holders


@contextmanager
def world(on_event: Callable[[LockEvent], object] | None = None) -> Generator[World, None, None]:
    """Make a world, and close its clients."""
    here = World(on_event)
    with here.client, here.other:
        yield here


KINDS: dict[str, Callable[[Client], Lease | MultiLease]] = {
    "a lock": lambda client: client.lock("name", ttl=TTL).acquire(),
    "a lock that lingers": lambda client: client.lock("name", ttl=TTL, linger=0.05).acquire(),
    "a reentrant lock": lambda client: client.lock("name", ttl=TTL, reentrant=True).acquire(),
    "a permit": lambda client: client.semaphore("name", 2, ttl=TTL).acquire(),
    "a reader": lambda client: client.rwlock("name", ttl=TTL).read().acquire(),
    "a multilock": lambda client: client.multilock(["name", "second"], ttl=TTL).acquire(),
    "an election": lambda client: client.election("name", ttl=TTL).campaign(),
}


def a_release_goes_to_the_background(kind: str) -> None:
    """Check that a release within another operation returns at once, and is carried out soon."""
    told: list[LockEvent] = []
    with world(told.append) as here:
        lease = KINDS[kind](here.client)
        assert here.call_within(lease.release) is Outcome.UNKNOWN
        eventually(lambda: here.is_free("name"), "it is released in the background")
        eventually(lambda: lease.release() is Outcome.RELEASED, "the outcome is known")
        assert lease.state is LeaseState.RELEASED
        assert here.call_within(lease.release) is Outcome.RELEASED, "known by now"

        here.call_within(KINDS[kind](here.client).release)  # the object is gone then, but a release is no drop
        gc.collect()
        eventually(lambda: here.is_free("name"), "the object is not needed for that")
        assert EventKind.DROPPED not in {each.event for each in told}


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_within_another_operation_goes_to_the_background(kind: str) -> None:
    """It does not wait for the operation, which cannot go on before it returns."""
    a_release_goes_to_the_background(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_in_a_thread_that_holds_the_mutex_goes_to_the_background(kind: str) -> None:
    """A finalizer may run in a line that no operation drives, as in the check of a lease whose deadline has passed."""
    with world() as here:
        lease = KINDS[kind](here.client)
        with here.client.session().mutex:
            assert lease.release() is Outcome.UNKNOWN
        eventually(lambda: here.is_free("name"), "it is released in the background")


def test_an_inner_lease_of_a_reentrant_lock_ends_alone() -> None:
    """The last release counts, whichever of them runs in the background."""
    with world() as here:
        lock = here.client.lock("name", ttl=TTL, reentrant=True)
        outer, inner = lock.acquire(), lock.acquire()
        here.call_within(inner.release)
        eventually(lambda: inner.state is LeaseState.RELEASED, "it is released in the background")
        outer.check()
        assert not here.is_free("name")
        assert outer.release() is Outcome.RELEASED
        assert here.is_free("name")


def test_a_body_that_the_collector_ends_is_left() -> None:
    """A generator in the middle of a `with` is closed by the collector, which runs within another operation."""
    with world() as here:

        def work() -> Generator[None, None, None]:
            with here.client.lock("name", ttl=TTL), here.client.multilock(["a", "b"], ttl=TTL):
                yield

        generator = work()
        next(generator)
        here.call_within(generator.close)
        for name in ("name", "a", "b"):
            eventually(lambda name=name: here.is_free(name), "the body is left")  # type: ignore[misc]


REFUSED: dict[str, Callable[[Client, Lease], object]] = {
    "acquire": lambda client, _: client.lock("name").acquire(timeout=0),
    "wait": lambda client, _: client.lock("name").acquire(),
    "try": lambda client, _: client.lock("name").try_acquire(),
    "enter": lambda client, _: client.lock("name").__enter__(),
    "enter all": lambda client, _: client.multilock(["name", "b"]).__enter__(),
    "try all": lambda client, _: client.multilock(["name", "b"]).try_acquire(),
    "campaign": lambda client, _: client.election("name").campaign(),
    "run once": lambda client, _: client.once("name", key="k").run(lambda: None),
    "count": lambda client, _: client.counter("name").add(),
    "look": lambda client, _: client.lock("name").locked(),
    "inspect": lambda client, _: client.inspect("name"),
    "list": lambda client, _: client.names(),
    "revoke": lambda client, _: client.revoke("held", force=True),
    "extend": lambda _, lease: lease.extend(),
    "wait for a loss": lambda _, lease: lease.lost.wait(),
    "close": lambda client, _: client.close(),
}


def all_else_is_refused(call: str) -> None:
    """Check that an operation within another is refused at once, and changes nothing."""
    with world() as here:
        with here.client.lock("held", ttl=TTL) as lease:
            with pytest.raises(UsageError, match="in the middle of another call"):
                here.call_within(lambda: REFUSED[call](here.client, lease))
            lease.check()
            assert here.is_free("name")
            with here.client.lock("name", timeout=0):
                pass
        assert here.is_free("held")


@pytest.mark.parametrize("call", REFUSED)
def test_any_other_operation_within_another_is_refused_at_once(call: str) -> None:
    """It would wait for itself, or change what the other is about to change. The client goes on to work."""
    all_else_is_refused(call)


def test_the_first_use_of_a_client_within_its_first_use_is_refused() -> None:
    """Else it would get a session that nobody closes."""
    with world() as here, here.client._session_mutex, pytest.raises(UsageError, match="in the middle of another call"):
        here.client.lock("name").acquire()


def callbacks_may_use_the_client(within: float = TEST_TIMEOUT) -> None:
    """Check that callbacks are no calls within another."""
    told: list[object] = []
    with world() as here:

        def tell(_: object) -> None:
            with here.client.lock("of the callback", timeout=0):
                told.append(here.is_free("of the callback"))

        one = here.client.lock("name", ttl=TTL, on_lost=tell).acquire()
        two = here.client.multilock(["a", "b"], ttl=TTL, on_lost=tell).acquire()
        here.other.revoke("name", force=True)
        here.other.revoke("a", force=True)
        eventually(lambda: told == [False, False], "both callbacks took a lock", within)
        three = here.client.lock("third", ttl=TTL, on_revoke=lambda lease: told.append(lease.release())).acquire()
        here.other.revoke("third")
        eventually(lambda: told[2:] == [Outcome.RELEASED], "the callback released it", within)
        for lease in (one, two, three):
            lease.release()


def test_callbacks_may_use_the_client() -> None:
    """They run where Tenure holds nothing, as `on_lost=lambda _: client.close()` needs."""
    callbacks_may_use_the_client()


def _never(_mutex: object) -> bool:
    return False


def _always_inside(callback: Callable[..., object], *arguments: object) -> object:
    return callback(*arguments)


def _undeferred(self: Lease) -> Outcome:
    """Have a lease released without a note of it."""
    self._session.release_later(lambda: self._session.release(self._core), self._name)
    return Outcome.UNKNOWN


def _closed_first(self: Client) -> None:
    """Close a client without a look at what this thread does."""
    self._closed = True
    session, self._session = self._session, None
    if session is not None:
        from tenure.runtimes.threads import drive

        drive(session.close())


PLANTED: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], None]]] = {
    "a release is not deferred": (
        lambda: patch("tenure.lease.is_inside", _never),
        lambda: a_release_goes_to_the_background("a lock"),
    ),
    "a multilock is not deferred": (
        lambda: patch("tenure.primitives.multilock.is_inside", _never),
        lambda: a_release_goes_to_the_background("a multilock"),
    ),
    "a reentrant lock is not deferred": (
        lambda: patch("tenure.primitives.reentrant.is_inside", _never),
        lambda: a_release_goes_to_the_background("a reentrant lock"),
    ),
    "a deferred release is forgotten": (
        lambda: patch.object(Lease, "_release_later", _undeferred),
        lambda: a_release_goes_to_the_background("a lock"),
    ),
    "callbacks are inside": (
        lambda: patch("tenure.lease.outside", _always_inside),
        lambda: callbacks_may_use_the_client(1.0),
    ),
    "a close is begun": (lambda: patch.object(Client, "close", _closed_first), lambda: all_else_is_refused("close")),
}


@pytest.mark.parametrize("bug", PLANTED)
@pytest.mark.filterwarnings("ignore:.*dropped without release:ResourceWarning")
def test_a_planted_bug_is_found(bug: str) -> None:
    """The checks above find each of these."""
    plant, check = PLANTED[bug]
    with plant(), pytest.raises((AssertionError, UsageError, pytest.fail.Exception)):
        check()
    assert not reentry.marks.mark.inside


# -- real finalizers and signals -------------------------------------------------------------------------------

FINALIZERS = """
import faulthandler, gc, sys, tenure
faulthandler.dump_traceback_later(60, exit=True)  # only if it hangs
client = tenure.Client(sys.argv[1])
lock = client.lock("main", ttl=1000)
class Work:
    def __init__(self, number):
        self.me = self  # a cycle, so that the collector ends it
        self.lease = client.lock(f"s{number}", ttl=1000, timeout=2).acquire()
    def __del__(self):
        self.lease.release()
gc.set_threshold(50)
for number in range(400):
    Work(number)
    with lock:
        pass
gc.collect()
client.close()
with tenure.Client(sys.argv[1]) as other:
    print(other.names())
"""


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_finalizers_that_release_hang_nothing(store: str, tmp_path: Path) -> None:
    """The collector runs them anywhere, also in the threads of the client, and each lease is released."""
    script = Script(FINALIZERS, "memory://finalizers" if store == "memory" else f"sqlite://{tmp_path}/locks.db")
    out, errors = script.end()
    assert (script.status, out.strip()) == (0, "[]"), errors


SIGNALS = """
import signal, sys, threading, time, tenure
client = tenure.Client(sys.argv[1])
lock = client.lock("name", ttl=1000)
first = lock.acquire()
said = []
def release(*_):
    said.append(first.release())
signal.signal(signal.SIGUSR1, release)
def wake():
    while not client.inspect("name").waiters:
        time.sleep(0.001)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
threading.Thread(target=wake).start()
with lock.acquire(timeout=1000):  # waits for the release in the handler
    print(*said)
def refused(*_):
    try:
        client.close()
    except tenure.UsageError:
        print("refused")
    stop.set()
stop = tenure.Stop()
signal.signal(signal.SIGUSR1, refused)
other = tenure.Client(sys.argv[1])
held = other.lock("name", ttl=1000).acquire()
threading.Thread(target=wake).start()
try:
    lock.acquire(stop=stop)
except tenure.Stopped:
    print("stopped")
held.release()
other.close()
client.close()
"""


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_signal_handler_releases_while_the_thread_waits(store: str, tmp_path: Path) -> None:
    """The wait goes on and is granted by that release; another call is refused, and a Stop ends the wait."""
    script = Script(SIGNALS, "memory://signals" if store == "memory" else f"sqlite://{tmp_path}/locks.db")
    out, errors = script.end()
    assert (script.status, out.split("\n")[:-1]) == (0, ["Outcome.UNKNOWN", "refused", "stopped"]), errors


UNNOTICED = """
import os, signal, sys, threading, time, tenure
client = tenure.Client(sys.argv[1])
lock = client.lock("name", ttl=1000)
first = lock.acquire()
signal.signal(signal.SIGUSR1, lambda *_: first.release())
def wake():
    while not client.inspect("name").waiters:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGUSR1)  # this thread takes it, so that it interrupts no wait of the main thread
threading.Thread(target=wake).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
lock.acquire(timeout=1000).release()
client.close()
"""


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_signal_that_wakes_no_wait_is_handled_soon(store: str, tmp_path: Path) -> None:
    """Such as one that comes just before the main thread blocks: else its handler would run after the wait."""
    script = Script(UNNOTICED, "memory://signals" if store == "memory" else f"sqlite://{tmp_path}/locks.db")
    _, errors = script.end()
    assert script.status == 0, errors


# -- the end of the process ------------------------------------------------------------------------------------

NO_THREADS = """
def no_thread(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")
"""


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "no threads"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_client_is_made_and_used_at_exit(store: str, threads: bool, tmp_path: Path) -> None:
    """Also where the interpreter starts no more threads, as the first releases of Python 3.12."""
    stop = "" if threads else "    threading.Thread.start = no_thread\n"
    body = f"""
import atexit, sys, threading, tenure
{NO_THREADS}
assert "concurrent.futures.thread" not in sys.modules
def clean_up():
{stop}    client = tenure.Client(sys.argv[1])
    with client.lock("with", timeout=3) as lease:
        lease.check()
    from concurrent.futures import ThreadPoolExecutor
    kept = client.lock("kept", ttl=1000).acquire()
    client.close()
    with tenure.Client(sys.argv[1]) as other:
        print(other.names())
atexit.register(clean_up)
"""
    script = Script(body, "memory://exit" if store == "memory" else f"sqlite://{tmp_path}/locks.db")
    out, errors = script.end()
    assert (script.status, out.strip(), errors) == (0, "[]", "")


def test_the_clients_of_a_program_are_closed_after_its_own_functions(tmp_path: Path) -> None:
    """A function that the program registered after it imported Tenure uses its client, whose leases end after that."""
    body = """
import atexit, sys, tenure
def clean_up():
    lease.check()
    with client.lock("it", ttl=1000, timeout=3) as other:
        kept.append(client.lock("another", ttl=1000).acquire())
        print("cleaned up")
kept = []
atexit.register(clean_up)
client = tenure.Client(sys.argv[1])
lease = client.lock("kept", ttl=1000).acquire()
"""
    url = f"sqlite://{tmp_path}/locks.db"
    script = Script(body, url)
    out, errors = script.end()
    assert (script.status, out.strip(), errors) == (0, "cleaned up", "")
    with Client(url) as client:
        assert client.names() == []


def test_a_finalizer_releases_at_the_very_end(tmp_path: Path) -> None:
    """A release that comes after the client was closed does nothing, and raises nothing."""
    body = """
import sys, tenure
class Work:
    def __init__(self):
        self.lease = client.lock("it", ttl=1000).acquire()
    def __del__(self):
        self.lease.release()
client = tenure.Client(sys.argv[1])
work = Work()
work.me = work
"""
    url = f"sqlite://{tmp_path}/locks.db"
    script = Script(body, url)
    assert script.end() == ("", "")
    with Client(url) as client:
        assert client.names() == []
