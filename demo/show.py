"""The whole demo: plays the stories, prints what became of each, and writes a page of them all."""

import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from demo import interrupts
from demo.account import Account
from demo.logs import local_copy, make_up
from demo.page import page
from demo.plan import DemoError
from demo.report import heading, print_account, printable, say, to_json
from demo.rounds import Stage
from demo.stories import STORIES
from tenure import TenureError, UsageError

NO_POSIX = (
    "the demo, which stops and kills processes, needs a POSIX system such as Linux or macOS, which this is not: run "
    "it on one of those."
)

EXACT, WRONG, NO_FILE, USAGE, FAILED = 0, 1, 2, 64, 69
"""The exit statuses of the demo. Those that the `tenure` command also has are the same there."""


def show_demo(
    log: Path | None = None,
    *,
    stories: Sequence[str] = tuple(STORIES),
    workers: int = 8,
    out: Path | None = None,
    html: Path | None = None,
    url: str | None = None,
    as_json: bool = False,
) -> int:
    """Play stories with `workers` processes, print what became of them, and return the exit status.

    The statistics count `log` (default: an invented one), and write a file a day to the folder `out`. The page is
    written to `html` (default: to the folder `out`). `url` is the store. The defaults are new and temporary.
    """
    if not hasattr(os, "fork"):
        return _fail(NO_POSIX, USAGE)
    if (url or "").startswith("memory:"):
        return _fail(
            "a memory: store exists in one process only, but the demo has several. Give another URL, or none.", USAGE
        )
    console = Console(highlight=False, quiet=as_json)
    with interrupts.handled(), tempfile.TemporaryDirectory(prefix="tenure-") as name:
        try:
            accounts = _play(console, stories, _stage(Path(name), log, workers, url, [out, html and html.parent]))
            with interrupts.deferred():
                files, made = _write(accounts, out, html)
        except UsageError as error:  # the store lacks what a story needs
            return _fail(f"{error} The story of the statistics needs a lock alone: `--story statistics`.", USAGE)
        except (DemoError, TenureError) as error:
            return _fail(str(error), FAILED)
        except (OSError, EOFError, zlib.error) as error:
            return _fail(f"a file cannot be read or written: {error}", NO_FILE)
    if as_json:
        print(to_json(accounts, files, made))
    else:
        _print_files(console, files, made)
    return WRONG if any(account.wrong for account in accounts.values()) else EXACT


def _fail(message: str, status: int) -> int:
    print(f"tenure: {printable(message)}", file=sys.stderr)
    return status


def _stage(folder: Path, log: Path | None, workers: int, url: str | None, given: list[Path | None]) -> Stage:
    """Prepare what all stories have, and the folders that were given, so that a mistake is found at once."""
    for each in filter(None, given):
        each.mkdir(parents=True, exist_ok=True)
    return Stage(
        workers,
        url or f"sqlite://{folder}/locks.db",
        folder,
        local_copy(log, folder) if log else make_up(folder / "access.log"),
        str(log or "an invented log"),
        f"tenure-demo-{os.getpid()}-{time.time_ns()}",  # unique, for the store may be shared
    )


def _play(console: Console, stories: Sequence[str], stage: Stage) -> dict[str, Account]:
    """Play stories one after another, and print what became of each."""
    accounts: dict[str, Account] = {}
    for name in stories:
        said: list[str] = []

        def tell(sentence: str, said: list[str] = said) -> None:
            said.append(sentence)
            say(console, sentence)

        heading(console, STORIES[name].title)
        with _progress() as count:
            account = STORIES[name].play(replace(stage, tell=tell, count=count))
        account.introduction = said
        print_account(console, account)
        accounts[name] = account
    return accounts


def _write(accounts: Mapping[str, Account], out: Path | None, html: Path | None) -> tuple[list[Path], Path]:
    """Write the files of all stories and the page, and return their paths."""
    texts = {name: text for account in accounts.values() for name, text in account.files.items()}
    folder = out or (html.parent if html and not texts else Path(tempfile.mkdtemp(prefix="tenure-demo-")))
    files = {folder / name: text for name, text in texts.items()}
    made = html or folder / "demo.html"
    for path, text in {**files, made: page(accounts)}.items():
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(text, "utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return list(files), made


def _print_files(console: Console, files: list[Path], made: Path) -> None:
    console.print()
    if files:
        told = f"{len(files)} files, one a day, are in {printable(str(files[0].parent))}"
        console.print(told, soft_wrap=True, markup=False)
    console.print(f"The page with the timelines: {printable(str(made))}", soft_wrap=True, markup=False)


@contextmanager
def _progress() -> Generator[Callable[[str, int], Callable[[], None]], None, None]:
    """Show the progress of each round at a terminal.

    Yields a function that begins a round; that function returns another, which counts a unit of work.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:>15}"), BarColumn(), TextColumn("{task.completed} of {task.total}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def begin(title: str, total: int) -> Callable[[], None]:
            task = progress.add_task(title, total=total)
            return lambda: progress.advance(task)

        yield begin
