"""docs/kubernetes.md and docs/cron.md: what they show is well formed, and the commands in it do what the pages say."""

import configparser
import os
import re
import shlex
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tenure
from tests.docs.test_readme import ROOT, run_example

yaml: Any = import_module("yaml")  # it has no types

KUBERNETES = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
CRON = (ROOT / "docs" / "cron.md").read_text("utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


class Machine:
    """A machine with a store, a package `shop`, and commands whose names begin with `shop-`. Each notes its runs."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite://{folder}/locks.db"
        self.folder = folder
        bin_folder, package = folder / "bin", folder / "shop"
        for each in (bin_folder, package):
            each.mkdir()
        for name in ("statistics", "clean-up"):
            (bin_folder / f"shop-{name}").write_text(f"#!/bin/sh\necho {name} >> {folder}/runs\n", "utf-8")
            (bin_folder / f"shop-{name}").chmod(0o755)
        for name in ("migrate", "__main__"):
            (package / f"{name}.py").write_text(f"open('{folder}/runs', 'a').write('{name}\\n')\n", "utf-8")
        (folder / "url").write_text(self.url, "utf-8")
        path = (bin_folder, Path(sys.executable).parent, os.environ["PATH"])
        self.environment = {**os.environ, "PATH": os.pathsep.join(map(str, path)), "PYTHONPATH": str(folder)}

    def start(self, command: list[str], **variables: str) -> "subprocess.Popen[str]":
        """Start a command of a page."""
        environment, pipe = {**self.environment, **variables}, subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, command: list[str], **variables: str) -> None:
        """Run a command of a page, which must be a success."""
        with self.start(command, **variables) as process:
            said = process.communicate(timeout=60)
        assert process.returncode == 0, said

    def runs(self) -> list[str]:
        """Return what has run."""
        return (self.folder / "runs").read_text("utf-8").split()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine."""
    return Machine(tmp_path)


def pods() -> list[Any]:
    """Return what each Deployment of the page runs."""
    page: list[Any] = [yaml.safe_load(each) for each in blocks(KUBERNETES, "yaml")]
    for each in page:
        assert (each["apiVersion"], each["kind"]) == ("apps/v1", "Deployment")
        assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]
    return [each["spec"]["template"]["spec"] for each in page]


def command_of(container: Any) -> list[str]:  # noqa: ANN401 - parsed
    """Return the command of a container, with its variables filled in as Kubernetes does."""
    variables = {each["name"]: each.get("value", "") for each in container["env"]}
    return [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in container["command"]]


def test_the_first_deployment_migrates_once_and_drains(machine: Machine) -> None:
    """Its init containers migrate once among them, and its preStop asks the holders of this host to release."""
    shop, _ = pods()
    (migrate,), (app,) = shop["initContainers"], shop["containers"]
    assert app["env"] == migrate["env"]
    for _ in range(2):
        machine.run(command_of(migrate), TENURE_URL=machine.url)
    assert machine.runs() == ["migrate"]
    with tenure.Client(machine.url) as client:
        lease = client.lock("order", on_revoke=lambda lease: threading.Thread(target=lease.release).start()).acquire()
        machine.run(app["lifecycle"]["preStop"]["exec"]["command"], TENURE_URL=machine.url)
        assert not client.names()
        assert not lease.lost
    assert shop["terminationGracePeriodSeconds"] > 20


def test_the_sidecar_says_who_leads(machine: Machine) -> None:
    """And the program of the page asks it."""
    _, scheduler = pods()
    (elect,) = scheduler["initContainers"]
    assert elect["restartPolicy"] == "Always"
    command = command_of(elect)
    assert command[-1] == ":4040"
    with machine.start([*command[:-1], ":0"], TENURE_URL=machine.url) as process:
        assert process.stderr is not None
        (address,) = re.findall(r"http://(127\.0\.0\.1:\d+)/", process.stderr.readline())
        assert "leading" in process.stderr.readline()
        (program,) = blocks(KUBERNETES, "python")
        run_example(program.replace("127.0.0.1:4040", address), machine.folder, machine.url)
        process.terminate()
        assert process.wait(60) == 143


def test_the_crontab_runs_each_job_where_it_is_due(machine: Machine) -> None:
    """Two machines have the same lines: what is done in the hour is not done again, and nobody says a word."""
    (crontab,) = blocks(CRON, "crontab")
    lines = [line for line in crontab.splitlines() if line[0] != "#"]
    assert lines[0].partition("=")[0] == "TENURE_URL_FILE"
    for line in lines[1:]:
        assert re.fullmatch(r"[\d*/]+", line.split()[0])
        *_, user, command = line.split(maxsplit=6)
        assert user == "shop"
        for _ in range(2):
            with machine.start(["sh", "-c", command], TENURE_URL_FILE=f"{machine.folder}/url") as process:
                assert process.communicate(timeout=60) == ("", "")
            assert process.returncode == 0
    assert machine.runs() == ["statistics", "clean-up", "clean-up"]


def test_the_units_of_systemd_run_the_job(machine: Machine) -> None:
    """The timer starts the service of its name, whose command runs once in the hour."""
    units: dict[str, configparser.ConfigParser] = {}
    for block in blocks(CRON, "ini"):
        name = block.partition("\n")[0].rpartition("/")[2]
        units[name] = configparser.ConfigParser(interpolation=None)
        units[name].read_string(block)
    timer, service = units["shop-statistics.timer"], units["shop-statistics.service"]
    assert timer["Timer"]["OnCalendar"]
    assert service["Service"]["Environment"].partition("=")[0] == "TENURE_URL_FILE"
    for _ in range(2):
        machine.run(shlex.split(service["Service"]["ExecStart"]), TENURE_URL_FILE=f"{machine.folder}/url")
    assert machine.runs() == ["statistics"]
