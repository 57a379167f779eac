"""Run the tests that take longer than `make test`, and fail at a skip that is not allowed.

tests/stages.py says which tests there are of each stage and part. Without an option all tests run, in all parts.

    --landing         only what `.ci/run` adds to `make test`: the tests of the stage landing, a quarter of the rotated
                      ones, chosen by the hash of the commit, and more seeds of the simulation
    --part NAME       only this part; several may be given:
        simulation    the simulated protocol, and the bugs that are planted in it
        rules         all other tests that only compute
        pythons       the smoke tests on each other supported Python of this machine, one with the oldest clients
        conformance   what every store must do, on real servers
        stores        all other tests
        models        the models of the protocol

Tests that only compute have the same results on every Python: they run once, on the default one, in the background and
at low priority. Beside them runs what mostly waits on the other Pythons. Then, alone, what mostly waits on the default
Python: there are tests among it with many clients or many lost replies, which keep a machine busy.

    OTHER_PYTHONS="3.13"     which other versions to look for ("" for none)
    SEEDS=1000               how many seeds of each scenario are simulated
    JOBS=auto                how many processes run tests side by side

Usage: python -m scripts.test_all [--landing] [--part NAME] [PYTEST_ARGUMENT...]   (from the top of the project, in its
environment)
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scripts import processes
from scripts.check_skips import complaints, failures
from tests import stages

VERSIONS = ("3.11", "3.12", "3.13")
OLDEST_CLIENTS = {"3.12": ("redis==6.0.0", "hiredis==3.2.0")}
"""The Python that gets the oldest supported client libraries, and their versions."""

WAITING = ("conformance", "stores")
PARTS = (*stages.COMPUTING_PARTS, "pythons", *WAITING, "models")

BUILD = Path("build")
NO_TESTS = 5
"""The status of pytest if the arguments select no test."""


class Session:
    """One run of pytest in a process of its own, with a log and a report."""

    def __init__(
        self, title: str, python: Path | str, arguments: Sequence[str], *, more: Mapping[str, str], background: bool
    ) -> None:
        """Start pytest with more variables in its environment. In the background its output goes only to its log."""
        self.title, self._began = title, time.monotonic()
        self.report, self.log = BUILD / f"junit-{title}.xml", BUILD / f"{title}.log"
        self.report.unlink(missing_ok=True)
        command = [str(python), "-m", "pytest", "--dist", "loadgroup", f"--junitxml={self.report}", *arguments]
        print(f"{title}: {' '.join(command)}", flush=True)
        if background:
            with self.log.open("wb") as log:
                self._process = processes.start(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | more)
        else:
            self._process = processes.start(command, env=os.environ | more)
        self._background = background
        self.ran = True
        """Whether the arguments selected a test."""

    def failed(self) -> bool:
        """Wait for the end of the session, and tell whether a test failed or was skipped without permission."""
        status = processes.wait(self._process)
        if self._background:
            print(self.log.read_text("utf-8", "replace"), flush=True)
        print(f"{self.title}: status {status} after {time.monotonic() - self._began:.0f} s", flush=True)
        if status == NO_TESTS:
            self.ran = False
            return False
        found = complaints(self.report)
        for complaint in found:
            print(complaint, file=sys.stderr)
        return status != 0 or bool(found)


def find_python(version: str) -> str | None:
    """Return the path of a working interpreter of this version, from PATH or from pyenv; None if there is none."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{version}", *map(str, sorted(kept.glob(f"{version}.*/bin/python{version}")))]
    return next((found for each in candidates if (found := shutil.which(each)) and _runs([found, "-c", ""])), None)


