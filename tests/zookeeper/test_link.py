"""The connection as its users see it, with a client of kazoo that does what the tests say."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores.zookeeper import library
from tenure.stores.zookeeper.handler import Handler
from tenure.stores.zookeeper.library import KazooClient, Result
from tenure.stores.zookeeper.link import ZooKeeperCallbacks, ZooKeeperLink
from tenure.stores.zookeeper.options import access_of
from tenure.stores.zookeeper.session import ZooKeeperSession
from tenure.stores.zookeeper.sockets import GREETING, SlowError, ZooKeeperConnection
from tests.hazards.helpers import soon
from tests.zookeeper.worlds import TEST_TIMEOUT


class Lost(Exception):
    """As kazoo's, when a connection is lost."""

    code = -4


class Answered:
    """What comes of a request."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.value: object = None
        self.exception: Exception | None = None
        self._links: list[Callable[[Any], None]] = []

    def ready(self) -> bool:
        """Tell whether it has come."""
        return self.exception is not None

    def rawlink(self, callback: Callable[[Any], None]) -> None:
        """Call this when it comes."""
        self._links.append(callback)

    def lose(self) -> None:
        """Have the connection be lost."""
        self.exception = Lost()
        for callback in self._links:
            callback(self)


class Puppet:
    """A client of kazoo that does nothing by itself."""

    def __init__(self) -> None:
        """Have a session, and no connection."""
        self.connected = False
        self.client_id: tuple[int, bytes] | None = None
        self.client_state = "CONNECTING"
        self.last_zxid = 0
        self.asked: list[Answered] = []

    def exists_async(self, path: str) -> Answered:
        """Note that it was asked."""
        assert path
        self.asked.append(Answered())
        return self.asked[-1]

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def linked(monkeypatch: pytest.MonkeyPatch) -> tuple[ZooKeeperLink, list[Puppet]]:
    """Return a link, and the clients that it makes."""
    made = puppets(monkeypatch)
    access = access_of(urlsplit("zookeeper://server"))
    return ZooKeeperLink(
        AsyncioRuntime(), access, ZooKeeperCallbacks(_ignore, _ignore, _ignore, _ignore, _ignore)
    ), made


def puppets(monkeypatch: pytest.MonkeyPatch) -> list[Puppet]:
    """Have every link make puppets from now on; return them as they are made."""
    made: list[Puppet] = []

    def make(*_: object, **__: object) -> KazooClient:
        made.append(Puppet())
        return cast("KazooClient", made[-1])

    monkeypatch.setattr(library, "make_client", make)
    return made


def _ignore(*_: object) -> None: ...


def connect(link: ZooKeeperLink, client: Puppet, session: int) -> None:
    """Have a client reach a server."""
    client.connected, client.client_id = True, (session, b"")
    link._ready(cast("KazooClient", client), session, 10.0, 0.0)


def request(client: KazooClient) -> Sequence[Result]:
    """Ask for something."""
    return [client.exists_async("/")]


def test_a_connection_that_was_lost_is_not_the_next_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hears late that the one of a client was lost which is no more holds up nobody who asks its successor."""

    async def scene() -> None:
        link, made = linked(monkeypatch)
        until = link._runtime.now() + TEST_TIMEOUT
        link._begin()
        connect(link, made[0], 1)
        asking = asyncio.create_task(link.exchange(until, request, writes=True))
        await asyncio.sleep(0)
        assert link._handler is not None
        link._handler.carry_out()
        link._let_go(StoreUnavailable("the session has ended"))
        link._begin()
        connect(link, made[1], 2)
        made[0].asked[0].lose()
        with pytest.raises(OutcomeUnknown):
            await asking
        assert await link.ready(link._runtime.now() + 0.5) is cast("KazooClient", made[1])

    asyncio.run(scene())


