"""How long a process takes to start: the import, and the command that a crontab starts every minute."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.harness import Case, Column, Report, Round, Size, duration, interleave, limits, middle
from bench.workload import Workload

BARE, IMPORT, COMMAND = "bare Python", "import tenure", "tenure run x -- true"
ONE_LOCK = "import tenure\nwith tenure.Client().lock('x'): pass"
PROCESSES: dict[str, tuple[Sequence[str], str]] = {
    BARE: ((sys.executable, "-c", "pass"), "floor: the interpreter alone"),
    IMPORT: ((sys.executable, "-c", "import tenure"), "tenure, and nothing done with it"),
    "a client and a lock": ((sys.executable, "-c", ONE_LOCK), "a lease in the lock file of the user"),
    "import asyncio": ((sys.executable, "-c", "import asyncio"), "for comparison: a module of the standard library"),
    "import redis": ((sys.executable, "-c", "import redis"), "for comparison: the client library of Redis"),
    COMMAND: (
        (sys.executable, "-m", "tenure", "run", "x", "--", "true"),
        "a command under a lock in the lock file of the user",
    ),
    "flock x true": (("flock", "x", "true"), "a program in C, which locks a file of this machine"),
}
COLUMNS = (
    Column("median", "seconds", middle(duration)),
    Column("min..max", "seconds", limits(duration)),
    Column("beyond bare Python", "beyond", middle(duration)),
)


def run(workload: Workload, size: Size, folder: Path) -> Report:
    """Compare the durations of whole processes."""
    environment = os.environ | {"HOME": str(folder), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as for an installed package, whose modules are compiled
    measures = {
        Case(label): partial(_seconds_of, command, environment, folder)
        for label, (command, _) in PROCESSES.items()
        if shutil.which(command[0])
    }
    interleave(measures, 1)  # compiles the modules, and makes the lock file
    seconds = interleave(measures, size.pair_rounds)
    found: dict[Case, list[Round]] = {
        case: [{"seconds": one, "beyond": one - bare} for one, bare in zip(rounds, seconds[Case(BARE)], strict=True)]
        for case, rounds in seconds.items()
    }
    return workload.report(size, found, {label: meaning for label, (_, meaning) in PROCESSES.items()})


def _seconds_of(command: Sequence[str], environment: dict[str, str], folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
