"""The thread that carries the streams of a client."""

import socket
from threading import Event

from tenure.stores.etcd.http import piece
from tenure.stores.etcd.link import EtcdAddress, EtcdHearing, EtcdRequest, Said
from tenure.stores.etcd.listener import EtcdListener
from tenure.stores.etcd.sockets import EtcdConnection
from tests.etcd.scenes import TEST_TIMEOUT

PIECE = b"x" * 100_000


def received(end: socket.socket, count: int) -> bytes:
    """Receive so many bytes."""
    came = b""
    while len(came) < count:
        came += end.recv(count - len(came))
    return came


def test_what_a_server_does_not_take_at_once_is_said_later() -> None:
    """Nobody waits for that, all of it comes in its order, and what the server says is heard meanwhile."""
    here, there = socket.socketpair()
    there.settimeout(TEST_TIMEOUT)
    connection = EtcdConnection(here, EtcdAddress("server"))
    connection.begin(EtcdRequest("watch", b""), lambda: TEST_TIMEOUT)
    listener = EtcdListener()
    heard, told, ended = list[Said](), Event(), Event()

    def hear(said: Said) -> None:
        heard.append(said)
        told.set()

    try:
        stream = listener.hear(connection, EtcdHearing(hear, ended.set))
        assert stream is not None
        for number in range(50):
            stream.say(PIECE + b"%d" % number)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += there.recv(1)
        there.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + piece(b'{"result":1}\n'))
        assert told.wait(TEST_TIMEOUT)
        expected = b"".join(piece(PIECE + b"%d" % number) for number in range(50))
        assert received(there, len(expected)) == expected
        assert heard == [{"result": 1}]
        there.close()
        assert ended.wait(TEST_TIMEOUT)
        stream.say(b"to nobody")
    finally:
        listener.close()
        there.close()
