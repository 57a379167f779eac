"""What becomes of a request when its connection ends, or its client does."""

import asyncio
import contextlib
import socket
import threading
from contextlib import closing

import pytest

from tenure import Client
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.runtimes.aio import AsyncioRuntime
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.etcd.aio import EtcdAsyncLink
from tenure.stores.etcd.link import EtcdAddress, EtcdNotSent, EtcdRequest
from tenure.stores.etcd.options import EtcdDeployment
from tenure.stores.etcd.sockets import EtcdConnection, EtcdUnsent
from tenure.stores.etcd.threads import EtcdThreadLink
from tests.etcd.scenes import TEST_TIMEOUT

ASK = EtcdRequest("kv/range", b"{}")

LONG = 300.0
"""How long an operation may take that is to end long before, in seconds."""


def test_who_asks_is_told_that_the_link_was_closed() -> None:
    """At once: nobody else would tell a task that waits for an answer, and it would wait for ever."""

    async def scene(silent: socket.socket) -> None:
        address = EtcdAddress(*silent.getsockname())
        runtime = AsyncioRuntime()
        link = EtcdAsyncLink(runtime, EtcdDeployment([address]))
        asking = asyncio.create_task(link.exchange(address, ASK, runtime.now() + LONG))
        taken, _ = await asyncio.to_thread(silent.accept)
        with closing(taken):
            await asyncio.to_thread(taken.recv, 1)
            await link.close()
            with pytest.raises(OutcomeUnknown, match="the connection was closed"):
                await asyncio.wait_for(asking, TEST_TIMEOUT)

    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        asyncio.run(scene(silent))


def test_a_server_that_hangs_up_on_who_connects_was_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another may be asked instead; and whoever asks is told what all are told, and not what the socket said."""

    def hang_up(*_: object) -> None:
        raise EtcdUnsent("the server closed the connection before a request was sent")

    monkeypatch.setattr(EtcdConnection, "_send", hang_up)
    runtime = ThreadsRuntime()
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = EtcdAddress(*server.getsockname())
        link = EtcdThreadLink(runtime, EtcdDeployment([address]))
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
