"""What becomes of a request when its connection ends, or its client does."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tenure import Client
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.etcd.changes import EtcdChanges
from tenure.stores.etcd.errors import EtcdNotSent
from tenure.stores.etcd.gateway import Gateway
from tenure.stores.etcd.http import EtcdRequest, JsonObject
from tenure.stores.etcd.keys import ContenderKeys, Keys
from tenure.stores.etcd.link import EtcdCallbacks, EtcdLink
from tenure.stores.etcd.options import EtcdDeployment
from tenure.stores.etcd.reads import EtcdReads
from tenure.stores.ordered import Entry, Kind, Listing
from tenure.transport.blocking import BlockingLine, BlockingPump
from tenure.transport.errors import Unsent
from tenure.transport.link import ServerAddress
from tests.etcd.scenes import TEST_TIMEOUT
from tests.virtual import stopped_clock

if TYPE_CHECKING:
    from collections.abc import Coroutine

ASK = EtcdRequest("kv/range", b"{}")

LONG = 300.0
"""How long an operation may take that is to end long before, in seconds."""


def test_who_asks_is_told_that_the_link_was_closed() -> None:
    """At once: nobody else would tell a task that waits for an answer, and it would wait for ever."""

    async def scene(silent: socket.socket) -> None:
        address = ServerAddress(*silent.getsockname())
        runtime = AsyncioRuntime()
        link = EtcdLink(runtime, EtcdDeployment([address]))
        asking = asyncio.create_task(link.exchange(address, ASK, runtime.now() + LONG))
        taken, _ = await asyncio.to_thread(silent.accept)
        with closing(taken):
            await asyncio.to_thread(taken.recv, 1)
            await link.close()
            with pytest.raises(OutcomeUnknown, match="the connection was closed"):
                await asyncio.wait_for(asking, TEST_TIMEOUT)

    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        asyncio.run(scene(silent))


@pytest.mark.parametrize("act", ["a request that is sent once", "a request that may be repeated", "a stream"])
def test_an_address_that_never_answers_leaves_time_for_the_next(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the request may be repeated: nothing is sent before there is a connection."""
    dead, also_dead, there = (ServerAddress("127.0.0.1", port) for port in (1, 2, 3))
    tried: list[ServerAddress] = []

    class Reached(Exception):
        pass

    async def connect(_pump: object, address: ServerAddress, _tls: object, _conversation: object, until: float) -> None:
        tried.append(address)
        if address == there and until > clock():
            raise Reached
        clock.advance(max(0.0, until - clock()))
        raise TimeoutError

    monkeypatch.setattr(BlockingPump, "connect", connect)
    with stopped_clock() as clock:
        runtime = ThreadsRuntime()
        monkeypatch.setattr(runtime, "random", lambda: 0.0)
        deployment = EtcdDeployment([dead, also_dead, there])
        gateway = Gateway(runtime, deployment, EtcdLink(runtime, deployment))
        until = runtime.now() + 1.0
        work: Coroutine[None, None, object] = gateway.exchange("kv/txn", {}, until, again="repeated" in act)
        if act == "a stream":
            work.close()
            work = gateway.stream("watch", EtcdCallbacks(print, print), until)
        with pytest.raises(Reached):
            drive(work)
    assert tried == [dead, also_dead, there]


class Shared:
    """An address that another request leaves as well, just when this one finds that it is the current one."""

    def __init__(self, address: ServerAddress, leave: Callable[[], object]) -> None:
        self._address = address
        self._others = [leave]

    def __eq__(self, other: object) -> bool:
        while self._others:
            self._others.pop()()
        return self._address == other

    __hash__ = None  # type: ignore[assignment]


