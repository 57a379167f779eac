"""`tenure ls`, `show`, `wait`, `revoke` and `release`: what they do, what they print, and what is escaped."""

import functools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

import tenure
from tenure.cli import run_app
from tenure.cli.names import instant, list_names, wait_for_name
from tenure.cli.output import seconds
from tenure.cli.screen import ROWS
from tenure.contracts.messages import HolderView, NameView
from tenure.escaping import escape
from tests.cli.conftest import TEST_TIMEOUT, Command, Done, until

Here = Callable[..., Done]


def test_ls_lists_holders_and_waiters(
    command: Command, client: tenure.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name, its holder, its token, and how many wait."""
    lease = client.lock("orders").acquire()
    with ThreadPoolExecutor(1) as pool, tenure.Client(command.url) as other:
        waiter = pool.submit(other.lock("orders").acquire)
        until(lambda: client.inspect("orders").waiters, "it waits")
        assert run_app(["ls", "--url", command.url]) == 0
        row = next(line for line in capsys.readouterr().out.splitlines() if "orders" in line)
        assert "the test" in row
        assert str(lease.token) in row
        assert row.split()[-2:] == ["1", "lock"]
        lease.release()
        waiter.result(TEST_TIMEOUT).release()


def test_ls_as_json(command: Command, client: tenure.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for machines."""
    assert run_app(["ls", "--json", "--url", command.url]) == 0
    assert json.loads(capsys.readouterr().out) == []
    with client.lock("orders").acquire() as lease:
        assert run_app(["ls", "--json", "--url", command.url]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["holders"][0]["token"]) == ("orders", lease.token)


def test_show_tells_the_queue_in_order(
    command: Command, client: tenure.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Waiters are shown as they will be granted."""
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        lease = client.lock("orders").acquire()
        waiters: list[Future[tenure.Lease]] = []
        for place, owner in enumerate(("first", "second"), 1):
            other = stack.enter_context(tenure.Client(command.url, owner=owner))
            waiters.append(pool.submit(other.lock("orders").acquire))
            until(functools.partial(_as_many_wait, client, place), "it waits")
        assert run_app(["show", "orders", "--url", command.url]) == 0
        text = capsys.readouterr().out
        assert text.index("the test") < text.index("first") < text.index("second")
        assert run_app(["show", "orders", "--json", "--url", command.url]) == 0
        assert [waiter["owner"] for waiter in json.loads(capsys.readouterr().out)["waiters"]] == ["first", "second"]
        lease.release()
        for waiter in waiters:
            waiter.result(TEST_TIMEOUT).release()


def _as_many_wait(client: tenure.Client, count: int) -> bool:
    return len(client.inspect("orders").waiters) == count


def test_show_of_a_free_name(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that nobody holds is free; that is no error."""
    assert run_app(["show", "orders", "--url", command.url]) == 0
    assert capsys.readouterr().out == "free\n"


# -- a pipe and a terminal -----------------------------------------------------------------------------------

LONG = "orders:" + "x" * 300


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command print for a terminal of 80 columns."""
    monkeypatch.setattr("tenure.cli.output.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")


def test_a_name_is_one_line_of_a_pipe(here: Here, client: tenure.Client) -> None:
    """However long names and owners are: `tenure ls | grep NAME` finds a name, and `cut -f` its token."""
    with client.lock(LONG) as lease, client.lock("tab\tand\nline") as other:
        lines = here("ls").output.splitlines()
    fields = [line.split("\t") for line in lines]
    assert [field[:3] for field in fields] == [
        [LONG, "the test", str(lease.token)],
        [r"tab\tand\nline", "the test", str(other.token)],
    ]
    for _, _, _, held_for, expires_in, waiters, _ in fields:
        assert float(held_for) >= 0
        assert 0 < float(expires_in) <= 30
        assert waiters == "0"
    assert here("ls").output == ""


def test_ls_says_what_kind_a_name_is(here: Here, client: tenure.Client) -> None:
    """As far as the store tells it; `show --json` does so, too."""
    kinds: list[str] = []

    def look() -> None:
        kinds.extend(f"{line.split()[0]} {line.split()[-1]}" for line in here("ls").output.splitlines())

    client.once("report", key="1")(look)()
    with (
        client.lock("a"),
        client.semaphore("b", 2).acquire(),
        client.rwlock("c").read(),
        client.election("d").campaign("http://me"),
    ):
        look()
        assert json.loads(here("show", "b", "--json").output)["kind"] == "semaphore"
    assert sorted(kinds) == ["a lock", "b semaphore", "c rwlock", "d election", "job:report:1 job"]


def test_several_holders_are_one_line_of_a_pipe(here: Here, command: Command, client: tenure.Client) -> None:
    """A name is one line, whoever holds it; `show` has a line for each."""
    with tenure.Client(command.url, owner="other") as second:
        a, b = client.semaphore("gpu", 2).acquire(), second.semaphore("gpu", 2).acquire()
        (line,) = here("ls").output.splitlines()
        shown = [line.split("\t") for line in here("show", "gpu").output.splitlines()]
        a.release()
        b.release()
    assert line.split("\t")[:3] == ["gpu", "the test, other", f"{a.token}, {b.token}"]
    assert [fields[:3] for fields in shown] == [
        ["holder", "the test", str(a.token)],
        ["holder", "other", str(b.token)],
    ]


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_tables_and_sentences(here: Here, client: tenure.Client) -> None:
    """People read headings and durations with units."""
    assert here("ls").output == "No name is held.\n"
    assert here("ls", "a*").output == "No name that matches a* is held.\n"
    assert here("show", "orders").output == "orders is free.\n"
    lease = client.lock("orders").acquire()
    assert "Expires in" in here("ls").output
    assert "orders is held by the test." in here("show", "orders").output
    assert here("revoke", "orders").output == f"Asked the test to release orders (token {lease.token}).\n"
    assert here("release", "orders", "--force").output == f"Took orders from the test (token {lease.token}).\n"
    assert lease.release() is tenure.Outcome.TAKEN_OVER


def test_a_reader_that_leaves_ends_the_command(command: Command, client: tenure.Client) -> None:
    """`tenure ls | head -1` ends as a pipe ends everything, without a traceback."""
    with client.lock("orders"):
        listing = command.start("ls")
        assert listing.stdout is not None
        listing.stdout.close()
        assert listing.stderr is not None
        assert listing.stderr.read() == ""
        assert listing.wait(TEST_TIMEOUT) == 128 + 13


def test_ls_lists_what_matches(here: Here, client: tenure.Client) -> None:
    """Wildcards are those of a shell; a name without one is itself."""
    with client.multilock(["orders:1", "orders:22", "report"]):
        for pattern, found in (("orders:*", ["orders:1", "orders:22"]), ("*:?", ["orders:1"]), ("report", ["report"])):
            assert [line.split("\t")[0] for line in here("ls", pattern).output.splitlines()] == found
            assert [each["name"] for each in json.loads(here("ls", pattern, "--json").output)] == found
        assert here("ls", "repor").output == ""


class Shown(tenure.Client):
    """A client that notes what was printed before it looked at each name."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Note what this captures."""
        super().__init__("memory://")
        self.printed = ""
        self.before: list[str] = []
        self.capsys = capsys

    def iter_names(self, pattern: str | None = None) -> Iterator[str]:
        """List more names than a table has."""
        assert pattern is None
        yield from (f"job{number:03}" for number in range(2 * ROWS))

    def inspect(self, name: str) -> NameView:
        """Show a name that somebody holds."""
        self.printed += self.capsys.readouterr().out
        self.before.append(self.printed)
        return NameView(name, 1, 7, [HolderView("anna", 7, 1, 1.0, 2.0, 3.0)])


@pytest.mark.parametrize("as_json", [True, False])
def test_ls_prints_a_name_before_it_looks_at_the_next(capsys: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    """A long list is not waited for, and what is printed in pieces is one JSON text."""
    with Shown(capsys) as client:
        assert list_names(client, None, as_json=as_json) == 0
        for number in range(1, 2 * ROWS):
            assert f"job{number - 1:03}" in client.before[number]
        printed = client.printed + capsys.readouterr().out
        if as_json:
            assert [each["name"] for each in json.loads(printed)] == client.names()
            assert printed == json.dumps(json.loads(printed), indent=2) + "\n"
        else:
            assert [line.split("\t")[0] for line in printed.splitlines()] == client.names()


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_a_table_before_the_next_is_filled(capsys: pytest.CaptureFixture[str]) -> None:
    """Names that come late do not keep those back that are there."""
    with Shown(capsys) as client:
        assert list_names(client, None, as_json=False) == 0
        assert f"job{ROWS - 1:03}" in client.before[ROWS]
        printed = client.printed + capsys.readouterr().out
        assert all(name in printed for name in client.names())


# -- waiting, asking and taking ------------------------------------------------------------------------------


def test_wait_ends_when_nobody_holds_the_name(here: Here, command: Command, client: tenure.Client) -> None:
    """0 at once if it is free, and as soon as it is; meanwhile it is in nobody's way."""
    assert here("wait", "orders").status == 0
    with client.lock("orders"):
        waiting = command.start("wait", "orders")
        assert here("wait", "orders", "--timeout", "0.1").status == 75
        assert client.inspect("orders").waiters == []
        assert waiting.poll() is None
    assert waiting.wait(TEST_TIMEOUT) == 0
    done = json.loads(here("wait", "orders", "--json").output)
    assert (done["name"], done["holders"]) == ("orders", [])


def test_wait_tells_who_held_the_name_all_the_time(here: Here, client: tenure.Client) -> None:
    """75, and one line that names the holder."""
    with client.lock("orders"):
        done = here("wait", "orders", "--timeout", "0")
    assert (done.status, done.output) == (75, "")
    assert done.errors == "tenure: after 0 s, orders is held by the test.\n"


class Scripted:
    """A client that shows what the test says, in order; then the last for ever."""

    def __init__(self, *shown: NameView | Exception) -> None:
        self._shown = list(shown)

    def inspect(self, name: str) -> NameView:
        """Show what comes next."""
        shown = self._shown.pop(0) if len(self._shown) > 1 else self._shown[0]
        if isinstance(shown, Exception):
            raise shown
        return shown


def held_as(token: int) -> NameView:
    """Return what is shown of a name that somebody holds."""
    return NameView("orders", 1, token, [HolderView("somebody", token, 1, 1.0, 29.0, 30.0)])


@pytest.mark.parametrize(("change", "ends_with"), [(False, []), (True, [8])])
def test_wait_for_a_change(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    change: bool,
    ends_with: list[int],
) -> None:
    """With --change it ends when somebody else holds the name, though it was never seen free."""
    monkeypatch.setattr("tenure.cli.names.INTERVAL", 0.0)
    client = Scripted(held_as(7), held_as(7), held_as(8), NameView("orders", 1, 8))
    assert wait_for_name(cast("tenure.Client", client), "orders", None, change=change, as_json=True) == 0
    assert [holder["token"] for holder in json.loads(capsys.readouterr().out)["holders"]] == ends_with


def test_wait_rides_out_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is not up yet: for as long as --timeout says, and then it says what is wrong."""
    monkeypatch.setattr("tenure.cli.names.INTERVAL", 0.0)
    down = tenure.StoreUnavailable("it is down")
    comes = cast("tenure.Client", Scripted(down, down, NameView("orders", 1, 0)))
    assert wait_for_name(comes, "orders", None, change=False, as_json=False) == 0
    stays = cast("tenure.Client", Scripted(down))
    with pytest.raises(tenure.StoreUnavailable, match="it is down"):
        wait_for_name(stays, "orders", 0.05, change=False, as_json=False)


def test_what_a_lock_delay_keeps_is_not_free() -> None:
    """`wait` goes on, and `show` says for how long."""
    blocked = cast("tenure.Client", Scripted(NameView("orders", 1, 7, blocked_for=9.0)))
    with pytest.raises(tenure.LockTimeout, match=r"after 0 s, orders is blocked for everyone for 9.0 s by"):
        wait_for_name(blocked, "orders", 0, change=True, as_json=False)


def test_no_name_of_a_quarantined_store_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """`wait` goes on while the quarantine lasts, and says so if it gives up."""
    monkeypatch.setattr("tenure.cli.names.INTERVAL", 0.0)
    quarantined = NameView("orders", 1, 7, quarantined_for=9.0)
    with pytest.raises(tenure.LockTimeout, match=r"after 0 s, orders may be held: .* grants nothing for another 9.0 s"):
        wait_for_name(cast("tenure.Client", Scripted(quarantined)), "orders", 0, change=True, as_json=False)
    looks = Scripted(quarantined, quarantined, NameView("orders", 1, 7))
    assert wait_for_name(cast("tenure.Client", looks), "orders", None, change=False, as_json=False) == 0


def test_wait_ends_with_a_quarantine_that_nobody_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look begins no quarantine: what may have been forgotten is over when it was waited for as long."""
    now = [0.0]
    monkeypatch.setattr("tenure.cli.names.time.monotonic", lambda: now[0])

    def sleep(pause: float) -> None:
        now[0] += pause

    monkeypatch.setattr("tenure.cli.names.time.sleep", sleep)
    looks = cast("tenure.Client", Scripted(held_as(7), NameView("orders", 1, 7, quarantined_for=3.0)))
    assert wait_for_name(looks, "orders", None, change=False, as_json=False) == 0
    assert now[0] == 3.5  # one look while it was held


def test_revoke_asks_and_takes_nothing(here: Here, client: tenure.Client) -> None:
    """The holder is asked and keeps its lease; 1 if nobody is there to be asked."""
    asked = threading.Event()
    with client.lock("orders", on_revoke=lambda _: asked.set()) as lease:
        done = here("revoke", "orders", "--json")
        assert asked.wait(TEST_TIMEOUT)
        lease.check()
    assert done.status == 0
    assert [(each["name"], each["token"]) for each in json.loads(done.output)] == [("orders", lease.token)]
    free = here("revoke", "orders")
    assert (free.status, free.output, free.errors) == (1, "", "tenure: nobody held 'orders'.\n")


def test_release_needs_force(command: Command, client: tenure.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --force nothing is released, and the holder and the reason are given; 1 if there is no holder."""
    with client.lock("orders").acquire() as lease:
        assert run_app(["release", "orders", "--url", command.url]) == 64
        said = capsys.readouterr().err
        assert "--force" in said
        assert f"the test (token {lease.token}) may be writing just now. `--token {lease.token}` takes" in said
        lease.check()
    assert run_app(["release", "orders", "--url", command.url]) == 1
    assert capsys.readouterr().err == "tenure: nobody held 'orders'.\n"


def test_release_tells_the_victim(command: Command, client: tenure.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """The victim's lease is lost, it is told, and who it was is printed."""
    told = threading.Event()
    lease = client.lock("orders", on_lost=lambda _: told.set()).acquire()
    assert run_app(["release", "--force", "orders", "--url", command.url]) == 0
    assert told.wait(TEST_TIMEOUT)
    assert lease.lost
    assert capsys.readouterr().out == f"orders\tthe test\t{lease.token}\n"
    assert lease.release() is tenure.Outcome.TAKEN_OVER


def test_release_by_a_token_takes_it_from_that_holder_only(here: Here, client: tenure.Client) -> None:
    """Whoever was granted the name since somebody looked keeps it: 1, and nothing is done."""
    with client.lock("orders") as lease:
        other = here("release", "orders", "--token", str(lease.token - 1))
        lease.check()
    assert (other.status, other.output) == (1, "")
    assert other.errors == f"tenure: nobody held 'orders' by token {lease.token - 1}.\n"
    a, b = client.semaphore("gpu", 2).acquire(), client.semaphore("gpu", 2).acquire()
    taken = here("release", "gpu", "--token", str(a.token), "--json")
    assert (taken.status, [each["token"] for each in json.loads(taken.output)]) == (0, [a.token])
    assert (a.release(), b.release()) == (tenure.Outcome.TAKEN_OVER, tenure.Outcome.RELEASED)
    assert here("release", "gpu", "--token", "0").status == 64


def test_the_help_of_release_says_what_it_does(here: Here) -> None:
    """Before anybody takes a lock from a program that is at work."""
    said = " ".join(here("release", "--help").output.split())
    for each in (
        "`tenure release NAME --force`",
        "`tenure show NAME`",
        "lost at once",
        "nothing is done without --force or --token",
    ):
        assert each in said


def test_release_of_a_free_name(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """1 if there was nobody to take it from."""
    assert run_app(["release", "--force", "orders", "--url", command.url]) == 1
    assert "nobody held" in capsys.readouterr().err


def test_a_namespace_is_a_world_of_its_own(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the names of the namespace are listed, without it."""
    with tenure.Client(command.url, namespace="shop") as shop, shop.lock("orders").acquire():
        assert run_app(["ls", "--json", "--namespace", "shop", "--url", command.url]) == 0
        assert json.loads(capsys.readouterr().out)[0]["name"] == "orders"
        assert run_app(["ls", "--json", "--namespace", "bank", "--url", command.url]) == 0
        assert json.loads(capsys.readouterr().out) == []


EVIL = "a\x1b[2J\rb\x9b\u202e\n\x7fc"


def test_nothing_from_outside_moves_the_cursor(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in names and owners are printed as escapes, and markup is printed as it is."""
    with tenure.Client(command.url, owner=f"[red]{EVIL}") as client, client.lock(EVIL).acquire():
        for arguments in (
            ["ls"],
            ["ls", EVIL[::-1]],
            ["show", EVIL],
            ["ls", "--json"],
            ["run", EVIL, "--no-wait", "--", "true"],
            ["wait", EVIL, "--timeout", "0"],
            ["revoke", EVIL],
        ):
            # one that is refused puts the owner into its message
            assert run_app([*arguments[:1], "--url", command.url, *arguments[1:]]) in (0, 75)
            captured = capsys.readouterr()
            printed = captured.out + captured.err
            assert not set(printed) & set(EVIL) - set("abc2J[\n")
            assert arguments[-1] in ("--json", EVIL[::-1]) or "[red]" in printed


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


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command, help is printed, as a usage error."""
    assert run_app(["--version"]) == 0
    assert capsys.readouterr().out == f"tenure {tenure.__version__}\n"
    assert run_app([]) == 64
    assert "commands:" in capsys.readouterr().out


# -- log ------------------------------------------------------------------------------------------------------


def test_log_tells_what_happened(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Each grant with its token and its end, and who gave up; for a pipe, for machines, and at an instant."""
    assert run_app(["log", "orders", "--url", command.url]) == 0
    nothing = "tenure: nothing is recorded of 'orders': only clients with `Client(record=True)` leave a history.\n"
    assert capsys.readouterr() == ("", nothing)
    with tenure.Client(command.url, owner="a\ttab", record=True) as client, client.lock("orders") as lease:
        with pytest.raises(tenure.LockTimeout):
            client.lock("orders").acquire(timeout=0.01)
        token = lease.token
    assert run_app(["log", "orders", "--url", command.url]) == 0
    granted, refused = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert granted[1:4] == ["granted", str(token), "a\\ttab"]
    assert granted[6:] == ["released"]
    assert refused[1:4] == ["not granted", "", "a\\ttab"]
    assert refused[6:] == ["timeout"]
    assert run_app(["log", "orders", "--json", "--url", command.url]) == 0
    (first, _) = json.loads(capsys.readouterr().out)
    assert (first["token"], first["how"]) == (token, "released")
    for at, shown in ((first["at"], 2), ("2020-01-01T10:05", 1), ("2099-01-01T00:00+01:00", 1)):
        assert run_app(["log", "orders", "--json", "--at", at, "--url", command.url]) == 0
        assert len(json.loads(capsys.readouterr().out)) == shown
    assert run_app(["log", "orders", "--at", "half past ten", "--url", command.url]) == 64
    assert "is no instant: give a time as 10:05" in capsys.readouterr().err


def test_a_time_is_the_last_one_of_that_name() -> None:
    """Of today, or of yesterday if that is still to come."""
    now = datetime.now(UTC)
    for hour in (0, 23):
        at = instant(f"{hour:02}:59")
        assert at <= now < at + timedelta(days=1)
        assert (at.hour, at.minute) == (hour, 59)
