"""The child processes of a program: each leads a group of its own, and no process of a group outlives the program.

A program that is ended by SIGTERM would leave them behind. A signal to a child alone does not reach the children of
that child, such as the workers of a pytest. Only a program that is killed with SIGKILL leaves them.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from demo.interrupts import deferred, handled

GRACE = 60.0
"""How long a group may take to end after a signal as by Ctrl-C, in seconds: sessions of pytest stop their servers."""

_mutex = threading.Lock()
_running = set[subprocess.Popen[Any]]()
_ends = threading.Event()
"""Set once the program ends: threads of it may be about to start other processes."""


@contextmanager
def owned() -> Generator[None]:
    """Turn SIGTERM, SIGHUP and Ctrl-C into SystemExit, and end all processes that still run if anything is raised."""
    with handled():
        try:
            yield
        except BaseException:
            with _mutex:
                _ends.set()
                left = list(_running)
            for each in left:
                end(each)
            raise


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:  # noqa: ANN401 - those of Popen
    """Start a process that leads a group. Raises RuntimeError once the program ends."""
    in_main = threading.current_thread() is threading.main_thread()
    with deferred() if in_main else nullcontext(), _mutex:
        if _ends.is_set():
            raise RuntimeError("the program ends")
        process = subprocess.Popen(command, process_group=0, **options)
        _running.add(process)
    return process


def wait(process: subprocess.Popen[Any]) -> int:
    """Wait for the end of a process, end what is left of its group, and return its status."""
    try:
        return process.wait()
    finally:
        end(process)


def run(
    command: Sequence[str],
    timeout: float | None = None,
    **options: Any,  # noqa: ANN401
) -> subprocess.CompletedProcess[Any]:
    """Run a process to its end, as `subprocess.run` does, and end what is left of its group."""
    process = start(command, **options)
    try:
        out, _ = process.communicate(timeout=timeout)
    finally:
        end(process)
    return subprocess.CompletedProcess(command, process.returncode, out)


def end(process: subprocess.Popen[Any], grace: float | None = None) -> None:
    """End a process and its group: as Ctrl-C does if it still runs, and for good what is left then or after GRACE.

    Call it soon after the process has ended: later the system may give its number to another one.
    """
    with _mutex:
        if process not in _running:
            return
        _running.remove(process)
    grace = GRACE if grace is None else grace
    try:
        if grace and process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace)
    finally:
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses a signal to a group of zombies
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
