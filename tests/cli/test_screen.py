"""`tenure top` and `--watch` on a real pseudo terminal: what is drawn, what keys do, and how the terminal is left."""

import fcntl
import functools
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import tenure
from tests.cli.conftest import TEST_TIMEOUT, Done, until
from tests.servers.redis import RedisServer

LINES = 16
BOOT = """import fcntl, importlib, inspect, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
name, right, wrong = sys.argv[1:4]
del sys.argv[1:4]
if name:
    module = importlib.import_module(name)
    source = inspect.getsource(module)
    assert source.count(right) == 1, right
    exec(compile(source.replace(right, wrong), name, "exec"), vars(module))
from tenure.cli import main
main()"""
"""Makes the terminal the one whose ^C ends the command, plants a bug in a module if it is to, and is the command."""

NO_BUG = ("", "", "")

EVIL = "evil\x1b[2J\rname\x9b\u202e\n[red]:smile:[/red]"
SHOWN = r"evil\x1b[2J\rname\x9b\u202e\n[red]:smile:[/red]"


class Terminal:
    """A pseudo terminal in which the command runs."""

    def __init__(self, url: str, *arguments: str, columns: int, bug: tuple[str, str, str]) -> None:
        """Start `tenure ARGUMENTS`."""
        self._ours, self._theirs = pty.openpty()
        self.resize(columns)
        self.before = termios.tcgetattr(self._theirs)
        self.printed = ""
        environment = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES", "NO_COLOR"}}
        self.process = subprocess.Popen(
            [sys.executable, "-c", BOOT, *bug, *arguments],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**environment, "TERM": "xterm", "TENURE_URL": url},
            start_new_session=True,
        )
        self._gone = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while not self._gone.is_set():
            if select.select([self._ours], [], [], 0.05)[0]:
                self.printed += os.read(self._ours, 65_536).decode(errors="replace")

    def resize(self, columns: int) -> None:
        """Give the terminal a width."""
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Type keys."""
        os.write(self._ours, keys.encode())

    @property
    def screen(self) -> list[str]:
        """The lines that were drawn last."""
        last = self.printed.rpartition("\x1b[H")[2]
        return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", last).split("\n")]

    def awaits(self, *texts: str, without: str = "\0") -> list[str]:
        """Wait until one screen has all of these texts, and not another one; return it."""

        def shown() -> list[str]:
            screen = self.screen
            text = " ".join(screen)
            return screen if all(each in text for each in texts) and without not in text else []

        try:
            until(shown, f"the screen has {texts}")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *self.screen])) from error
        return shown() or self.screen

    def selected(self) -> str:
        """Return the row that is selected."""
        last = self.printed.rpartition("\x1b[H")[2]
        return " ".join(line for line in last.split("\n") if re.search(r"\x1b\[(\d+;)*7m", line))

    def end(self) -> int:
        """Wait for the end; return the status. The terminal must be as it was."""
        status = self.process.wait(TEST_TIMEOUT)
        assert termios.tcgetattr(self._theirs) == self.before
        until(lambda: self.printed.rfind("\x1b[?1049l") > self.printed.rfind("\x1b[?1049h") > -1, "the screen is left")
        assert self.printed.rfind("\x1b[?25h") > self.printed.rfind("\x1b[?25l"), "the cursor is shown"
        return status

    def hang_up(self) -> int:
        """Go away, as a window that is closed; return the status."""
        self._gone.set()
        self._reader.join(TEST_TIMEOUT)
        os.close(self._theirs)
        os.close(self._ours)
        return self.process.wait(TEST_TIMEOUT)

    def clean_up(self) -> None:
        """End what a test left."""
        if not self._gone.is_set():
            if self.process.poll() is None:
                self.process.kill()
            self.hang_up()


Start = Callable[..., Terminal]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a fresh lock file."""
    return f"sqlite://{tmp_path}/locks.db"


