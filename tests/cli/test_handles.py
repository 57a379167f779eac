"""`tenure acquire`, `renew` and `release HANDLE`: leases that no process has."""

import json
from argparse import Namespace
from collections.abc import Iterator

import pytest

import tenure
from tenure.cli import run_app
from tenure.cli.commands import duration, span
from tenure.cli.hold import acquire_handle
from tenure.contracts.handles import read_handle
from tests.cli.conftest import Command


@pytest.fixture
def url(command: Command) -> str:
    """Return the URL of the store."""
    return command.url


@pytest.fixture
def client(url: str) -> Iterator[tenure.Client]:
    """Look at the store."""
    with tenure.Client(url) as client:
        yield client


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed, without its end of line."""
    return capsys.readouterr().out.strip()


def test_a_handle_is_acquired_renewed_and_released(
    url: str, client: tenure.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name is held after the command has ended, is shown with its reason, and free after the release."""
    assert run_app(["acquire", "deploy", "--for", "2h", "--reason", "a deploy", "--owner", "ann", "--url", url]) == 0
    handle = printed(capsys)
    (holder,) = client.inspect("deploy").holders
    assert (holder.owner, holder.reason, holder.detached) == ("ann", "a deploy", True)
    assert 7000 < holder.expires_in <= 7200
    assert run_app(["show", "deploy", "--url", url]) == 0
    assert printed(capsys).split("\t")[-1] == "a deploy"
    assert run_app(["renew", handle, "--for", "3h", "--url", url]) == 0
    assert client.inspect("deploy").holders[0].expires_in > 7200
    assert run_app(["release", handle, "--url", url]) == 0
    assert not client.inspect("deploy").holders
    with client.lock("deploy"):
        assert run_app(["renew", handle, "--url", url]) == 76
        assert run_app(["acquire", "deploy", "--for", "1m", "-n", "--url", url]) == 75
        assert run_app(["acquire", "deploy", "--for", "1m", "-w", "0.1", "-E", "9", "--url", url]) == 9
    assert run_app(["release", handle, "--url", url]) == 1


def test_handles_as_json(url: str, client: tenure.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for machines."""
    arguments = ["--namespace", "n", "--reason", "why", "--owner", "ann", "--json", "--url", url]
    assert run_app(["acquire", "x", "--for", "90", *arguments]) == 0
    told = json.loads(printed(capsys))
    handle = read_handle(told["handle"])
    assert told == {
        "handle": handle.text(),
        "name": "x",
        "owner": "ann",
        "reason": "why",
        "for": 90.0,
        "token": handle.token,
    }
    assert client.inspect("n:x").holders[0].token == handle.token
    assert run_app(["renew", handle.text(), "--json", "--url", url]) == 0
    assert json.loads(printed(capsys)) == {"name": "n:x", "token": handle.token, "for": 90.0}
    assert run_app(["release", handle.text(), "--json", "--url", url]) == 0
    assert json.loads(printed(capsys)) == {"name": "n:x", "token": handle.token, "outcome": "released"}


def test_an_adopted_lease_is_not_that_of_its_handle(url: str, client: tenure.Client) -> None:
    """What a program has adopted is neither renewed nor released by the handle."""
    handle = client.lock("x").acquire().detach()
    with client.adopt(handle):
        assert run_app(["renew", handle, "--url", url]) == 76
        assert run_app(["release", handle, "--url", url]) == 1


def test_a_name_may_look_like_a_handle(url: str, client: tenure.Client) -> None:
    """A name that begins as a handle does is taken by --force, and by nothing else."""
    name = "tenure-1-is-a-name"
    lease = client.lock(name).acquire()
    assert run_app(["release", name, "--url", url]) == 64
    assert run_app(["release", name, "--force", "--url", url]) == 0
    assert lease.lost.wait(10)
    lease.release()


def test_a_time_that_the_store_does_not_grant_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The error says by which part of the URL it is allowed. No server is asked."""
    assert run_app(["acquire", "x", "--for", "2h", "--url", "redis://localhost:1"]) == 64
    assert "?max_ttl=7200" in capsys.readouterr().err


def test_a_store_that_binds_leases_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An advisory lock belongs to a connection. No server is asked."""
    assert run_app(["acquire", "x", "--for", "9", "--url", "postgresql://localhost:1/x?mode=advisory"]) == 64
    assert "connection or session" in capsys.readouterr().err


def test_a_handle_that_nobody_reads_is_released(
    client: tenure.Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the handle cannot be printed, the lease is released, because nobody else could."""

    def broken(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", broken)
    mine = tenure.Client(url)
    with pytest.raises(BrokenPipeError):
        acquire_handle(mine, mine.lock("x"), Namespace(length=60.0, reason="", as_json=False))
    assert not client.inspect("x").holders


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400)])
def test_durations(text: str, seconds: float) -> None:
    """A number, with or without a unit: for options that take seconds, too."""
    assert duration(text) == seconds
    assert span(0)(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1", "1w", "0", "0h", "1h30m", "nan"])
def test_wrong_durations(text: str) -> None:
    """Everything else is refused as a wrong use."""
    assert run_app(["acquire", "x", "--for", text]) == 64
