"""A lease that is lost on a real server names what the server said, or that nobody was there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tenure import Client, LeaseLost, LockEvent, StoreError
from tests.servers import RedisServer

TEST_TIMEOUT = 15.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure."""


def take_password(server: RedisServer) -> None:
    """Ask for a password from now on, also of who is connected."""
    with server.connect() as wire:
        wire.command("CONFIG", "SET", "requirepass", "hunter2")
        wire.command("CLIENT", "KILL", "TYPE", "pubsub")
        wire.command("CLIENT", "KILL", "TYPE", "normal")


TROUBLES: dict[str, tuple[Callable[[RedisServer], object], str]] = {
    "gone": (lambda server: server.kill(), "refused|closed"),
    "read-only": (lambda server: server.command("REPLICAOF", "127.0.0.1", "1"), "is a replica.*READONLY|MASTERDOWN"),
    "password": (take_password, "requires a password"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_loss_names_what_is_wrong_with_the_server(trouble: str, tmp_path: Path) -> None:
    """As text and as cause, in `check`, `on_lost` and the event."""
    break_it, said = TROUBLES[trouble]
    told: list[LeaseLost] = []
    events: list[LockEvent] = []
    with RedisServer(tmp_path) as server, Client(server.url, on_event=events.append) as client:
        lease = client.lock("name", ttl=1.5, on_lost=told.append).acquire()
        break_it(server)
        assert lease.lost.wait(TEST_TIMEOUT)
        with pytest.raises(LeaseLost, match=f"the last renewal failed: .*({said})") as caught:
            lease.check()
        assert isinstance(caught.value.__cause__, StoreError)
        lease.release()
    assert [str(error) for error in told] == [str(caught.value)]
    (lost,) = [event for event in events if event.event == "lost"]
    assert lost.detail in str(caught.value)
    assert lost.error is caught.value.__cause__
