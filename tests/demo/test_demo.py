"""The demo as a whole: exact under the lock whatever happens, and able to tell when it is not."""

import ast
import json
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import demo.page
from demo.__main__ import main
from demo.logs import lines, make_up
from demo.plan import Plan
from demo.record import SharedRecord, connect
from demo.rounds import RoundResult, Stage
from demo.tally import Tally
from tenure import Client
from tests.cli.conftest import TEST_TIMEOUT, until

ROOT = Path(__file__).parents[2]
REAL = ROOT / ".." / "shared" / "data" / "access.log"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a small log."""
    return make_up(tmp_path / "access.log", 300)


def test_the_demo_is_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the lock updates are lost; under it none, though a worker is killed and another one comes too late."""
    log = REAL if REAL.exists() else make_up(tmp_path / "access.log")
    arguments = [str(log), "--story", "statistics", "--workers", "4", "--out", str(tmp_path / "out"), "--json"]
    assert main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    found = printed["statistics"]
    assert printed["exact"]
    assert found["exact"]
    assert found["lost_updates_without_lock"] > 0
    assert (found["killed"], found["stopped"], found["late_write_refused"]) == ([2], [3], True)
    assert sum(day["truth"]["hits"] for day in found["days"].values()) + found["malformed"] == found["lines"]
    for name, day in found["days"].items():
        assert day["truth"] == day["with_lock"]
        assert json.loads((tmp_path / "out" / f"access-{name}.json").read_text()) == {"day": name, **day["truth"]}
    assert len(list((tmp_path / "out").iterdir())) == len(found["days"]) + 1
    page = (tmp_path / "out" / "demo.html").read_text()
    for mark in "KSR":
        assert f'class="sign">{mark}</text>' in page
    assert page.count("<svg") == 1  # without the lock nobody holds it


