"""Waiting for sockets: what stands for poll() on systems without it does the same as poll()."""

import select
import socket
from collections.abc import Iterator

import pytest

from tenure.transport.polling import INVALID, READABLE, WRITABLE, Poll, SelectPoll, is_readable

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Make two connected sockets."""
    pair = socket.socketpair()
    with pair[0], pair[1]:
        yield pair


@pytest.fixture(params=["poll", "select"])
def poll(request: pytest.FixtureRequest) -> Poll:
    """Make a Poll of either kind."""
    return SelectPoll() if request.param == "select" else select.poll()


class TestPoll:
    """The two kinds behave alike, as far as Tenure goes."""

    def test_reports_what_can_be_read(self, poll: Poll, pair: Pair) -> None:
        """It reports nothing before, and the descriptor after something came."""
        ours, theirs = pair
        poll.register(ours, READABLE)
        assert poll.poll(0) == []
        theirs.send(b".")
        assert poll.poll(None) == [(ours.fileno(), READABLE)]

    def test_reports_what_can_be_written(self, poll: Poll, pair: Pair) -> None:
        """It reports that at once for a socket that takes more."""
        poll.register(pair[0], WRITABLE)
        assert poll.poll(1000) == [(pair[0].fileno(), WRITABLE)]

    def test_reports_a_closed_end(self, poll: Poll, pair: Pair) -> None:
        """It wakes up when the other end closes."""
        poll.register(pair[0], READABLE)
        pair[1].close()
        ((number, events),) = poll.poll(1000)
        assert number == pair[0].fileno()
        assert events & READABLE

    def test_waits_no_longer_than_told(self, poll: Poll, pair: Pair) -> None:
        """It returns nothing after some milliseconds."""
        poll.register(pair[0], READABLE)
        assert poll.poll(1.5) == []

    def test_forgets_a_socket(self, poll: Poll, pair: Pair) -> None:
        """It reports what was unregistered no more, and refuses to unregister it again."""
        ours, theirs = pair
        poll.register(ours, READABLE)
        theirs.send(b".")
        poll.unregister(ours)
        assert poll.poll(0) == []
        with pytest.raises(KeyError):
            poll.unregister(ours)

    def test_takes_a_number(self, poll: Poll, pair: Pair) -> None:
        """It takes a descriptor's number as well as a socket."""
        poll.register(pair[0].fileno(), READABLE)
        pair[1].send(b".")
        assert poll.poll(0) == [(pair[0].fileno(), READABLE)]

    def test_refuses_a_closed_socket(self, poll: Poll, pair: Pair) -> None:
        """It raises ValueError."""
        pair[0].close()
        with pytest.raises(ValueError, match="-1"):
            poll.register(pair[0], READABLE)

    def test_reports_a_socket_that_was_closed_meanwhile(self, poll: Poll, pair: Pair) -> None:
        """It reports that descriptor as invalid, and does not wait."""
        number = pair[0].fileno()
        poll.register(pair[0], READABLE)
        pair[0].close()
        assert poll.poll(None) == [(number, INVALID)]


def test_a_socket_is_readable_when_something_came(pair: Pair) -> None:
    """Not before."""
    assert not is_readable(pair[0])
    pair[1].send(b".")
    assert is_readable(pair[0])
