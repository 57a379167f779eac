"""Interrupts of the stores without a table: no session stays claimed, and no lock stays held."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tenure import Client, LeaseLost, OutcomeUnknown
from tests.hazards.interrupting import before_the_release, interrupt, sweep

TTL = 60.0
"""Far longer than a test: what is free again was given back."""

CONNECTIONS = "connections=64"
"""Room for the leases whose release did not even begin: they keep their connections."""

pytestmark = pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",  # Python swallows an interrupt in a finalizer
)


@pytest.fixture(params=["advisory", "get_lock"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a database in the mode without a table."""
    if request.param == "advisory":
        return f"{request.getfixturevalue('postgres_server').url}?mode=advisory&{CONNECTIONS}"
    return f"{request.getfixturevalue('mariadb_server').url}?mode=get_lock&{CONNECTIONS}"


@pytest.fixture
def clients(url: str) -> Iterator[tuple[Client, Client]]:
    """Return two clients."""
    with Client(url) as ours, Client(url) as theirs:
        for client in (ours, theirs):
            client.lock("warm", ttl=TTL).acquire().release()
        yield ours, theirs


def hold(client: Client, name: str) -> None:
    """Acquire a lock and release it."""
    with client.lock(name, ttl=TTL, timeout=10):
        pass


def extend(client: Client, name: str) -> None:
    """Acquire it, extend it, and release it."""
    with client.lock(name, ttl=TTL, timeout=10) as lease:
        lease.extend(TTL)


@pytest.mark.parametrize("work", [hold, extend])
def test_an_interrupt_anywhere_leaves_nothing_behind(
    clients: tuple[Client, Client], work: Callable[[Client, str], None]
) -> None:
    """After an interrupt at any place the name is free, without the help of its ttl."""
    ours, theirs = clients

    def prepare(number: int) -> Callable[[], None]:
        hold(ours, "warm")  # so that there is an idle connection: else most places are those of connecting
        return lambda: work(ours, f"{work.__name__} {number}")

    for number, where in sweep(prepare):
        if not before_the_release(where):
            assert theirs.lock(f"{work.__name__} {number}", ttl=TTL, timeout=10).acquire().release().kept, where


def test_an_interrupted_renewal_stops_no_other(clients: tuple[Client, Client]) -> None:
    """A lease whose renewal was interrupted goes on, or is lost and says so; the renewals of others go on."""
    ours, _ = clients
    other = ours.lock("of the same client", ttl=TTL).acquire()
    for at in count():
        lease = ours.lock(f"renewed {at}", ttl=TTL, timeout=10).acquire()
        where = interrupt(lease.extend, at)
        for each in (lease, other):
            try:
                each.extend()
            except (LeaseLost, OutcomeUnknown):
                assert each is lease, where
        lease.release()
        if where is None:
            break
    other.release()