def test_coupons_and_pushes_are_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without Tenure too many are sold and pushed, or none; with it the right number, though workers are killed."""
    arguments = ["--story", "coupons", "--story", "push", "--json", "--html", str(tmp_path / "new" / "page.html")]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    coupons, push = found["coupons"], found["push"]
    assert coupons["without_stock"]["sold"] > coupons["coupons"]
    assert coupons["with_stock"] == {"sold": 20, "customers": 20, "left": 0}
    assert len(coupons["killed"]) == 1
    assert push["done_by_crontab"] == [coupons["workers"], 0]
    assert push["done_as_a_job"] == [1, 1]
    assert len(push["killed"]) == len(push["takeover_seconds"]) == 2
    page = Path(found["page"]).read_text()
    assert page.count("<svg") == 4
    assert page.count('class="sign">K</text>') == 4  # one in the sale, one by crontab, two as a job


def scene(monkeypatch: pytest.MonkeyPatch, coupons: list[int], pushes: list[int], taken: int) -> None:
    """Let each round end at once, with data that its workers might have left: who bought a coupon, which hours."""

    def play(stage: Stage, plan: Plan, _title: str, _total: int) -> RoundResult:
        if plan.namespace and plan.story == "coupons":
            with Client(stage.url, namespace=plan.namespace) as client:
                client.stock("coupons").take(taken)
        with closing(connect(plan.record)) as data:
            if plan.story == "coupons":
                data.executemany("INSERT INTO sales VALUES (?)", [(customer,) for customer in coupons])
            else:
                data.executemany("INSERT INTO pushes VALUES (?, 1)", [(hour,) for hour in pushes])
        return RoundResult()

    monkeypatch.setattr(Stage, "play", play)


SOLD = list(range(20))


@pytest.mark.parametrize(
    ("coupons", "pushes", "taken", "wrong"),
    [
        (SOLD, [0, 1], 20, ""),
        ([*SOLD, 20], [0, 1], 20, "coupons sold: 21 instead of 20; customers who got one: 21 instead of 20"),
        ([*SOLD[1:], 1], [0, 1], 20, "customers who got one: 19 instead of 20"),
        (SOLD, [0, 1], 19, "coupons left in the stock: 1 instead of 0"),
        (SOLD, [0, 1, 1], 20, "pushes done in hour 2: 2 instead of 1"),
        (SOLD, [1], 20, "pushes done in hour 1: 0 instead of 1"),
    ],
)
def test_a_wrong_figure_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    coupons: list[int],
    pushes: list[int],
    taken: int,
    wrong: str,
) -> None:
    """In the terminal, on the page and by the exit status."""
    scene(monkeypatch, coupons, pushes, taken)
    page = tmp_path / "page.html"
    assert main(["--story", "coupons", "--story", "push", "--html", str(page)]) == (1 if wrong else 0)
    told = f"WRONG under Tenure: {wrong}. Please report this."
    printed = " ".join(capsys.readouterr().out.split())
    assert (told in printed, f'<p class="bad">{told}</p>' in page.read_text()) == (bool(wrong), bool(wrong))
    assert "Exact" in printed  # the other story, or both


def test_it_runs_as_a_module(tmp_path: Path, log: Path) -> None:
    """As `make demo` runs it; every name in the log is printed on one line."""
    out = tmp_path / "out\nside"
    arguments = [str(log), "--story", "statistics", "--workers", "3", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "demo", *arguments], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Exact under the lock" in done.stdout
    assert "refuses its token" in done.stdout
    assert "…" not in done.stdout, "a terminal of 80 columns shows the whole table"
    assert f"{tmp_path}/out\\nside" in done.stdout
    assert len(list(out.iterdir())) == 6
    assert done.stdout.splitlines()[-1] == f"The page with the timelines: {tmp_path}/out\\nside/demo.html"


def test_it_uses_nothing_but_the_public_api() -> None:
    """It is an example: of Tenure it imports `tenure` alone, but for the page, which looks like the console."""
    for path in set(Path(demo.__path__[0]).glob("*.py")) - {Path(demo.page.__file__)}:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                assert not (node.module or "").startswith("tenure."), path.name
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("tenure.") for alias in node.names), path.name


def test_a_wrong_count_is_found(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One hit too many in the record: the demo fails, says which, and writes no file."""

    def play(_stage: Stage, plan: Plan, _title: str, _total: int) -> RoundResult:
        tally = Tally()
        for piece in plan.pieces:
            tally.add(lines(Path(plan.log), piece))
        next(iter(tally.days.values())).hits += 1
        with SharedRecord(Path(plan.record)) as record:
            record.write(tally, None)
        return RoundResult()

    monkeypatch.setattr(Stage, "play", play)
    assert main([str(log), "--story", "statistics", "--workers", "3", "--out", str(tmp_path / "out")]) == 1
    assert "WRONG under Tenure" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["demo.html"]


def test_an_empty_log_with_a_hostile_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to do, and nothing wrong; the page shows the name as text, and loads and runs nothing."""
    log = tmp_path / "<img src=x onerror=alert(1)>\"'&\u202e.log"
    log.touch()
    assert main([str(log), "--story", "statistics", "--out", str(tmp_path / "out")]) == 0
    assert "empty" in capsys.readouterr().out
    shown = (tmp_path / "out" / "demo.html").read_text()
    assert "&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;\\u202e.log" in shown
    assert not re.search(r"<img|<script|https?:|url\(|@import|\u202e", shown)


@pytest.mark.parametrize("name", ["missing.log", ".", "text.gz"])
def test_a_log_that_cannot_be_read(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, a folder, what is not packed though it says so: one line, and status 2."""
    (tmp_path / "text.gz").write_text("not packed")
    assert main([str(tmp_path / name), "--story", "statistics"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_store_of_one_process_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A lock in the memory of each worker would lock nothing."""
    assert main(["--url", "memory://"]) == 64
    assert "several" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Ctrl-C and SIGTERM end the workers too, and remove what is temporary."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-m", "demo", "--workers", "3"], cwd=ROOT, stdout=subprocess.DEVNULL
    ) as process:
        try:
            until(lambda: len(_workers_of(process.pid)) == 3, "the workers have started")
            workers = _workers_of(process.pid)
            process.send_signal(number)
            assert process.wait(TEST_TIMEOUT) == 128 + number
        finally:
            process.terminate()
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not list(tmp_path.glob("tenure-*"))


def _workers_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]
