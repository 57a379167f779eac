"""What becomes of a request when its connection ends, or its client does."""

import asyncio
import contextlib
import socket
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tenure import Client
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.etcd.errors import EtcdNotSent
from tenure.stores.etcd.gateway import Gateway
from tenure.stores.etcd.http import EtcdRequest
from tenure.stores.etcd.link import EtcdCallbacks, EtcdLink
from tenure.stores.etcd.options import EtcdDeployment
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