@pytest.fixture
def start(url: str, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Yield what starts a command in a terminal; the parameter is a bug."""
    bug: tuple[str, str, str] = getattr(request, "param", NO_BUG)
    made: list[Terminal] = []

    def run(*arguments: str, columns: int = 80, url: str = url) -> Terminal:
        made.append(Terminal(url, *arguments, columns=columns, bug=bug))
        return made[-1]

    yield run
    for each in made:
        each.clean_up()


@pytest.fixture
def busy(url: str) -> Iterator[tenure.Client]:
    """Yield a client of a store with a lock that is waited for, a semaphore, an election, and a job that failed."""
    with tenure.Client(url, owner=EVIL) as client, tenure.Client(url, owner="second") as other:
        lease = client.lock(EVIL).acquire()
        held = [client.semaphore("gpu", 3).acquire(), client.election("boss").campaign("http://boss")]
        waiting = threading.Thread(target=lambda: other.lock(EVIL).acquire().release())
        waiting.start()
        with suppress(ZeroDivisionError):
            client.once("report", window="hourly")(lambda: 1 / 0)()
        until(lambda: client.inspect(EVIL).waiters, "it waits")
        yield client
        for each in (lease, *held):
            each.release()
        waiting.join(TEST_TIMEOUT)


@pytest.mark.parametrize("columns", [80, 40])
def test_top_shows_trouble_names_queues_jobs_and_elections(start: Start, busy: tenure.Client, columns: int) -> None:
    """Names with waiters first; at 40 columns Name and Holder stay; nothing from outside moves the cursor."""
    terminal = start("top", columns=columns)
    screen = terminal.awaits("names: 3, waiters: 1", "report: the last run", "gpu")
    (head,) = (line for line in screen if line.startswith("Name "))
    assert "Holder" in head
    assert ("Kind" in head) == (columns == 80)
    rows = screen[screen.index(head) + 1 :]
    assert [row[:3] for row in rows[:3]] == ["evi", "bos", "gpu"]
    assert all(r"evil\x1b" in row[4:] for row in rows[:3]), "each has its holder"
    assert len(screen) == LINES
    assert max(map(len, screen)) <= columns
    terminal.type("\r")
    screen = terminal.awaits(SHOWN[: columns - 5], "held by", "second", "it is held by")
    assert screen[0].startswith(SHOWN[: columns - 5])
    terminal.type("\x1b")
    terminal.awaits("names: 3")
    assert "evil" in terminal.selected()
    terminal.type(":jobs\r")
    terminal.awaits("jobs: 1", "Job", "failed")
    terminal.type(":elections\r")
    terminal.awaits("elections: 1", "boss", "http://boss"[: columns // 5], without="gpu")
    terminal.type(":nowhere\r")
    terminal.awaits("There is no :nowhere.")
    assert not set(terminal.printed) & {"\x9b", "\u202e"}
    assert "\x1b[2J" not in terminal.printed
    terminal.type("q")
    assert terminal.end() == 0


def test_keys_move_filter_and_go_back(start: Start, busy: tenure.Client) -> None:
    """Arrows as j and k; the selection stays with its name; esc ends a filter, and what is typed is no command."""
    terminal = start("top")
    terminal.awaits("gpu")
    for keys, name in (("j", "boss"), ("\x1b[B", "gpu"), ("j", "gpu"), ("\x1bOA", "boss"), ("g", "evil"), ("G", "gpu")):
        terminal.type(keys)
        until(lambda name=name: name in terminal.selected(), f"{name} is selected")  # type: ignore[misc]
    with busy.lock("azure"):
        terminal.awaits("azure")
        assert "gpu" in terminal.selected()
        terminal.type("/ZUq")
        terminal.awaits("/ZUq_", "None of the names", without="gpu")
        terminal.type("\x7f\r")
        terminal.awaits("/ZU (esc", "azure", without="gpu")
        terminal.type("\r")
        terminal.awaits("azure", "held by", "esc goes back")
    terminal.awaits("nobody holds it", without="held by")
    terminal.type("\x1b")
    terminal.awaits("None of the names")
    terminal.type("\x1b")
    terminal.awaits("gpu", "boss")
    terminal.resize(40)
    os.kill(terminal.process.pid, signal.SIGWINCH)
    until(lambda: max(map(len, terminal.screen)) <= 40, "it is narrow")
    terminal.type(":q\r")
    assert terminal.end() == 0


@pytest.mark.parametrize("arguments", [("top",), ("ls", "--watch"), ("show", "orders", "--watch")])
def test_a_store_that_goes_away_is_shown_until_it_is_back(
    start: Start, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """With the last that was seen, and its age; then ^C ends it with 130, and the terminal is as before."""
    with RedisServer(tmp_path / "redis") as server:
        url = f"{server.url}?guard=off"
        client = tenure.Client(url, owner="ann")
        first = client.lock("orders").acquire()
        terminal = start(*arguments, url=url)
        terminal.awaits("orders", "ann", without="does not answer")
        server.kill()
        terminal.awaits("The store does not answer", "was seen", "ann")
        terminal.type("jk")
        server.start()
        assert not first.release().kept
        with tenure.Client(url, owner="bea") as other, other.lock("orders"):
            terminal.awaits("orders", "bea", without="does not answer")
            terminal.type("\x03")
            assert terminal.end() == 130
        client.close()


def test_a_store_that_was_never_there_is_shown(start: Start) -> None:
    """And SIGTERM restores the terminal, too."""
    terminal = start("top", url="redis://127.0.0.1:1")
    screen = terminal.awaits("The store does not answer", "It was not seen before.")
    assert "No name is held." not in "\n".join(screen)
    terminal.process.terminate()
    assert terminal.end() == 128 + signal.SIGTERM


def test_a_watch_shows_one_page_alone(start: Start, busy: tenure.Client) -> None:
    """Of the names that match, and of a name that is free; there is nothing to go to."""
    listed = start("ls", "--watch", "g*")
    listed.awaits("gpu", "names: 1", without="boss")
    listed.type("\r:jobs\r/x")
    free = start("show", "--watch", "orders")
    free.awaits("orders", "nobody holds it")
    with busy.lock("orders"):
        free.awaits("held by")
    assert "gpu" in "\n".join(listed.screen)
    for each in (listed, free):
        each.type("q")
        assert each.end() == 0


def test_a_terminal_that_goes_away_ends_the_command(start: Start) -> None:
    """Without a traceback, and soon: an SSH connection that breaks leaves no process behind."""
    terminal = start("top")
    terminal.awaits("No name is held.")
    assert terminal.hang_up() == 128 + signal.SIGPIPE


def test_a_screen_needs_a_terminal(here: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets no screen, and without rich nothing draws it: 64, with what to do."""
    for arguments in (("top",), ("ls", "--watch"), ("show", "a", "--watch")):
        done = here(*arguments)
        assert (done.status, done.output) == (64, "")
        assert "there is no terminal" in done.errors
    assert "contradict" in here("ls", "--watch", "--json").errors
    monkeypatch.setattr("tenure.cli.output.has_rich", lambda: False)
    assert "pip install 'tenure[cli]'" in here("top").errors


SCREEN = "tenure.cli.screen"
ANY_PAGE = functools.partial(test_top_shows_trouble_names_queues_jobs_and_elections, columns=40)
PLANTED: dict[str, tuple[tuple[str, str, str], Callable[[Start, tenure.Client], None]]] = {
    "a name moves the cursor": ((SCREEN, "Text(escape(text))", "Text(text)"), ANY_PAGE),
    "a name is markup": ((SCREEN, "Text(escape(text))", "Text.from_markup(escape(text))"), ANY_PAGE),
    "the holder leaves": ((SCREEN, 'Column("Holder"),', 'Column("Holder", 9),'), ANY_PAGE),
    "the number of waiters does not count": ((SCREEN, "(-len(view.waiters), view.name)", "view.name"), ANY_PAGE),
    "the terminal stays silent": (
        (SCREEN, "termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)", "pass"),
        ANY_PAGE,
    ),
    "the selection stays with its row": (
        (SCREEN, "self._at = self._keys.index(self._chosen)", "pass"),
        test_keys_move_filter_and_go_back,
    ),
    "a signal leaves the terminal as it is": (
        (SCREEN, '"SIGINT", "SIGTERM", "SIGHUP"', '"SIGINT"'),
        lambda start, _: test_a_store_that_was_never_there_is_shown(start),
    ),
}


@pytest.mark.parametrize(("start", "test"), PLANTED.values(), ids=PLANTED, indirect=["start"])
def test_a_planted_bug_is_found(
    start: Start,
    test: Callable[[Start, tenure.Client], None],
    busy: tenure.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the test that promises the opposite."""
    monkeypatch.setattr("tests.cli.conftest.TEST_TIMEOUT", 10.0)
    with pytest.raises(AssertionError):
        test(start, busy)
