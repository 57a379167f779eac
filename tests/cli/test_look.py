"""`holdfast ls`, `show` and `release`, what they print, and what is escaped."""

import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import holdfast
from holdfast.cli.app import run_app
from holdfast.cli.say import seconds
from holdfast.escaping import escape
from tests.cli.conftest import PATIENCE, Command, Done, until


def test_ls_lists_holders_and_waiters(
    command: Command, client: holdfast.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name, its holder, its token, and how many wait."""
    lease = client.lock("orders").acquire()
    with ThreadPoolExecutor(1) as pool, holdfast.Client(command.url) as other:
        waiter = pool.submit(other.lock("orders").acquire)
        until(lambda: client.inspect("orders").waiters, "it waits")
        assert run_app(["ls", "--url", command.url]) == 0
        row = next(line for line in capsys.readouterr().out.splitlines() if "orders" in line)
        assert "the test" in row
        assert str(lease.token) in row
        assert row.split()[-1] == "1"
        lease.release()
        waiter.result(PATIENCE).release()


def test_ls_as_json(command: Command, client: holdfast.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for machines."""
    assert run_app(["ls", "--json", "--url", command.url]) == 0
    assert json.loads(capsys.readouterr().out) == []
    with client.lock("orders").acquire() as lease:
        assert run_app(["ls", "--json", "--url", command.url]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["holders"][0]["token"]) == ("orders", lease.token)


def test_show_tells_the_queue_in_order(
    command: Command, client: holdfast.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Waiters are shown as they will be granted."""
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        lease = client.lock("orders").acquire()
        waiters: list[Future[holdfast.Lease]] = []
        for place, owner in enumerate(("first", "second"), 1):
            other = stack.enter_context(holdfast.Client(command.url, owner=owner))
            waiters.append(pool.submit(other.lock("orders").acquire))
            until(functools.partial(_as_many_wait, client, place), "it waits")
        assert run_app(["show", "orders", "--url", command.url]) == 0
        text = capsys.readouterr().out
        assert text.index("the test") < text.index("first") < text.index("second")
        assert run_app(["show", "orders", "--json", "--url", command.url]) == 0
        assert [waiter["owner"] for waiter in json.loads(capsys.readouterr().out)["waiters"]] == ["first", "second"]
        lease.release()
        for waiter in waiters:
            waiter.result(PATIENCE).release()


def _as_many_wait(client: holdfast.Client, count: int) -> bool:
    return len(client.inspect("orders").waiters) == count


def test_show_of_a_free_name(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that nobody holds is free; that is no error."""
    assert run_app(["show", "orders", "--url", command.url]) == 0
    assert capsys.readouterr().out == "orders is free.\n"


def test_release_needs_force(command: Command, client: holdfast.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --force nothing is released, and the reason is given."""
    with client.lock("orders").acquire() as lease:
        assert run_app(["release", "orders", "--url", command.url]) == 64
        said = capsys.readouterr().err
        assert "--force" in said
        assert "`holdfast show orders` tells who it is" in said
        lease.check()


def test_release_tells_the_victim(
    command: Command, client: holdfast.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """The victim's lease is lost, it is told, and who it was is printed."""
    told = threading.Event()
    lease = client.lock("orders", on_lost=lambda _: told.set()).acquire()
    assert run_app(["release", "--force", "orders", "--url", command.url]) == 0
    assert told.wait(PATIENCE)
    assert lease.lost
    assert f"from the test (token {lease.token})" in capsys.readouterr().out
    assert lease.release() is holdfast.Outcome.TAKEN_OVER


def test_the_help_of_release_says_what_it_does(here: Callable[..., Done]) -> None:
    """Before anybody takes a lock from a program that is at work."""
    said = " ".join(here("release", "--help").output.split())
    for each in ("`holdfast release NAME --force`", "`holdfast show NAME`", "lost at once", "without --force nothing"):
        assert each in said


def test_release_of_a_free_name(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """1 if there was nobody to take it from."""
    assert run_app(["release", "--force", "orders", "--url", command.url]) == 1
    assert "nobody held" in capsys.readouterr().err


def test_a_namespace_is_a_world_of_its_own(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the names of the namespace are listed, without it."""
    with holdfast.Client(command.url, namespace="shop") as shop, shop.lock("orders").acquire():
        assert run_app(["ls", "--json", "--namespace", "shop", "--url", command.url]) == 0
        assert json.loads(capsys.readouterr().out)[0]["name"] == "orders"
        assert run_app(["ls", "--json", "--namespace", "bank", "--url", command.url]) == 0
        assert json.loads(capsys.readouterr().out) == []


EVIL = "a\x1b[2J\rb\x9b\u202e\n\x7fc"


def test_nothing_from_outside_moves_the_cursor(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in names and owners are printed as escapes, and markup is printed as it is."""
    with holdfast.Client(command.url, owner=f"[red]{EVIL}") as client, client.lock(EVIL).acquire():
        for arguments in (["ls"], ["show", EVIL], ["ls", "--json"], ["run", EVIL, "--no-wait", "--", "true"]):
            # one that is refused puts the owner into its message
            assert run_app([*arguments[:1], "--url", command.url, *arguments[1:]]) in (0, 75)
            captured = capsys.readouterr()
            printed = captured.out + captured.err
            assert not set(printed) & set(EVIL) - set("abc2J[\n")
            assert arguments[-1] == "--json" or "[red]" in printed


@pytest.mark.parametrize(
    ("text", "escaped"), [("plain é 锁", "plain é 锁"), ("\t\x00", r"\t\x00"), ("\u2028\udcff", r"\u2028\udcff")]
)
def test_escape(text: str, escaped: str) -> None:
    """What can be seen is left alone."""
    assert escape(text) == escaped


@pytest.mark.parametrize(("duration", "text"), [(1.25, "1.2 s"), (61.0, "1 min 01 s"), (3660.0, "1 h 01 min")])
def test_durations(duration: float, text: str) -> None:
    """Durations are for people."""
    assert seconds(duration) == text


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra(missing: str) -> None:
    """A library without its command says what to install, in one line."""
    script = f"import sys; sys.modules[{missing!r}] = None; from holdfast.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 2
    assert "pip install 'holdfast[cli]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command, help is printed, as a usage error."""
    assert run_app(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {holdfast.__version__}\n"
    assert run_app([]) == 64
    assert "Commands:" in capsys.readouterr().out
