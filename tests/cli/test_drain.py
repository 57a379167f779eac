"""`tenure drain --owner HOST`: asks the holders of a host, and says who still holds what."""

import json
import threading
from collections.abc import Iterator

import pytest

import tenure
from tenure.cli import run_app
from tests.cli.conftest import Command


@pytest.fixture
def hosts(command: Command) -> Iterator[tuple[tenure.Client, tenure.Client]]:
    """Return a client on each of two hosts."""
    with tenure.Client(command.url, owner="one/1") as one, tenure.Client(command.url, owner="one-more/1") as other:
        yield one, other


def test_the_holders_of_a_host_are_asked(
    command: Command, hosts: tuple[tenure.Client, tenure.Client], capsys: pytest.CaptureFixture[str]
) -> None:
    """Those who release do so at once; those of other hosts are left alone."""
    asked = threading.Event()
    theirs = hosts[1].lock("theirs").acquire()

    def hold() -> None:
        with hosts[0].lock("ours", on_revoke=lambda _: asked.set()):
            held.set()
            asked.wait()

    held, thread = threading.Event(), threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert run_app(["drain", "--owner", "one", "--timeout", "60s", "--url", command.url]) == 0
    thread.join()
    assert capsys.readouterr().out == ""
    theirs.check()
    assert not theirs.revoking
    theirs.release()


def test_who_still_holds_is_told(
    command: Command, hosts: tuple[tenure.Client, tenure.Client], capsys: pytest.CaptureFixture[str]
) -> None:
    """A holder that goes on, and a lease that only a handle has, are printed when the time is over."""
    with hosts[0].lock("ours").acquire() as lease:
        handle = hosts[0].lock("nobody's").acquire().detach(reason="why")
        assert run_app(["drain", "--owner", "one", "-w", "0.5", "--url", command.url]) == 75
        printed = capsys.readouterr()
        assert sorted(line.split("\t")[:2] for line in printed.out.splitlines()) == [
            ["nobody's", "one/1"],
            ["ours", "one/1"],
        ]
        assert "one still holds 2" in printed.err
        assert lease.revoking
        assert run_app(["drain", "--owner", "one/1", "-w", "0.5", "--json", "--url", command.url]) == 75
        told = json.loads(capsys.readouterr().out)
        assert {(each["name"], each["detached"]) for each in told} == {("nobody's", True), ("ours", False)}
    assert run_app(["release", handle, "--url", command.url]) == 0
    assert run_app(["drain", "--owner", "one", "-w", "0.5", "--json", "--url", command.url]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == []
    assert printed.err == "tenure: no holder has the owner 'one', or one that begins with 'one/'.\n"
