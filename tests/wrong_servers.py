"""Servers that are not what a URL says, and what a client of each colour says of them."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from tenure import AsyncClient, Client, StoreError
from tests.faults.scenes import API_FORMS

HOST = "127.0.0.1"


def _nothing() -> None: ...


def complaint(form: str, url: str, then: Callable[[], None] = _nothing, operation_timeout: float = 1.0) -> StoreError:
    """Return the error of who locks there and tries once; `then` is called before the client is closed."""
    if form == API_FORMS[0]:
        with Client(url, operation_timeout=operation_timeout, retry_for=0) as client:
            error = _caught(lambda: client.lock("wrong").acquire())
            then()
            return error
    return asyncio.run(_complaint(url, then, operation_timeout))


async def _complaint(url: str, then: Callable[[], None], operation_timeout: float) -> StoreError:
    async with AsyncClient(url, operation_timeout=operation_timeout, retry_for=0) as client:
        try:
            await client.lock("wrong").acquire()
        except StoreError as error:
            then()
            return error
    raise AssertionError("this should be the wrong server")


def _caught(work: Callable[[], object]) -> StoreError:
    try:
        work()
    except StoreError as error:
        return error
    raise AssertionError("this should be the wrong server")


@contextmanager
def silent() -> Generator[socket.socket, None, None]:
    """Run a server that takes connections and never says a word."""
    with socket.create_server((HOST, 0)) as server:
        yield server


@contextmanager
def saying(words: bytes | None, tls: ssl.SSLContext | None = None) -> Generator[int, None, None]:
    """Run a server that says something of its own and closes the connection; give its port. None: it waits instead."""
    with socket.create_server((HOST, 0)) as server:
        over = threading.Event()
        thread = threading.Thread(target=_say, args=(server, words, tls, over), daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            over.set()
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join(10.0)


def _say(server: socket.socket, words: bytes | None, tls: ssl.SSLContext | None, over: threading.Event) -> None:
    with suppress(OSError):
        while True:
            taken, _ = server.accept()
            with suppress(OSError), tls.wrap_socket(taken, server_side=True) if tls else taken as said:
                said.recv(65536)
                if words is None:
                    over.wait()
                else:
                    said.sendall(words)


def closed_port() -> int:
    """Return a port where nobody listens."""
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])
