"""How long a process takes to start: the import, and the command that a crontab starts every minute."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.harness import Bound, Report, Row, Size, duration, interleave, spread

IMPORT_LIMIT = 60.0
COMMAND_LIMIT = 200.0
"""Milliseconds."""

BARE, IMPORT, COMMAND = "bare Python", "import tenure", "tenure run x -- true"

PROCESSES: dict[str, tuple[Sequence[str], str]] = {
    BARE: ((sys.executable, "-c", "pass"), "floor: the interpreter alone"),
    IMPORT: ((sys.executable, "-c", "import tenure"), "tenure, and nothing done with it"),
    "a client and a lock": (
        (sys.executable, "-c", "import tenure\nwith tenure.Client().lock('x'): pass"),
        "a lease in the lock file of the user",
    ),
    "import asyncio": ((sys.executable, "-c", "import asyncio"), "for comparison: a module of the standard library"),
    "import redis": ((sys.executable, "-c", "import redis"), "for comparison: the client library of Redis"),
    COMMAND: (
        (sys.executable, "-m", "tenure", "run", "x", "--", "true"),
        "a command under a lock in the lock file of the user",
    ),
    "flock x true": (("flock", "x", "true"), "a program in C, which locks a file of this machine"),
}


def run(size: Size, folder: Path) -> Report:
    """Compare the durations of whole processes."""
    present = {label: one for label, one in PROCESSES.items() if shutil.which(one[0][0])}
    environment = os.environ | {"HOME": str(folder), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as for an installed package, whose modules are compiled
    contenders: dict[str, Callable[[], float]] = {
        label: partial(_seconds_of, command, environment, folder) for label, (command, _meaning) in present.items()
    }
    interleave(contenders, 1)  # compiles the modules, and makes the lock file
    seconds = interleave(contenders, 3 * size.pair_rounds)
    report = Report("start", "the start of a process, to its end", ["median", "min..max", "beyond bare Python"])
    beyond = {
        label: spread(one - bare for one, bare in zip(found, seconds[BARE], strict=True)).median
        for label, found in seconds.items()
    }
    for label, found in seconds.items():
        over = spread(found)
        cells = [duration(over.median), f"{duration(over.low)}..{duration(over.high)}", duration(beyond[label])]
        report.rows.append(Row(label, cells, present[label][1], {"seconds": found}))
    command = spread(seconds[COMMAND]).median
    report.bounds = [
        Bound(f"{IMPORT}, beyond bare Python", beyond[IMPORT] * 1e3, IMPORT_LIMIT, " ms"),
        Bound(COMMAND, command * 1e3, COMMAND_LIMIT, " ms"),
    ]
    return report


def _seconds_of(command: Sequence[str], environment: dict[str, str], folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
