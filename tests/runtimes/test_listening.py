"""The thread that listens for notifications ends soon after its client is closed."""

import socket
import threading
from contextlib import closing

import pytest

from tenure.runtimes.threads import ThreadsRuntime
from tests.hazards.helpers import TEST_TIMEOUT, eventually


def test_a_callback_that_blocks_does_not_block_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread ends when the callback returns, and takes nothing more."""
    monkeypatch.setattr("tenure.runtimes.threads.CLOSING", 0.01)
    taken: list[bytes] = []
    begun, go_on = threading.Event(), threading.Event()

    def receive(message: bytes) -> None:
        taken.append(message)
        begun.set()
        go_on.wait(2 * TEST_TIMEOUT)

    before = set(threading.enumerate())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with closing(ours), closing(theirs):
        stop = ThreadsRuntime().listen(ours, receive)
        (listener,) = set(threading.enumerate()) - before
        theirs.send(b"first")
        theirs.send(b"second")
        assert begun.wait(TEST_TIMEOUT)
        ending = threading.Thread(target=stop, daemon=True)
        ending.start()
        eventually(lambda: not ending.is_alive(), "the end of the wait")
        go_on.set()
        eventually(lambda: not listener.is_alive(), "the end of the thread")
    assert taken == [b"first"]
