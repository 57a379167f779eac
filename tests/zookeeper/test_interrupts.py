"""An interrupt (a signal handler that raises) does no harm to the connection, of which kazoo has a part."""

import threading
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tenure import Client, TenureError
from tenure.runtimes.threads import ThreadFlag, ThreadsRuntime
from tenure.stores.zookeeper.handler import Handler
from tenure.stores.zookeeper.options import access_of
from tests.hazards.helpers import Script
from tests.hazards.interrupting import before_the_release, sweep
from tests.servers import ZooKeeperServer

TTL = 100.0
"""Far longer than it takes to get what is free."""

TEST_TIMEOUT = 25.0
"""How long to wait for what is free, or about to be, in seconds; how long a request may take."""

SWEEP = 280.0
"""How long all interrupts may take, in seconds."""

STRIDE = 6
"""How many places of an interrupt are passed over: there are more than a thousand."""


class Harm(Exception):
    """Who asked next got no answer."""


def interrupt_requests(url: str, patience: float = TEST_TIMEOUT) -> int:
    """Interrupt a client that is connected wherever it asks; return how often. Whoever asks next is to be answered."""
    count = 0
    with Client(url, operation_timeout=patience, retry_for=0.0) as client:

        def take(number: int) -> None:
            client.lock(f"name {number}", ttl=TTL, timeout=patience).acquire().release()

        take(-1)
        where = "not yet"
        try:
            for number, where in sweep(lambda at: lambda: take(at), stride=STRIDE):
                take(-2 if before_the_release(where) else number)
                count += 1
        except TenureError as error:
            raise Harm(f"interrupted in {where}: {error}") from error
    return count


def interrupt_connecting(url: str) -> int:
    """Interrupt clients wherever they connect; return how many. Whoever asks such a client next is to be answered."""
    clients: list[Client] = []

    def work(at: int) -> Callable[[], object]:
        clients.append(Client(url, operation_timeout=TEST_TIMEOUT))
        return clients[-1].lock(f"name {at}", ttl=TTL, timeout=TEST_TIMEOUT).acquire

    for number, where in sweep(work, stride=STRIDE):
        with clients[-1] as client:
            try:
                client.lock(f"another {number}", ttl=TTL, timeout=TEST_TIMEOUT).acquire().release()
            except TenureError as error:
                raise Harm(f"interrupted in {where}: {error}") from error
    clients[-1].close()
    return len(clients)


def at_once(_: Handler, action: Callable[[], object]) -> None:
    """Ask kazoo in the thread that asks, as anybody would."""
    action()


def interrupt_kazoo(url: str) -> int:
    """Interrupt a client that asks kazoo by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "post", at_once)
        return interrupt_requests(url, 0.5)


BODY = """
import sys, warnings
from tests.zookeeper import test_interrupts
warnings.simplefilter("ignore")
print(getattr(test_interrupts, sys.argv[1])(sys.argv[2]))
"""
"""In a process of its own: in the start of a thread, an interrupt may leave a mutex of CPython's locked."""


@pytest.mark.parametrize("look", [interrupt_requests, interrupt_connecting], ids=lambda look: look.__name__)
def test_an_interrupt_leaves_the_connection_whole(
    look: Callable[[str], int], zookeeper_server: ZooKeeperServer, space: str
) -> None:
    """Wherever it comes, whoever asks next is answered, and nobody keeps the name."""
    said, errors = Script(BODY, look.__name__, f"{zookeeper_server.url}/{space}").end(SWEEP)
    assert said.strip().isdecimal(), errors
    assert int(said) > 1


def test_who_asks_kazoo_by_itself_is_found(zookeeper_server: ZooKeeperServer, space: str) -> None:
    """Planted: an interrupt comes in the middle of a request of kazoo's."""
    script = Script(BODY, interrupt_kazoo.__name__, f"{zookeeper_server.url}/{space}")
    said, errors = script.end(SWEEP)
    assert said == ""
    assert "Harm: interrupted in" in errors


@pytest.mark.parametrize("name", ["_hurried", "event_object"])
def test_an_interrupted_flag_can_be_used_again(name: str) -> None:
    """A request that waits for a server sets such a flag, as does the start of kazoo; kazoo's thread needs it later."""

    def use(at: int) -> Callable[[], object]:
        handler = Handler(access_of(urlsplit("zookeeper://server")), ThreadsRuntime())
        flags[at] = handler.event_object() if name == "event_object" else handler._hurried
        return flags[at].set

    def use_again(at: int) -> None:
        flags[at].clear()
        flags[at].set()

    flags: dict[int, ThreadFlag] = {}
    places = list(sweep(use))
    assert places
    for at, where in places:
        thread = threading.Thread(target=use_again, args=(at,), daemon=True)
        thread.start()
        thread.join(TEST_TIMEOUT)
        assert not thread.is_alive(), where