def _runs(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def environment_for(version: str, python: str) -> Path:
    """Make the environment of another Python, and return its interpreter. Raises CalledProcessError."""
    venv = Path(f".venv-{version}")
    processes.run(["make", f"{venv}/.installed-dev", f"VENV={venv}", f"PYTHON={python}"]).check_returncode()
    if clients := OLDEST_CLIENTS.get(version):
        processes.run([str(venv / "bin" / "pip"), "install", "--quiet", *clients]).check_returncode()
    return venv / "bin" / "python"


def other_pythons() -> Iterable[tuple[str, str]]:
    """Yield the requested other versions that this machine has, each with the path of its interpreter."""
    default = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in os.environ.get("OTHER_PYTHONS", " ".join(VERSIONS)).split():
        if version != default:
            if python := find_python(version):
                yield version, python
            else:
                print(f"Python {version} is not on this machine: not tested.", flush=True)


def quarter() -> int:
    """Return which quarter of the rotated tests belongs to the present commit. Raises CalledProcessError."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    number = int(done.stdout.strip(), 16) % stages.QUARTERS
    print(f"Rotated tests: quarter {number + 1} of {stages.QUARTERS}, that of commit {done.stdout[:12]}.", flush=True)
    return number


class Run:
    """Some parts of the tests, and what became of them."""

    def __init__(self, parts: Sequence[str], arguments: Sequence[str], *, landing: bool) -> None:
        """Prepare to run the parts."""
        self._parts, self._arguments = parts, arguments
        self._stages = " and (landing or rotated or seeds)" if landing else ""
        self._more = {"TENURE_SIMULATION_SEEDS": os.environ.get("SEEDS", "1000")}
        if landing:
            self._more[stages.QUARTER] = str(quarter())
        self.sessions: list[Session] = []
        self.failed: list[str] = []

    def all(self) -> None:
        """Run all of it."""
        computing = self._start("computing", stages.COMPUTING_PARTS, jobs="2", background=True)
        if "pythons" in self._parts:
            self._other_pythons()
        for session in computing:
            self._end(session)
        for session in self._start("waiting", WAITING, jobs=os.environ.get("JOBS", "auto"), background=False):
            self._end(session)

    def _start(self, title: str, parts: Sequence[str], *, jobs: str, background: bool) -> list[Session]:
        """Start a session for those of the parts that are wanted, if any is."""
        if not (wanted := [part for part in parts if part in self._parts]):
            return []
        marks = f"({' or '.join(wanted)}){self._stages}"
        arguments = ["-n", jobs, "-m", marks, *self._arguments]
        session = Session(title, sys.executable, arguments, more=self._more, background=background)
        self.sessions.append(session)
        return [session]

    def _other_pythons(self) -> None:
        for version, python in other_pythons():
            arguments = ["-n", os.environ.get("JOBS", "auto"), "-m", "smoke", *self._arguments]
            environment = environment_for(version, python)
            self.sessions.append(Session(f"python{version}", environment, arguments, more={}, background=False))
            self._end(self.sessions[-1])

    def _end(self, session: Session) -> None:
        if session.failed():
            self.failed.append(session.title)


def main(words: Sequence[str]) -> int:
    """Run what is wanted; return 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.test_all", description="See the top of the file.")
    parser.add_argument("--landing", action="store_true")
    parser.add_argument("--part", action="append", choices=PARTS)
    options, arguments = parser.parse_known_args(words)
    parts = options.part or PARTS
    BUILD.mkdir(exist_ok=True)
    with processes.owned():
        return _run(parts, arguments, landing=options.landing)


def _run(parts: Sequence[str], arguments: Sequence[str], *, landing: bool) -> int:
    run = Run(parts, arguments, landing=landing)
    run.all()
    empty = [session.title for session in run.sessions if not session.ran]
    if empty and (not arguments or len(empty) == len(run.sessions)):
        run.failed.append(f"no test is selected in {', '.join(empty)}")
    models = "models" in parts and not arguments
    if models and processes.run([sys.executable, "-m", "models.run"]).returncode:
        run.failed.append("models")
    for session in run.sessions:  # once more at the end, where whoever reads the log looks first
        print("".join(failures(session.report)), end="")
    print(f"failed: {', '.join(run.failed)}" if run.failed else "everything passed")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
