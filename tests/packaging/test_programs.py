"""No process outlives the program that started it, whatever ends the program."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.servers import wait_until
from tests.servers.children import Child, children, end

ROOT = Path(__file__).parents[2]

SIGNALS = [signal.SIGTERM, signal.SIGINT]

HANGS = """
import pathlib, subprocess, sys
import pytest

@pytest.mark.rules
def test_hangs():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path("begun").touch()
    while True:
        pass
"""

SEARCHES = """
from concurrent.futures import ThreadPoolExecutor
from scripts import processes

processes.GRACE = 0.1
with ThreadPoolExecutor(2) as pool, processes.owned():
    list(pool.map(lambda _: processes.run(["/bin/sh", "-c", "trap '' INT; sleep 600 & wait"]), range(9)))
"""
"""As models.run searches."""


def below(pid: int) -> list[Child]:
    """Return the children of a process, and theirs."""
    found = children(pid)
    return found + [each for child in found for each in below(child.pid)]


def assert_it_leaves_nothing(
    command: Sequence[str], folder: Path, begun: Callable[[list[Child]], object], number: signal.Signals
) -> None:
    """Run a program, and send it a signal once it has `begun`; then none of its processes may be left."""
    program = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    started: list[Child] = []
    try:
        wait_until(lambda: begun(below(program.pid)), f"the processes of {' '.join(command)}")
        started = below(program.pid)
        program.send_signal(number)
        wait_until(lambda: not any(each.lives for each in started), f"the end of {started}")
        assert program.wait(30) != 0
    finally:
        program.kill()
        program.wait()
        end(started)


@pytest.mark.parametrize("number", [*SIGNALS, signal.SIGKILL])
def test_the_workers_of_the_simulation_end_with_it(number: signal.Signals, tmp_path: Path) -> None:
    """Those that are idle, too: they would wait for ever for the next seeds."""
    command = ["-m", "simulation", "--seeds", "1000000", "--jobs", "2"]
    assert_it_leaves_nothing(command, tmp_path, lambda found: len(found) > 2, number)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_workers_of_all_tests_end_with_them(number: signal.Signals, tmp_path: Path) -> None:
    """In the middle of a test, with what the test has started."""
    (tmp_path / "test_hangs.py").write_text(HANGS)
    command = ["-m", "scripts.test_all", "--part", "rules", "test_hangs.py"]
    assert_it_leaves_nothing(command, tmp_path, lambda _: (tmp_path / "begun").exists(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_what_threads_run_ends_with_the_program(number: signal.Signals, tmp_path: Path) -> None:
    """The program kills each process that ignores the signal, and begins no other."""
    assert_it_leaves_nothing(["-c", SEARCHES], tmp_path, lambda found: len(found) > 3, number)
