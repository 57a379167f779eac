"""The demo as a whole: exact under the lock whatever happens, and able to tell when it is not."""

import ast
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import demo
from demo.__main__ import main
from demo.logs import make_up
from demo.record import SharedRecord
from demo.tally import Tally
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
    assert main([str(log), "--workers", "4", "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exact"]
    assert found["lost_updates_without_lock"] > 0
    assert (found["killed"], found["stopped"], found["late_write_refused"]) == ([2], [3], True)
    assert sum(day["truth"]["hits"] for day in found["days"].values()) + found["malformed"] == found["lines"]
    for name, day in found["days"].items():
        assert day["truth"] == day["with_lock"]
        assert json.loads((tmp_path / "out" / f"access-{name}.json").read_text()) == {"day": name, **day["truth"]}
    assert len(list((tmp_path / "out").iterdir())) == len(found["days"])


def test_it_runs_as_a_module(tmp_path: Path, log: Path) -> None:
    """As `make demo` runs it; every name in the log is printed on one line."""
    out = tmp_path / "out\nside"
    arguments = [str(log), "--workers", "3", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "demo", *arguments], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Exact under the lock" in done.stdout
    assert "refuses its token" in done.stdout
    assert f"{tmp_path}/out\\nside" in done.stdout
    assert len(list(out.iterdir())) == 5


def test_it_uses_nothing_but_the_public_api() -> None:
    """It is an example: of Tenure it imports `tenure` alone."""
    for path in Path(demo.__path__[0]).glob("*.py"):
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
    read = SharedRecord.read

    def tampered(record: SharedRecord) -> Tally:
        tally = read(record)
        next(iter(tally.days.values())).hits += 1
        return tally

    monkeypatch.setattr(SharedRecord, "read", tampered)
    assert main([str(log), "--workers", "3", "--out", str(tmp_path / "out")]) == 1
    assert "WRONG under the lock" in capsys.readouterr().out
    assert not list((tmp_path / "out").iterdir())


def test_an_empty_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to do, and nothing wrong."""
    (tmp_path / "empty.log").touch()
    assert main([str(tmp_path / "empty.log"), "--out", str(tmp_path / "out")]) == 0
    assert "empty" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["missing.log", ".", "text.gz"])
def test_a_log_that_cannot_be_read(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, a folder, what is not packed though it says so: one line, and status 2."""
    (tmp_path / "text.gz").write_text("not packed")
    assert main([str(tmp_path / name)]) == 2
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
    arguments = ["--workers", "3", "--out", str(tmp_path / "out")]
    with subprocess.Popen([sys.executable, "-m", "demo", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
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
