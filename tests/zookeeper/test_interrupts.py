"""An interrupt (a signal handler that raises) does no harm to the connection, of which kazoo has a part."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Client, HoldfastError
from holdfast.stores.zookeeper.handler import Handler
from tests.hazards.interrupting import sweep
from tests.servers import ZooKeeperServer

TTL = 30.0
"""Far longer than it takes to get what is free."""

PATIENCE = 5.0
"""How long to wait for what is free, or about to be, in seconds; how long a request may take."""

STRIDE = 3
"""How many places of an interrupt are passed over: there are more than a thousand."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # a lease is dropped where the interrupt came
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # or where Python swallows it
]


def look_for_harm(url: str, patience: float) -> int:
    """Interrupt a client that is connected wherever it asks; return how often. Whoever asks next is to be answered."""
    count = 0
    with Client(url, operation_timeout=patience, retry_for=0.0) as client:

        def take(number: int) -> None:
            client.lock(f"name {number}", TTL, patience).acquire().release()

        take(-1)
        for number, where in sweep(lambda at: lambda: take(at), stride=STRIDE):
            try:
                take(number)
            except HoldfastError as error:
                pytest.fail(f"interrupted at {number}, {where}: {error}")
            count += 1
    return count


def test_an_interrupt_anywhere_leaves_the_connection_whole(zookeeper_server: ZooKeeperServer, space: str) -> None:
    """And nobody keeps the name."""
    assert look_for_harm(f"{zookeeper_server.url}/{space}", PATIENCE) > 0


def test_an_interrupt_while_it_is_connected(zookeeper_server: ZooKeeperServer, space: str) -> None:
    """A client whose first request was interrupted serves the next, or is told that there is none to serve it."""
    clients: list[Client] = []

    def work(at: int) -> Callable[[], object]:
        client = Client(f"{zookeeper_server.url}/{space}", operation_timeout=PATIENCE)
        clients.append(client)
        return client.lock(f"name {at}", TTL, PATIENCE).acquire

    for number, where in sweep(work, stride=STRIDE):
        with clients[-1] as client:
            try:
                client.lock(f"another {number}", TTL, PATIENCE).acquire().release()
            except HoldfastError as error:
                pytest.fail(f"interrupted at {number}, {where}: {error}")
    clients[-1].close()


def at_once(_: Handler, action: Callable[[], Any]) -> None:
    """Ask kazoo in the thread that asks, as anybody would."""
    action()


def test_who_asks_kazoo_by_itself_is_found(
    zookeeper_server: ZooKeeperServer, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: an interrupt comes in the middle of a request of kazoo's."""
    monkeypatch.setattr(Handler, "post", at_once)
    with pytest.raises(pytest.fail.Exception, match="interrupted"):
        look_for_harm(f"{zookeeper_server.url}/{space}", 0.5)
