"""The whole demo: the true counts by one process, a round without the lock, a round under it, and the verdict."""

import dataclasses
import gzip
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from demo import interrupts
from demo.logs import cut, lines, local_copy, make_up
from demo.plan import DemoError, Plan
from demo.report import Findings, introduce, print_findings, print_verdict, printable, to_json
from demo.rounds import Round, Story
from demo.tally import Tally

BATCHES = 5
"""The number of batches for each worker."""

NO_POSIX = (
    "the demo, which stops and kills processes, needs a POSIX system such as Linux or macOS, which this is not: run "
    "it on one of those."
)

EXACT, WRONG, NO_LOG, USAGE, FAILED = 0, 1, 2, 64, 69
"""The exit statuses of the demo. Those that the `tenure` command also has are the same there."""


def show_demo(
    log: Path | None = None, *, workers: int = 8, out: Path | None = None, url: str | None = None, as_json: bool = False
) -> int:
    """Count `log` (default: an invented one) with `workers` processes, print the findings, and return the exit status.

    A file a day is written to the folder `out`. `url` is the store of the lock. The defaults are new and temporary.
    """
    if not hasattr(os, "fork"):
        return _fail(NO_POSIX, USAGE)
    if (url or "").startswith("memory:"):
        return _fail(
            "a memory: store exists in one process only, but the demo has several. Give another URL, or none.", USAGE
        )
    with interrupts.handled(), tempfile.TemporaryDirectory(prefix="tenure-") as name:
        folder = Path(name)
        try:
            copy = local_copy(log, folder) if log else make_up(folder / "access.log")
            out = _folder_for(out)
        except (OSError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            return _fail(f"the log cannot be read, or the folder cannot be made: {error}", NO_LOG)
        plan = Plan(str(copy), cut(copy, BATCHES * workers), workers)
        try:
            return _show(plan, str(log or "an invented log"), url, folder, out, as_json=as_json)
        except DemoError as error:
            return _fail(str(error), FAILED)


def _fail(message: str, status: int) -> int:
    print(f"tenure: {printable(message)}", file=sys.stderr)
    return status


def _show(plan: Plan, title: str, url: str | None, folder: Path, out: Path, *, as_json: bool) -> int:
    console = Console(highlight=False, quiet=as_json)
    truth = Tally()
    for piece in plan.pieces:
        truth.add(lines(Path(plan.log), piece))
    introduce(console, title, plan.workers, truth, len(plan.pieces))
    unlocked, locked = _both_rounds(plan, url or f"sqlite://{folder}/locks.db", folder)
    findings = Findings(title, plan.workers, len(plan.pieces), truth, unlocked, locked)
    print_findings(console, findings)
    exact = not findings.wrong()
    files = write_days(findings.locked.tally, out) if exact else []
    print_verdict(console, findings, files)
    if as_json:
        print(to_json(findings, files))
    return EXACT if exact else WRONG


def _both_rounds(plan: Plan, url: str, folder: Path) -> tuple[Story, Story]:
    if not plan.pieces:
        return Story(), Story()
    unlocked = dataclasses.replace(plan, record=str(folder / "unlocked.db"))
    locked = dataclasses.replace(
        plan,
        record=str(folder / "locked.db"),
        lock=f"tenure-demo-{os.getpid()}-{time.time_ns()}",  # a unique name, for the store may be shared
        kill=plan.workers // 3,
        stop=2 * plan.workers // 3,
    )
    with _progress(len(plan.pieces)) as count:
        first = Round(unlocked, url, folder, count("without a lock")).run()
        return first, Round(locked, url, folder, count("under the lock")).run()


def write_days(tally: Tally, folder: Path) -> list[Path]:
    """Write a file a day, each atomically, and return their paths."""
    paths: list[Path] = []
    for name, day in sorted(tally.days.items()):
        paths.append(folder / f"access-{name}.json")
        temporary = folder / f".{paths[-1].name}.{os.getpid()}"
        try:
            temporary.write_text(json.dumps({"day": name, **day.summary()}, indent=2) + "\n")
            temporary.replace(paths[-1])
        finally:
            temporary.unlink(missing_ok=True)
    return paths


def _folder_for(out: Path | None) -> Path:
    if out is None:
        return Path(tempfile.mkdtemp(prefix="tenure-demo-"))
    out.mkdir(parents=True, exist_ok=True)
    return out


@contextmanager
def _progress(total: int) -> Generator[Callable[[str], Callable[[], None]], None, None]:
    """Show the progress of each round at a terminal.

    Yields a function that begins a round; that function returns another, which counts an update.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:>15}"),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} updates"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def begin(title: str) -> Callable[[], None]:
            task = progress.add_task(title, total=total)
            return lambda: progress.advance(task)

        yield begin
