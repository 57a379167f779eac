"""The demo from end to end: the truth by one plain pass, a round without the lock, a round under it, the verdict."""

import gzip
import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from holdfast.cli.demo import interrupts
from holdfast.cli.demo.crew import DemoError
from holdfast.cli.demo.logs import cut, lines, local_copy, make_up
from holdfast.cli.demo.plan import Plan
from holdfast.cli.demo.report import Findings, as_json, introduce, print_findings, print_verdict
from holdfast.cli.demo.rounds import Round, Story, Strikes
from holdfast.cli.demo.tally import Tally
from holdfast.cli.look import print_json
from holdfast.cli.say import Status, tell
from holdfast.errors import UsageError

BATCHES = 5
"""How many batches there are for each worker."""


@dataclass(slots=True)
class Request:
    """What the demo is asked for."""

    log: Path | None = None
    workers: int = 8
    out: Path | None = None
    url: str | None = None
    as_json: bool = False


def demo_log(request: Request) -> int:
    """Carry out the demo, and return the status to exit with. Raises UsageError if the store can't serve it."""
    if (request.url or "").startswith("memory:"):
        raise UsageError("a memory: store lives in one process, and the demo has many; give another, or none.")
    with interrupts.heeded(), tempfile.TemporaryDirectory(prefix="holdfast-") as name:
        folder = Path(name)
        try:
            log = local_copy(request.log, folder) if request.log else make_up(folder / "access.log")
            out = _folder_for(request.out)
        except (OSError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            tell(f"cannot do the demo: {error}")
            return Status.NO_INPUT
        try:
            return _demo(request, log, folder, out)
        except DemoError as error:
            tell(error)
            return Status.STORE


def _demo(request: Request, log: Path, folder: Path, out: Path) -> int:
    console = Console(highlight=False, quiet=request.as_json)
    title = str(request.log or "a log that was made up")
    pieces = cut(log, BATCHES * request.workers)
    truth = Tally()
    for piece in pieces:
        truth.add(lines(log, piece))
    introduce(console, title, request.workers, truth, len(pieces))
    plan = Plan(str(log), "", pieces, request.workers, "")
    unlocked, locked = _both_rounds(plan, request.url or f"sqlite://{folder}/locks.db", folder)
    findings = Findings(title, request.workers, len(pieces), truth, unlocked, locked)
    print_findings(console, findings)
    exact = not findings.wrong()
    files = write_days(findings.locked.tally, out) if exact else []
    print_verdict(console, findings, files)
    if request.as_json:
        print_json(as_json(findings, files))
    return Status.DONE if exact else Status.NOBODY


def _both_rounds(plan: Plan, url: str, folder: Path) -> tuple[Story, Story]:
    if not plan.pieces:
        return Story(), Story()
    with _progress(len(plan.pieces)) as count:
        plan.record = str(folder / "unlocked.db")
        unlocked = Round(plan, None, url, folder, count("without a lock")).run()
        plan.record = str(folder / "locked.db")
        plan.lock = f"holdfast-demo-{os.getpid()}-{time.time_ns()}"  # a name of its own: the store may be shared
        strikes = Strikes(kill=plan.workers // 3, stop=2 * plan.workers // 3)
        plan.ordeals = strikes.ordeals()
        return unlocked, Round(plan, strikes, url, folder, count("under the lock")).run()


def write_days(tally: Tally, folder: Path) -> list[Path]:
    """Write a file a day, each all at once or not at all, and return their paths."""
    return [
        _write_whole(folder / f"access-{name}.json", {"day": name, **tally.days[name].summary()})
        for name in sorted(tally.days)
    ]


def _write_whole(path: Path, content: object) -> Path:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        temporary = Path(file.name)
        try:
            json.dump(content, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return path


def _folder_for(out: Path | None) -> Path:
    if out is None:
        return Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    out.mkdir(parents=True, exist_ok=True)
    return out


@contextmanager
def _progress(total: int) -> Generator[Callable[[str], Callable[[], None]], None, None]:
    """Show how far a round is, if anybody looks. Yields what begins a round and returns what counts an update."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:>15}"),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} updates"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def begin(title: str) -> Callable[[], None]:
            task: TaskID = progress.add_task(title, total=total)
            return lambda: progress.advance(task)

        yield begin
