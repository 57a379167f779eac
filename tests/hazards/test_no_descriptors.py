"""No descriptor is left for a while: the process has as many files and sockets open as it may."""

import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from tenure import Client, StoreUnavailable
from tests.hazards.helpers import TEST_TIMEOUT
from tests.servers import NatsServer, RedisServer

P = ParamSpec("P")
T = TypeVar("T")


class Refusals:
    """Refuses sockets, as the system does."""

    def __init__(self) -> None:
        self.left = 0
        """How many are still refused."""

    def of(self, make: Callable[P, T]) -> Callable[P, T]:
        """Return what makes sockets as `make` does, or refuses to."""

        def refuse(*arguments: P.args, **options: P.kwargs) -> T:
            if self.left:
                self.left -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return make(*arguments, **options)

        return refuse


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusals]:
    """Refuse as many sockets as the test says."""
    refused = Refusals()
    monkeypatch.setattr(socket, "socketpair", refused.of(socket.socketpair))
    yield refused
    assert not refused.left


def test_a_redis_is_opened_later(refusals: Refusals, redis_server: RedisServer) -> None:
    """An acquisition tries again, as if the store had not answered; one that does not wait says why."""
    with Client(redis_server.url) as client:
        refusals.left = 1
        with pytest.raises(StoreUnavailable, match="Too many open files"):
            client.lock("no descriptors").try_acquire()
        refusals.left = 2
        with client.lock("no descriptors", timeout=TEST_TIMEOUT):
            pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # asyncio's, of a loop half made
def test_a_nats_is_opened_later(refusals: Refusals, nats_server: NatsServer) -> None:
    """Its loop has a pair of sockets."""
    with Client(nats_server.url) as client:
        refusals.left = 2
        with client.lock("no descriptors", timeout=TEST_TIMEOUT):
            pass


def test_a_lock_file_says_why(refusals: Refusals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sockets are made with the session, and the next call makes them."""
    with Client(f"sqlite:///{tmp_path}/locks.db") as client:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", refusals.of(socket.socket))
            refusals.left = 1
            with pytest.raises(StoreUnavailable, match="Too many open files"):
                client.lock("name").acquire()
        with client.lock("name", timeout=0):
            pass
