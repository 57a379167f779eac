"""The thread that carries a stream."""

import socket
from threading import Event

from tenure.runtimes import clocks
from tenure.stores.etcd.http import EtcdRequest, HttpConversation, JsonObject, piece
from tenure.stores.etcd.link import EtcdStream
from tenure.transport.blocking import BlockingLine
from tenure.transport.link import ServerAddress
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
    conversation = HttpConversation(ServerAddress("server", 2379))
    line = BlockingLine(here, conversation, clocks.steady)
    heard, told, ended = list[JsonObject](), Event(), Event()

    def hear(said: JsonObject) -> None:
        heard.append(said)
        told.set()

    head = conversation.begin(EtcdRequest("watch", b""))
    listening = line.listen(head, lambda reply: hear(reply.said), ended.set, clocks.steady() + TEST_TIMEOUT)
    stream = EtcdStream(listening)
    try:
        for number in range(50):
            stream.say(PIECE + b"%d" % number)
        came = b""
        while not came.endswith(b"\r\n\r\n"):
            came += there.recv(1)
        there.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + piece(b'{"result":1}\n'))
        assert told.wait(TEST_TIMEOUT)
        expected = b"".join(piece(PIECE + b"%d" % number) for number in range(50))
        assert received(there, len(expected)) == expected
        assert heard == [{"result": 1}]
        there.close()
        assert ended.wait(TEST_TIMEOUT)
        stream.say(b"to nobody")
    finally:
        listening.join()
        there.close()
