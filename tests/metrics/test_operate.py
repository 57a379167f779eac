"""The dashboard and the alerts in operate/: they name metrics that exist, and the alerts do what their tests say."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tenure import Client
from tenure.cli.http import Looks
from tenure.metrics import recorder
from tenure.metrics.prometheus_sink import PrometheusSink

OPERATE = Path(__file__).parents[2] / "operate"
PROMTOOL = shutil.which("promtool")


def known() -> set[str]:
    """Return the names of all series: those of processes, and those of the exporter."""
    registry = CollectorRegistry()
    PrometheusSink.of(registry)
    names = {each.name for each in registry.collect()}
    durations = {f"tenure_{each.name}_seconds_{part}" for each in recorder.DURATIONS for part in ("count", "bucket")}
    counts = {f"tenure_{each.name}_total" for each in recorder.COUNTS}
    with Client("memory://") as client:
        exported = re.findall(r"^# TYPE (\S+)", Looks(client, ()).text(), re.MULTILINE)
    return {*names, *durations, *counts, *exported}


def queries() -> list[str]:
    """Return all expressions of the dashboard and the alerts."""
    dashboard: dict[str, Any] = json.loads((OPERATE / "grafana.json").read_text("utf-8"))
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [*found, (OPERATE / "alerts.yml").read_text("utf-8")]


def test_each_metric_that_is_shown_exists() -> None:
    """A panel or an alert of a metric with another name would be empty for ever."""
    shown = {name for query in queries() for name in re.findall(r"\btenure_\w+", query)}
    assert len(shown) > 15
    assert shown - known() == set()


def test_there_are_five_alerts_each_with_a_test() -> None:
    """And each test has a case in which the alert is silent."""
    alerts = re.findall(r"alert: (\w+)", (OPERATE / "alerts.yml").read_text("utf-8"))
    tests = (OPERATE / "alerts_test.yml").read_text("utf-8")
    assert len(alerts) == 5
    for alert in alerts:
        cases = re.findall(rf"alertname: {alert}\n *exp_alerts:( \[\])?", tests)
        assert "" in cases
        assert " []" in cases


def promtool(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of the alerts in a folder."""
    assert PROMTOOL is not None, "promtool is missing: run `make servers`, or install the package prometheus"
    command = [PROMTOOL, "test", "rules", str(folder / "alerts_test.yml")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_alerts_do_what_their_tests_say() -> None:
    """By the tool of Prometheus."""
    done = promtool(OPERATE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("for: 30s", "for: 0s"),
        ("> 0.05", "> 0.5"),
        ('result="timeout"', 'result="granted"'),
        ("unless tenure_leases_lost_total offset 10m", ""),
        ('increase(tenure_leases_lost_total{cause!~"drained|adopted"}', "increase(tenure_leases_lost_total"),
        ('{cause!~"drained|adopted"} unless', '{cause!="adopted"} unless'),
        ("on () (min(tenure_store_up) == 0)", "on () (min(tenure_store_up) == 1)"),
        ("failed|superseded", "done|superseded"),
        ("max by (store) (tenure_store_quarantined)", "min by (store) (tenure_held)"),
    ],
)
def test_a_planted_bug_in_an_alert_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    """The tests of the alerts find each of them."""
    rules = (OPERATE / "alerts.yml").read_text("utf-8")
    assert right in rules
    (tmp_path / "alerts.yml").write_text(rules.replace(right, wrong), "utf-8")
    shutil.copy(OPERATE / "alerts_test.yml", tmp_path)
    assert promtool(tmp_path).returncode == 1
