"""Repeat a command on a busy machine that freezes now and then, and count how often the command fails.

Processes that only compute run beside the command. Every few seconds a freezer cgroup stops the command and all its
processes for half a second, without a signal. A test that fails here needs more of the machine than the product does.
The cgroup needs Linux and root.

Usage: python -m scripts.stress [--rounds 20] [--burners 4] [--freeze 0.5] [--every 8] [--logs build/stress] -- COMMAND
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scripts import processes

BURN = [sys.executable, "-c", "while True: pass"]


class Freezer:
    """A cgroup whose processes can be stopped and continued together."""

    def __init__(self) -> None:
        """Make the cgroup. Raises OSError if the system or the user's rights do not allow it."""
        version_1 = Path("/sys/fs/cgroup/freezer")
        root = version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")
        self._folder = root / f"tenure-stress-{os.getpid()}"
        self._folder.mkdir()
        self._switch, self._on, self._off = self._folder / "cgroup.freeze", "1", "0"
        if version_1.is_dir():
            self._switch, self._on, self._off = self._folder / "freezer.state", "FROZEN", "THAWED"

    def enter(self) -> None:
        """Put the calling process, and all processes that it will start, into the cgroup."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def freeze(self, seconds: float) -> None:
        """Stop all processes of the cgroup for so long."""
        self._switch.write_text(self._on)
        try:
            time.sleep(seconds)
        finally:
            self._switch.write_text(self._off)

    def remove(self) -> None:
        """Remove the cgroup once its last process has ended."""
        for _ in range(50):
            try:
                self._folder.rmdir()
            except OSError:
                time.sleep(0.1)
            else:
                return
        print(f"{self._folder} was not removed, for a process still runs in it: end it, and run rmdir", file=sys.stderr)


@contextmanager
def burners(count: int) -> Generator[None]:
    """Run so many processes that only compute."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.callback(processes.end, processes.start(BURN), grace=0.0)
        yield


@contextmanager
def freezes(freezer: Freezer, seconds: float, every: float) -> Generator[None]:
    """Freeze the processes of the cgroup repeatedly, at random intervals of `every` seconds on average."""
    over = threading.Event()
    moments = random.SystemRandom()

    def run() -> None:
        while seconds and not over.wait(moments.uniform(0.5, 1.5) * every):
            freezer.freeze(seconds)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run_round(command: Sequence[str], log: Path, freezer: Freezer) -> int:
    """Run the command once, with its output in a file; return its status."""
    with log.open("wb") as out:
        return processes.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=freezer.enter,
        ).returncode


def main() -> int:
    """Run the command line; return 1 if a round failed, 2 if there is no freezer cgroup."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--burners", type=int, default=4, help="how many processes compute beside the command")
    parser.add_argument("--freeze", type=float, default=0.5, help="how many seconds a freeze lasts (0: never)")
    parser.add_argument("--every", type=float, default=8.0, help="the interval of the freezes in seconds, on average")
    parser.add_argument("--logs", type=Path, default=Path("build/stress"), help="the folder for the command's output")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    shutil.rmtree(options.logs, ignore_errors=True)
    options.logs.mkdir(parents=True)
    try:
        freezer = Freezer()
    except OSError as error:
        print(f"no freezer cgroup can be made here ({error}): run it on Linux, as root", file=sys.stderr)
        return 2
    failed = 0
    try:
        with processes.owned(), burners(options.burners), freezes(freezer, options.freeze, options.every):
            for number in range(1, options.rounds + 1):
                began, log = time.monotonic(), options.logs / f"round-{number}.log"
                status = run_round(options.command, log, freezer)
                failed += status != 0
                verdict = "passed" if status == 0 else f"FAILED with status {status}, see {log}"
                print(f"round {number}: {verdict} in {time.monotonic() - began:.0f} s", flush=True)
    finally:
        freezer.remove()
    print(f"{options.rounds - failed} of {options.rounds} rounds passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
