"""Connecting ends by its deadline, whatever the addresses of a host do, and leaves no socket behind."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator

import pytest

from tenure.runtimes.clocks import steady
from tenure.transport.dial import dial, dial_in_loop
from tenure.transport.handshake import HandshakeFailed
from tests.faults.metronome import Metronome

Address = tuple[str, int]

LONG = 60.0


class Host:
    """A host whose addresses a test lists; those that do not answer are full listeners."""

    def __init__(self) -> None:
        self.addresses: list[Address] = []
        self._sockets: list[socket.socket] = []

    def listen(self) -> Address:
        """Return an address that takes connections."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(listener)
        address: Address = listener.getsockname()
        return address

    def refuse(self) -> Address:
        """Return an address that refuses connections."""
        with socket.create_server(("127.0.0.1", 0)) as closed:
            address: Address = closed.getsockname()
        return address

    def ignore(self) -> Address:
        """Return an address that answers nothing: the queue of its listener is full."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self._sockets.append(listener)
        for _ in range(4):
            knocking = socket.socket()
            knocking.setblocking(False)
            knocking.connect_ex(listener.getsockname())
            self._sockets.append(knocking)
        address: Address = listener.getsockname()
        return address

    def look_up(self, *_arguments: object) -> list[tuple[int, int, int, str, Address]]:
        """Return its addresses, as getaddrinfo does."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in self.addresses]

    def close(self) -> None:
        """Close all sockets."""
        for each in self._sockets:
            each.close()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Make a host without addresses."""
    host = Host()
    monkeypatch.setattr(socket, "getaddrinfo", host.look_up)
    yield host
    host.close()


def within(seconds: float) -> Callable[[], float]:
    """Return what tells the time that is left of so many seconds."""
    until = time.monotonic() + seconds
    return lambda: until - time.monotonic()


def test_the_first_address_that_takes_it_is_used(host: Host) -> None:
    """One that refuses is passed over; the timeout is what is left; the connection sends at once and is kept alive."""
    host.addresses = [host.refuse(), host.listen(), host.refuse()]
    with dial("host", 1, within(LONG)) as connected:
        assert connected.getpeername() == host.addresses[1]
        assert 0.0 < (connected.gettimeout() or 0.0) <= LONG
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_dead_address_leaves_time_for_the_next(host: Host) -> None:
    """It gets its share of the time only."""
    host.addresses = [host.ignore(), host.listen()]
    with dial("host", 1, within(2.0)) as connected:
        assert connected.getpeername() == host.addresses[1]


def test_all_addresses_share_one_deadline(host: Host, metronome: Metronome) -> None:
    """Three that do not answer take as long as one would."""
    host.addresses = [host.ignore(), host.ignore(), host.ignore()]
    began, left = steady(), within(0.3)
    with pytest.raises(TimeoutError):
        dial("host", 1, left)
    assert left() < 0.1
    assert metronome.elapsed(began) < 0.6


def test_the_error_is_that_of_the_last_address(host: Host) -> None:
    """As a host that is down refuses on all of them."""
    host.addresses = [host.refuse(), host.refuse()]
    with pytest.raises(ConnectionRefusedError):
        dial("host", 1, within(LONG))


def test_a_host_without_addresses_is_told(host: Host) -> None:
    """By its name."""
    with pytest.raises(OSError, match="'host' has no address"):
        dial("host", 1, within(LONG))


@pytest.mark.parametrize("name", ["a..b", "x" * 64])
def test_a_host_that_no_resolver_takes_is_an_error_of_the_system(name: str) -> None:
    """A server may tell such a name of another one: UnicodeError would be no error of a store."""
    with pytest.raises(OSError, match="is not a name that can be looked up"):
        dial(name, 1, within(LONG))
    with pytest.raises(OSError, match="is not a name that can be looked up"):
        asyncio.run(dial_in_loop(name, 1, LONG))


def test_a_server_that_does_not_answer_tls_is_told_apart(host: Host) -> None:
    """The step that is never done is noted when it begins, and what it raises is HandshakeFailed."""
    host.addresses = [host.listen()]
    stages: list[OSError] = []
    context = ssl.create_default_context()
    with pytest.raises(HandshakeFailed):
        dial(
            "host",
            1,
            within(0.1),
            lambda connected: context.wrap_socket(connected, server_hostname="host"),
            on_stage=stages.append,
        )
    assert [type(stage) for stage in stages] == [TimeoutError, HandshakeFailed]


def test_whatever_goes_wrong_closes_the_socket(host: Host) -> None:
    """As an exception of a signal handler in the middle of the handshake."""
    host.addresses = [host.listen()]
    seen: list[socket.socket] = []

    def interrupt(connected: socket.socket) -> ssl.SSLSocket:
        seen.append(connected)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dial("host", 1, within(LONG), interrupt)
    assert seen[0].fileno() == -1


class TestInLoop:
    """An event loop's sockets are connected by the same rules."""

    def test_the_first_address_that_takes_it_is_used(self, host: Host) -> None:
        """One that refuses is passed over, and one that does not answer gets its share of the time only."""
        host.addresses = [host.refuse(), host.ignore(), host.listen()]
        with asyncio.run(dial_in_loop("host", 1, 2.0)) as connected:
            assert connected.getpeername() == host.addresses[2]
            assert connected.gettimeout() == 0.0

    def test_all_addresses_share_one_deadline(self, host: Host, metronome: Metronome) -> None:
        """Three that do not answer take as long as one would."""
        host.addresses = [host.ignore(), host.ignore(), host.ignore()]
        began = steady()
        with pytest.raises(TimeoutError):
            asyncio.run(dial_in_loop("host", 1, 0.3))
        assert metronome.elapsed(began) < 0.6

    def test_the_error_is_that_of_the_last_address(self, host: Host) -> None:
        """As a host that is down refuses on all of them."""
        host.addresses = [host.refuse(), host.refuse()]
        with pytest.raises(ConnectionRefusedError):
            asyncio.run(dial_in_loop("host", 1, LONG))

    def test_a_name_is_looked_up(self) -> None:
        """By the loop's resolver, which does not block it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with asyncio.run(dial_in_loop("localhost", port, LONG, family=socket.AF_INET)) as connected:
                assert connected.getpeername() == ("127.0.0.1", port)

    def test_a_cancelled_dial_leaves_no_socket(self, host: Host) -> None:
        """A socket that is not closed would be told as a ResourceWarning, which is an error here."""
        host.addresses = [host.ignore()]

        async def scene() -> None:
            dialling = asyncio.create_task(dial_in_loop("host", 1, LONG))
            await asyncio.sleep(0.01)
            dialling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dialling

        asyncio.run(scene())
