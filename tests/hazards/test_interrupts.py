"""An interrupt (a signal handler that raises) may come between any two bytecodes: no name stays held by that."""

import operator
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest

from tenure import Client, EventKind, LockEvent, LockTimeout, UsageError
from tenure.contracts.deadlines import NEVER
from tenure.stores.memory import MemoryTable, memory_source
from tests.hazards.helpers import eventually
from tests.hazards.interrupting import Interrupt, before_the_release, sweep
from tests.metrics.scene import LEASE_ENDS, check_events

TTL = 60.0
"""Far longer than a test: what is free again was given back."""

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")

TEST_TIMEOUT = 2.0
"""How long to wait for what is free, or about to be, in seconds: far shorter than the ttl."""

Work = Callable[[Client, str], object]


@pytest.fixture
def swallowing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that Python swallows nothing but the interrupts themselves, as in `__del__`."""
    swallowed: list[object] = []

    def note(told: Any) -> None:  # noqa: ANN401 - as sys.unraisablehook has it
        swallowed.append(told.exc_type)

    monkeypatch.setattr(sys, "unraisablehook", note)
    yield
    assert set(swallowed) <= {Interrupt}


@pytest.fixture
def clients(swallowing: None) -> Iterator[tuple[Client, Client]]:
    """Return two clients of one table."""
    source = memory_source(MemoryTable())
    with warnings.catch_warnings(), Client(store=source) as ours, Client(store=source) as theirs:
        warnings.simplefilter("ignore", ResourceWarning)  # a lease is dropped at the place of the interrupt
        ours.lock("warm").acquire().release()
        yield ours, theirs


def lock(client: Client, name: str) -> None:
    """Acquire a lock and release it."""
    client.lock(name, ttl=TTL, timeout=1).acquire().release()


def with_lock(client: Client, name: str) -> None:
    """Acquire it by `with`."""
    with client.lock(name, ttl=TTL, timeout=1):
        pass


def try_lock(client: Client, name: str) -> None:
    """Try to acquire it once."""
    lease = client.lock(name, ttl=TTL).try_acquire()
    assert lease is not None
    lease.release()


def extend(client: Client, name: str) -> None:
    """Extend it."""
    with client.lock(name, ttl=TTL, timeout=1) as lease:
        lease.extend(TTL)


def semaphore(client: Client, name: str) -> None:
    """Acquire the only permit."""
    client.semaphore(name, 1, ttl=TTL, timeout=1).acquire().release()


def write(client: Client, name: str) -> None:
    """Write."""
    with client.rwlock(name, ttl=TTL, timeout=1).write():
        pass


def multilock(client: Client, name: str) -> None:
    """Acquire several names."""
    with client.multilock([name, f"{name}'"], ttl=TTL, timeout=1):
        pass


def reentrant(client: Client, name: str) -> None:
    """Acquire it twice."""
    again = client.lock(name, ttl=TTL, timeout=1, reentrant=True)
    with again, again:
        pass


def linger(client: Client, name: str) -> None:
    """Acquire it, let it linger, and reacquire it."""
    lingering = client.lock(name, ttl=TTL, timeout=1, linger=TTL)
    lingering.acquire().release()
    with lingering:
        pass


def election(client: Client, name: str) -> None:
    """Win an election."""
    client.election(name, ttl=TTL, timeout=1).campaign("me").release()


WORKS = (lock, with_lock, try_lock, extend, semaphore, write, multilock, reentrant, linger, election)


def ends_of(told: list[LockEvent], stop: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return how often each lease began and ended, by the first events."""
    begun = Counter(each.id for each in told[:stop] if each.event is EventKind.ACQUIRED)
    ended = Counter(each.id for each in told[:stop] if each.event in LEASE_ENDS)
    return begun, ended


@pytest.mark.parametrize("work", WORKS)
def test_an_interrupt_loses_no_event(work: Work, swallowing: None) -> None:
    """Wherever it comes, each wait ends once, and so does each lease: by its release, or when it is dropped."""
    told: list[LockEvent] = []
    client = Client(store=memory_source(MemoryTable()))
    client.listen_within(told.append)
    with warnings.catch_warnings(), client:
        warnings.simplefilter("ignore", ResourceWarning)
        for number, where in sweep(lambda at: lambda: work(client, f"{work.__name__} {at}"), stride=3):
            begun, ended = ends_of(told, len(told))
            eventually(
                lambda: operator.eq(*ends_of(told, len(told))), f"all ended at {number}, {where}: {begun} {ended}"
            )
    check_events(told)


def is_forgotten(client: Client, name: str) -> bool:
    """Tell whether a client neither renews `name` nor requests it."""
    session = client.session()
    return not session.attempts and all(
        held.lingers_until != NEVER for held in session.renewer.kept() if held.grant.name in (name, f"{name}'")
    )


def is_free(clients: tuple[Client, Client], name: str) -> bool:
    """Tell whether all clients get `name`, and the local waiters of the interrupted client too."""
    for client in clients:
        try:
            client.multilock([name, f"{name}'"], ttl=TTL, timeout=TEST_TIMEOUT).acquire().release()
            client.lock(name, ttl=TTL, timeout=TEST_TIMEOUT).acquire().release()
        except (LockTimeout, UsageError):
            return False
    return True


def look_for_leaks(clients: tuple[Client, Client], work: Work, *, stride: int = 1) -> None:
    """Interrupt `work` everywhere, and check that its name is free afterwards.

    If the release did not even begin, the holder still has its lease. These works drop it: it is not renewed any more.
    """
    ours, _ = clients
    leaks: list[tuple[int, str]] = []
    for number, where in sweep(lambda at: lambda: work(ours, f"{work.__name__} {at}"), stride=stride):
        name = f"{work.__name__} {number}"
        eventually(lambda: is_forgotten(ours, name), f"{name} is forgotten, interrupted in {where}")  # noqa: B023
        if not before_the_release(where) and not is_free(clients, name):
            leaks.append((number, where))
    assert leaks == []


@pytest.mark.parametrize("work", WORKS)
def test_an_interrupt_anywhere_leaves_nothing_behind(clients: tuple[Client, Client], work: Work) -> None:
    """After any interrupt the name is free at once; nothing is renewed, and the waiters of this process are served."""
    look_for_leaks(clients, work)


def test_an_interrupt_of_a_release_leaves_no_local_waiter_asleep(clients: tuple[Client, Client]) -> None:
    """After any interrupt, another thread of the process that waits for the name gets it."""
    ours, _ = clients

    waiters: list[Thread] = []

    def hand_on(number: int) -> Callable[[], object]:
        lease = ours.lock(f"hand on {number}", ttl=TTL).acquire()
        waiter = Thread(target=lambda: ours.lock(lease.name, ttl=TTL).acquire().release(), daemon=True)
        waiter.start()
        waiters.append(waiter)
        eventually(lambda: ours.inspect(lease.name).waiters, "it waits")
        return lease.release

    for number, where in sweep(hand_on, first=1):
        waiters[-1].join(5)
        assert not waiters[-1].is_alive(), (number, where)
    waiters[-1].join()  # of the run that ended before its interrupt
