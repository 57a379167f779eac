"""The programs in examples/ do what they say."""

import os
import subprocess
import sys
from pathlib import Path

import holdfast

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(command: list[str], url: str) -> subprocess.CompletedProcess[str]:
    """Run an example as a user would, with the command of this environment on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"HOLDFAST_URL": url, "PATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_fenced_record_refuses_the_late_writer(tmp_path: Path) -> None:
    """The example of a fence ends well, with warnings as errors, and shows what it is about."""
    done = run([sys.executable, "-W", "error", str(EXAMPLES / "fenced_record.py")], f"sqlite://{tmp_path}/locks.db")
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_one_at_a_time_runs_once_at_a_time(tmp_path: Path) -> None:
    """The example for cron runs its job when the lock is free, and says that it is busy when it is not."""
    url = f"sqlite://{tmp_path}/locks.db"
    script = ["sh", str(EXAMPLES / "one_at_a_time.sh")]
    assert "writing the report, with fencing token" in run(script, url).stdout
    with holdfast.Client(url) as client, client.lock("nightly-report"):
        busy = run(script, url)
    assert (busy.returncode, busy.stdout) == (0, "the report is being written elsewhere\n")