def test_two_requests_that_leave_a_server_at_once_pass_over_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two servers, the one that is there would be passed over."""

    def drop(*_: object) -> None:
        pass

    monkeypatch.setattr(EtcdLink, "drop_server", drop)
    runtime = ThreadsRuntime()
    deployment = EtcdDeployment([ServerAddress("127.0.0.1", port) for port in (1, 2)])
    gateway = Gateway(runtime, deployment, EtcdLink(runtime, deployment))
    dead = gateway._address()
    gateway._advance(cast("ServerAddress", Shared(dead, lambda: gateway._advance(dead))))
    assert gateway._address() != dead


def test_a_server_that_hangs_up_on_who_connects_was_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another may be asked instead; and whoever asks is told what all are told, and not what the socket said."""

    def hang_up(*_: object) -> None:
        raise Unsent("the server closed the connection before a request was sent")

    monkeypatch.setattr(BlockingLine, "send", hang_up)
    runtime = ThreadsRuntime()
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = ServerAddress(*server.getsockname())
        link = EtcdLink(runtime, EtcdDeployment([address]))
        with pytest.raises(EtcdNotSent, match="closed the connection before a request was sent"):
            drive(link.exchange(address, ASK, runtime.now() + TEST_TIMEOUT))
        drive(link.close())


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 404 Not Found\r\n\r\n404 page not found\n", b"-ERR unknown command\r\n\r\n"]
)
def test_what_is_not_etcd_is_told_as_such(said: bytes) -> None:
    """A wrong port, as that by which the servers of an ensemble talk, or of another store."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken, _ = server.accept()
                    with taken:
                        taken.recv(65536)
                        taken.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"etcd://127.0.0.1:{server.getsockname()[1]}"
        with (
            Client(url) as client,
            pytest.raises(StoreUnavailable, match=r"not a JSON gateway of etcd .*check the port"),
        ):
            client.names()
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def http(said: bytes, status: bytes = b"200 OK") -> bytes:
    """Return a reply of HTTP."""
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(said), said)


REFUSED = b'{"error": "etcdserver: invalid auth token", "code": 16}'


@pytest.mark.parametrize("form", [ThreadsRuntime, AsyncioRuntime])
@pytest.mark.parametrize(
    ("said", "told", "token"),
    [
        (http(b'{"succeeded": true}'), {"succeeded": True}, "a-token"),
        (http(b"{}"), {}, "a-token"),
        (http(b'{"error": "etcdserver: no leader", "code": 14}', b"503 Service Unavailable"), None, "a-token"),
        (http(b'{"error": "etcdserver: requested lease not found", "code": 5}', b"404 Not Found"), None, "a-token"),
        (http(REFUSED, b"401 Unauthorized"), None, ""),
        (http(b"404 page not found\n", b"404 Not Found"), None, "a-token"),
        (b"-ERR unknown command\r\n\r\n", None, "a-token"),
        (b"", None, "a-token"),
    ],
)
def test_only_a_reply_of_etcd_is_told_to_whom_it_is_owed(
    form: type[ThreadsRuntime | AsyncioRuntime], said: bytes, told: JsonObject | None, token: str
) -> None:
    """Whatever else comes is as if no reply had come. A token that the server does not know is not sent again."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answer() -> None:
            taken, _ = server.accept()
            with taken:
                for reply in (http(b"{}"), said):
                    taken.recv(65536)
                    taken.sendall(reply)
                if said:
                    taken.recv(65536)  # until the client ends it

        async def scene() -> None:
            runtime = form()
            deployment = EtcdDeployment([ServerAddress(*server.getsockname())], user="app", password="secret")  # noqa: S106 - of no server
            gateway, heard = Gateway(runtime, deployment, EtcdLink(runtime, deployment)), list[JsonObject | None]()
            until = runtime.now() + TEST_TIMEOUT
            assert not gateway.send("kv/txn", {}, until, heard.append), "it has to log in first"
            gateway._token = "a-token"  # noqa: S105
            assert not gateway.send("kv/txn", {}, until, heard.append), "it has no connection"
            await gateway.exchange("kv/range", {}, until)
            assert gateway.send("kv/txn", {}, until, heard.append)
            while not heard and runtime.now() < until:
                gateway.collect_replies()
                await runtime.sleep(0.002)
            assert heard == [told]
            assert gateway._token == token
            await gateway._link.close()

        thread = threading.Thread(target=answer)
        thread.start()
        if form is ThreadsRuntime:
            drive(scene())
        else:
            asyncio.run(scene())
        thread.join()


NOTHING_TOLD: list[JsonObject | None] = [
    None,
    {},
    {"succeeded": False},
    {"responses": 3},
    {"responses": [{}]},
    {"responses": [{"response_range": {}}]},
]


@pytest.mark.parametrize("said", NOTHING_TOLD)
def test_a_reply_that_tells_nothing_of_a_removal_is_none(said: JsonObject | None) -> None:
    """So the release is repeated, as if no reply had come."""
    runtime, heard, keys = ThreadsRuntime(), list[tuple[bool, Listing | None]](), Keys("tenure")

    def send(_path: str, _body: JsonObject, _until: float, told: Callable[[JsonObject | None], None]) -> bool:
        told(said)
        return True

    def hear(removed: bool, listing: Listing | None) -> None:
        heard.append((removed, listing))

    gateway: Any = SimpleNamespace(send=send)
    nothing: Any = None
    reads = EtcdReads(runtime, gateway, keys, nothing)
    changes = EtcdChanges(runtime, gateway, keys, nothing, reads, contender_keys=ContenderKeys())
    key = changes._contender_keys.take(("name", "request"), "session")
    changes._contender_keys.settle(("name", "request"), key)
    entry = Entry(Kind.CONTENDER, "request", 7, 1, 1, 0, 7, key.tail)
    assert changes.send_removal("name", entry, 1.0, hear)
    assert heard == [(False, None)]