def test_a_client_that_was_dropped_without_a_thread_to_end_it_ends_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system started none just then: the next client that is made, and a close, try again."""
    stopped: list[Puppet] = []

    def stop(client: Puppet) -> None:
        stopped.append(client)

    monkeypatch.setattr(Puppet, "stop", stop, raising=False)
    start, refused = threading.Thread.start, 2

    def refuse(thread: threading.Thread) -> None:
        nonlocal refused
        refused -= 1
        if refused >= 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    async def scene() -> None:
        link, made = linked(monkeypatch)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            link._begin()
            link._let_go(StoreUnavailable("the session has ended"))
        await soon(lambda: sorted(map(id, stopped)) == sorted(map(id, made)), "the end of all clients")
        await link.close()

    asyncio.run(scene())
    assert len(stopped) == 3, "each client was ended once"


def test_a_request_that_is_under_way_when_its_session_is_refused_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later number of the stored form ends the session: the reason is in the error, and what is not known too."""

    async def scene() -> None:
        made = puppets(monkeypatch)
        session = ZooKeeperSession(AsyncioRuntime(), access_of(urlsplit("zookeeper://server")), _ignore)
        until = session.link._runtime.now() + TEST_TIMEOUT
        session.link._begin()
        connect(session.link, made[0], 1)
        asking = {
            writes: asyncio.create_task(session.exchange(until, request, writes=writes)) for writes in (True, False)
        }
        await asyncio.sleep(0)
        assert session.link._handler is not None
        session.link._handler.carry_out()
        await session.refuse(StoreError("it has form 2"))
        for asked in made[0].asked:
            asked.lose()
        with pytest.raises(OutcomeUnknown, match="it has form 2; a request may or may not have been carried out"):
            await asking[True]
        for refused in (asking[False], session.exchange(until, request, writes=True)):
            with pytest.raises(StoreError, match=r"it has form 2\n") as caught:
                await refused
            assert not isinstance(caught.value, OutcomeUnknown)

    asyncio.run(scene())


def test_who_asks_never_waits_for_the_thread() -> None:
    """However much is asked at once: else the thread itself, if it asks for something then, would wait for ever."""
    handler = Handler(access_of(urlsplit("zookeeper://server")), ThreadsRuntime())
    taken, asked = handler.create_socket_pair()
    sending = threading.Thread(target=lambda: [asked.send(b"\0") for _ in range(1000)], daemon=True)
    sending.start()
    sending.join(TEST_TIMEOUT)
    assert not sending.is_alive()
    for _ in range(1000):
        assert handler.select([taken], [], [], TEST_TIMEOUT) == ([taken], [], [])
        assert taken.recv(1)
    assert handler.select([taken], [], [], 0.0) == ([], [], [])
    asked.send(b"\0")
    asked.close()
    taken.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        asked.send(b"\0")


@pytest.fixture
def wired() -> Iterator[tuple[Handler, ZooKeeperConnection, socket.socket]]:
    """Return a handler, a connection that a server has greeted, and the server's end of it."""
    ours, theirs = socket.socketpair()
    handler = Handler(access_of(urlsplit("zookeeper://server")), ThreadsRuntime())
    connection = ZooKeeperConnection(ours, handler.attempts, 0.0)
    with ours, theirs:
        theirs.sendall(bytes(GREETING))
        assert connection.recv(GREETING) == bytes(GREETING)
        connection.setblocking(False)
        yield handler, connection, theirs


def test_what_has_arrived_is_received_at_once(wired: tuple[Handler, ZooKeeperConnection, socket.socket]) -> None:
    """Kazoo takes it in parts, without a wait for the socket; the end of the connection comes after all of it."""
    handler, connection, theirs = wired
    theirs.sendall(b"head and body")
    theirs.shutdown(socket.SHUT_WR)
    assert handler.select([connection], [], [], TEST_TIMEOUT) == ([connection], [], [])
    assert connection.recv(4) == b"head"
    assert connection.pending() == len(b" and body")
    assert handler.select([connection], [], [], 0.0) == ([connection], [], [])
    assert connection.recv(100) == b" and body"
    assert connection.pending() == 0
    assert handler.select([connection], [], [], TEST_TIMEOUT) == ([connection], [], [])
    assert connection.recv(4) == b""


def test_replies_are_read_while_requests_are_sent(wired: tuple[Handler, ZooKeeperConnection, socket.socket]) -> None:
    """However many requests there are: the socket is looked at before every other one at least."""
    handler, connection, theirs = wired
    taken, asked = handler.create_socket_pair()
    for _ in range(4):
        asked.send(b"\0")
    theirs.sendall(b"reply")
    found = [handler.select([connection, taken], [], [], TEST_TIMEOUT)[0] for _ in range(4)]
    assert all(taken in each for each in found)
    assert [connection in each for each in found] == [False, True, False, True]
    taken.close()


def test_a_full_connection_is_waited_for(wired: tuple[Handler, ZooKeeperConnection, socket.socket]) -> None:
    """A request that the system does not take now is sent once it does, or fails after its time."""
    handler, connection, theirs = wired
    with contextlib.suppress(BlockingIOError):
        while True:
            connection._connection.send(bytes(65536))
    assert handler.select([], [connection], [], 0.01) == ([], [connection], [])
    with pytest.raises(SlowError):
        connection.send(b"request")
    assert handler.select([], [connection], [], TEST_TIMEOUT) == ([], [connection], [])
    emptying = threading.Thread(target=theirs.recv, args=(2**24,), daemon=True)
    emptying.start()
    assert connection.send(b"request") == len(b"request")
    emptying.join(TEST_TIMEOUT)
