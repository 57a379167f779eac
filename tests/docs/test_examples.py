"""The programs in examples/ do what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tenure

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(command: list[str], url: str) -> subprocess.CompletedProcess[str]:
    """Run an example as a user would, with the command of this environment on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"TENURE_URL": url, "PATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


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
    with tenure.Client(url) as client, client.lock("nightly-report"):
        busy = run(script, url)
    assert (busy.returncode, busy.stdout) == (0, "the report is being written elsewhere\n")


def loses_events(output: str) -> bool:
    """Tell whether the wrong statistics have lost events, and logged a day twice."""
    found = re.search(r"wrong: (\d+) of 240 events are left; (\d+) logs were written for 2 days", output)
    return found is not None and int(found[1]) < 240 and int(found[2]) > 2


def oversells_and_stops(output: str) -> bool:
    """Tell whether the one wrong sale sold too much, and the other stopped too early."""
    sold = re.findall(r"wrong \(.*\): (\d+) of 20 coupons were sold, to (\d+) customers", output)
    (much, to), (little, _) = [(int(one), int(other)) for one, other in sold]
    return much > max(20, to) and little < 20


def pushes_again(output: str) -> bool:
    """Tell whether the wrong push went out several times an hour."""
    found = re.search(r"wrong .*pushes done in each hour: \[(\d+)", output)
    return found is not None and int(found[1]) > 1


SCENARIOS = {
    "daily_statistics": (loses_events, r"right: 182 of 182 events are left; logs: day-0.json, day-1.json"),
    "coupon_sale": (oversells_and_stops, r"right: 20 of 20 coupons were sold, to 20 customers"),
    "hourly_push": (pushes_again, r"right .*: pushes done in each hour: \[1, 1\], begun: \[2, 2\]"),
}
"""By program: whether its wrong versions lose what they shall lose, and what its right version says."""


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("store", ["default", "redis"])
def test_a_scenario_loses_nothing_but_by_the_wrong_versions(
    request: pytest.FixtureRequest, name: str, store: str
) -> None:
    """With processes that are killed and stopped, on the embedded default and on a server."""
    loses, right = SCENARIOS[name]
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    if store == "redis":
        command += ["--url", request.getfixturevalue("redis_server").url]
    done = run(command, "")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert loses(done.stdout), done.stdout
    assert re.search(right, done.stdout), done.stdout


PAGES = {"daily_statistics": "scenario-statistics", "coupon_sale": "scenario-coupons", "hourly_push": "scenario-push"}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_the_scenario_runs(name: str) -> None:
    """The code in the page of a scenario is a part of the program."""
    page = (EXAMPLES.parent / "docs" / f"{PAGES[name]}.md").read_text("utf-8")
    program = (EXAMPLES / f"{name}.py").read_text("utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert shown
    assert all(each in program for each in shown)
    assert f"python examples/{name}.py" in page
