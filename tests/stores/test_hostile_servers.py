"""A server that announces or sends more than any reply has is left at once, before its bytes take memory."""

import socket
import struct
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tenure import StoreError
from tenure.contracts.limits import LONGEST_REPLY
from tests.faults.scenes import API_FORMS
from tests.wrong_servers import HOST, complaint

LONG = 120.0
"""An `operation_timeout` that ends nothing here, in seconds."""

UNDER_WAY = 2**20 + sum(int(Path(f"/proc/sys/net/ipv4/tcp_{way}mem").read_text().split()[2]) for way in "rw")
"""More bytes than this kernel buffers for a receiver, who may have left, and for a sender."""

PIECE = b"x" * 65536
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

HOSTILE = {
    "redis text": ("redis://", b"$1073741824\r\n", PIECE),
    "redis line": ("redis://", b"+", PIECE),
    "redis array": ("redis://", b"*2000000000\r\n", b":1\r\n" * 10000),
    "redis array in an array": ("redis://", b"*2\r\n:1\r\n*2000000000\r\n", b":1\r\n" * 10000),
    "redis array of texts": ("redis://", b"*900000\r\n", b"$65536\r\n" + PIECE + b"\r\n"),
    "redis with a login": ("redis://user:word@", b"$1073741824\r\n", PIECE),
    "redis array with a login": ("redis://user:word@", b"*2000000000\r\n", b":1\r\n" * 10000),
    "etcd length": ("etcd://", b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n", PIECE),
    "etcd chunk": ("etcd://", CHUNKED + b"7fffffff\r\n", PIECE),
    "etcd chunks": ("etcd://", CHUNKED, b"10000\r\n" + PIECE + b"\r\n"),
    "etcd without a length": ("etcd://", b"HTTP/1.1 200 OK\r\n\r\n", PIECE),
    "zookeeper": ("zookeeper://", struct.pack(">I", 0x7FFFFFFF), PIECE),
}
"""The scheme of a URL, and what a server begins its reply with, and goes on with for ever."""


class Counted:
    """How much a server has sent on the connection that took most."""

    most = 0


@contextmanager
def streaming(first: bytes, more: bytes) -> Generator[tuple[int, Counted], None, None]:
    """Run a server that answers the first bytes by an endless reply; give its port, and what it has sent."""
    sent = Counted()

    def answer(taken: socket.socket) -> None:
        with suppress(OSError), taken:
            taken.recv(65536)
            taken.sendall(first)
            total = len(first)
            while True:
                total += taken.send(more)
                sent.most = max(sent.most, total)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server((HOST, 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1]), sent
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10.0)


@pytest.mark.parametrize("form", API_FORMS)
@pytest.mark.parametrize("kind", HOSTILE)
def test_an_endless_reply_is_left_before_it_takes_memory(form: str, kind: str) -> None:
    """It ends by the length, long before the operation's time is over, and with a StoreError."""
    scheme, first, more = HOSTILE[kind]
    with streaming(first, more) as (port, sent):
        began = time.monotonic()
        error = complaint(form, f"{scheme}{HOST}:{port}", operation_timeout=LONG)
        assert time.monotonic() < began + LONG
    assert isinstance(error, StoreError)
    assert sent.most < LONGEST_REPLY + UNDER_WAY


@pytest.mark.parametrize("form", API_FORMS)
def test_json_that_is_nested_deeply_is_a_store_error(form: str) -> None:
    """It is told as a reply of a server that is no gateway of etcd."""
    body = b"[" * 400_000
    with streaming(b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n", body) as (port, _):
        error = complaint(form, f"etcd://{HOST}:{port}", operation_timeout=LONG)
    assert "is not a JSON gateway of etcd (the answer is nested too deeply)" in str(error)
