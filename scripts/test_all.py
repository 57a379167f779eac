"""Run all tests, on each supported Python of this machine, and fail at a skip that is not allowed.

Tests that only compute (the simulation, the properties and their planted bugs) have the same results on every Python:
they run once, on the default one, in the background and at low priority. Beside them runs the selection of `make test`
that mostly waits, on each other Python. Then, alone, all that mostly wait run on the default Python: among them are
those that have many clients or lose many replies, which keep a machine busy. At last come the models of the protocol.
The Python between the oldest and the newest runs with the oldest supported client libraries, and without the
tests of the servers that these are not for: what is the same on its neighbours is the same there.

    OTHER_PYTHONS="3.13"     which other versions to look for ("" for none)
    SEEDS=2000               how many seeds of each scenario are simulated
    JOBS=auto                how many processes run tests side by side
    TESTED=1                 `make test` has just passed here: only what it left out runs on the default Python, and
                             the simulation with more seeds

Usage: python -m scripts.test_all [PYTEST_ARGUMENT...]   (from the top of the project, in its environment)
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from scripts.check_skips import complaints, failures

VERSIONS = ("3.11", "3.12", "3.13")
OLDEST_CLIENTS = {"3.12": ("redis==6.0.0", "hiredis==3.2.0")}
"""The Python that gets the oldest supported client libraries, and their versions."""

APART = (
    "postgresql or mysql or mariadb or etcd or zookeeper or memcached or fencing or jobs or docs or demo or advisory"
)
"""Which tests that Python leaves out, as pytest's -k says it."""

BUILD = Path("build")
GRACE = 60.0
"""Within how many seconds a session must end after Ctrl-C."""

NO_TESTS = 5
"""The status of pytest if the arguments select no test."""


class Session:
    """One run of pytest in a process of its own, with a log and a report."""

    def __init__(self, title: str, python: Path | str, arguments: Sequence[str], *, background: bool = False) -> None:
        """Start pytest. In the background its output goes only to its log."""
        self.title, self._began = title, time.monotonic()
        self.report, self.log = BUILD / f"junit-{title}.xml", BUILD / f"{title}.log"
        self.report.unlink(missing_ok=True)
        command = [str(python), "-m", "pytest", "--dist", "loadgroup", f"--junitxml={self.report}", *arguments]
        print(f"{title}: {' '.join(command)}", flush=True)
        environment = os.environ | {"TENURE_SIMULATION_SEEDS": os.environ.get("SEEDS", "2000")}
        if background:
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        else:
            self._process = subprocess.Popen(command, env=environment)
        self._background = background
        self.ran = True
        """Whether the arguments selected a test."""

    def failed(self) -> bool:
        """Wait for the end of the session, and tell whether a test failed or was skipped without permission."""
        status = self._process.wait()
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

    def end(self) -> None:
        """End a running session like Ctrl-C, so that it stops its servers."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


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
    subprocess.run(["make", f"{venv}/.installed-dev", f"VENV={venv}", f"PYTHON={python}"], check=True)
    if clients := OLDEST_CLIENTS.get(version):
        subprocess.run([venv / "bin" / "pip", "install", "--quiet", *clients], check=True)
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


def main(arguments: Sequence[str]) -> int:
    """Run all; return 1 if anything failed."""
    BUILD.mkdir(exist_ok=True)
    jobs = ["-n", os.environ.get("JOBS", "auto")]
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))  # so that no session keeps running
    failed: list[str] = []
    tested = bool(os.environ.get("TESTED"))
    computing = "computing and (thorough or seeds)" if tested else "computing"
    sessions = [Session("computing", sys.executable, ["-n", "2", "-m", computing, *arguments], background=True)]
    try:
        for version, python in other_pythons():
            apart = ["-k", f"not ({APART})"] if version in OLDEST_CLIENTS and not arguments else []
            selection = [*jobs, "-m", "not thorough and not computing", *apart, *arguments]
            sessions.append(Session(f"python{version}", environment_for(version, python), selection))
            failed += [sessions[-1].title] if sessions[-1].failed() else []
        failed += [sessions[0].title] if sessions[0].failed() else []
        left = "not computing and thorough" if tested else "not computing"
        sessions.append(Session("waiting", sys.executable, [*jobs, "-m", left, *arguments]))
        failed += [sessions[-1].title] if sessions[-1].failed() else []
    finally:
        for session in sessions:
            session.end()
    if not any(session.ran for session in sessions):
        failed.append(f"no test is selected by {' '.join(arguments)}")
    if not arguments and subprocess.run([sys.executable, "-m", "models.run"], check=False).returncode:
        failed.append("models")
    for session in sessions:  # once more at the end, where whoever reads the log looks first
        print("".join(failures(session.report)), end="")
    print(f"failed: {', '.join(failed)}" if failed else "everything passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
