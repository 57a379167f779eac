"""The command with the bare package: the interpreter of these tests sees the standard library and Tenure alone."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tenure
from tests.cli.conftest import TEST_TIMEOUT

SOURCE = Path(tenure.__file__).parents[1]
MAIN = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); sys.argv[0] = 'tenure'; from tenure.cli import main; main()"
BARE = [sys.executable, "-I", "-S", "-c", MAIN]
"""The command without the packages that are installed here."""

Bare = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    """Return `tenure ARGUMENTS` on a fresh lock file."""

    def run(*arguments: str, given: str = "", output: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BARE, *arguments],
            env={**os.environ, "TENURE_URL": f"sqlite://{tmp_path}/locks.db"},
            input=given,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TEST_TIMEOUT,
            check=False,
        )

    return run


def test_no_other_package_is_seen() -> None:
    """The tests of this file show something: what is installed here cannot be imported there."""
    assert subprocess.run([*BARE[:-1], "import rich"], capture_output=True, check=False).returncode == 1


def test_every_command_does_its_work(bare: Bare, tmp_path: Path) -> None:
    """`pip install tenure` gives them all."""
    show = f"{sys.executable} -I -S -c {MAIN!r}"
    done = bare("run", "orders", "-c", f'{show!s} ls && echo "token $TENURE_TOKEN"')
    assert done.returncode == 0, done.stderr
    listed, token = done.stdout.splitlines()
    assert listed.startswith("orders\t")
    assert token.startswith("token ")
    assert bare("show", "orders").stdout == "free\n"
    assert bare("once", "report", "--window", "hourly", "--", "echo", "ran").stdout == "ran\n"
    assert bare("jobs").stdout.startswith("report\thourly\tdone\t")
    for change in ("pause", "resume", "run", "forget"):
        assert bare("job", change, "report").returncode == 0
    assert bare("lock", "a", "b").stdout.startswith("a\t")
    assert bare("lock", "--", "-a").stdout.startswith("-a\t")
    for nobody in (("revoke", "orders"), ("release", "orders", "--force")):
        assert bare(*nobody).returncode == 1
    assert "CREATE TABLE" in bare("schema", "postgresql").stdout
    assert bare("wait", "orders").returncode == 0
    assert bare("--version").stdout == f"tenure {tenure.__version__}\n"


def test_a_terminal_gets_lines_where_nothing_draws_tables(bare: Bare) -> None:
    """As a pipe does."""
    ours, theirs = pty.openpty()
    done = bare("show", "orders", output=theirs)
    os.close(theirs)
    printed = os.read(ours, 1000)
    os.close(ours)
    assert (done.returncode, printed) == (0, b"free\r\n")


def test_the_demo_says_how_to_get_it(bare: Bare) -> None:
    """In one line: the package does not contain the demo."""
    done = bare("demo")
    assert (done.returncode, done.stdout) == (64, "")
    assert "git clone https://" in done.stderr
    assert "`make demo`" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("run", "orders", "--", "true"), ("ls",), ("once", "a", "--key", "1", "-c", ":")]
)
def test_a_command_does_not_import_asyncio(arguments: tuple[str, ...], bare: Bare, tmp_path: Path) -> None:
    """A crontab starts the command every minute: it imports no more than it needs."""
    seen = f"{MAIN[: -len('main()')]}import atexit; atexit.register(lambda: print(*sys.modules)); main()"
    done = subprocess.run(
        [*BARE[:-1], seen, *arguments],
        env={**os.environ, "TENURE_URL": f"sqlite://{tmp_path}/locks.db"},
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT,
        check=True,
    )
    imported = set(done.stdout.split())
    assert "tenure.stores.sqlite.store" in imported
    assert not imported & {"asyncio", "ssl", "rich", "typing_extensions", "tenure.runtimes.aio"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("show", "a", "redis://:hidden@host"), "there is no argument (a URL). See `tenure show --help`."),
        (
            ("ls", "--ur", "redis://:hidden@host"),
            "there is no option --ur. Did you mean --url? See `tenure ls --help`.",
        ),
        (("ls", "--json=redis://:hidden@host"), "argument --json: ignored explicit argument"),
        (("wait", "a", "-w", "redis://:hidden@host"), "argument -w/--timeout: (a URL) is not a number of seconds"),
        (("wait", "a", "-w", "-1"), "argument -w/--timeout: '-1' is not at least 0."),
        (("once", "a", "--attempts", "1.5", "--", "true"), "'1.5' is not a whole number."),
        (("run", "a", "-E", "256", "--", "true"), "'256' is not from 0 to 255."),
        (("show",), "the following arguments are required: NAME."),
        (("lock",), "there is no name. See `tenure lock --help`."),
        (
            ("once", "a", "--key", "1"),
            "there is no command to run. Give it after `--`, or by -c. See `tenure once --help`.",
        ),
        (("lock", "a", "--", "true"), "tenure lock runs no command: use `tenure run`"),
        (("relase", "a"), "there is no command 'relase'. Did you mean `tenure release`?"),
        (("job", "puase", "a"), "there is no command 'job puase'. Did you mean `tenure job pause`?"),
        (("--bogus",), "there is no option '--bogus'. See `tenure --help`."),
        (("--url", "redis://:hidden@host", "ls"), "an option stands after the command, as in `tenure ls --url ...`."),
        (("--json", "ls"), "an option stands after the command, as in `tenure ls --json ...`."),
        (("run", "a", "--unfiar", "--", "true"), "there is no option --unfiar. Did you mean --unfair? See"),
        (("run", "a", "--nope", "--", "true"), "there is no option --nope. See `tenure run --help`."),
        (
            ("run", "a", "--tiemout=redis://:hidden@host", "--", "true"),
            "no option --tiemout. Did you mean --timeout? See",
        ),
        (("run", "a", "ls", "-l"), "there is no option -l. Write `--` before the command. See"),
        (
            ("run", "a", "--unfair", "--url", "etcd://127.0.0.1:1", "--", "true"),
            "--unfair is not available: this store",
        ),
        (("schema", "oracle"), "'oracle' is none of postgresql, mysql, sqlite."),
        (("mcp", "redis://me:hidden@host"), "pip install 'tenure[mcp]'"),
        (("schema", "postgresql://me:hidden@host/base"), "(a URL) is none of postgresql, mysql, sqlite."),
    ],
)
def test_a_wrong_call_is_told_what_is_wrong(bare: Bare, arguments: tuple[str, ...], told: str) -> None:
    """In one line, with the help to read, and without a secret."""
    done = bare(*arguments)
    assert (done.returncode, done.stdout) == (64, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert "hidden" not in done.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("run", "-h"), ("job",), ("job", "--help"), ("job", "run", "-h")])
def test_help_goes_to_the_standard_output(bare: Bare, arguments: tuple[str, ...]) -> None:
    """And is a success if it was asked for."""
    done = bare(*arguments)
    assert (done.returncode, done.stderr) == (64 if arguments == ("job",) else 0, "")
    assert "usage: tenure" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("columns", ["1", "30", "1000"])
@pytest.mark.parametrize("arguments", [("--help",), ("job", "--help"), ("run", "--help")])
def test_help_fits_any_terminal(
    columns: str, arguments: tuple[str, ...], bare: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a terminal that says it has hardly any columns."""
    monkeypatch.setenv("COLUMNS", columns)
    done = bare(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
