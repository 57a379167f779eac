"""Processes that a test starts from one of its modules. They end at the test's request, or are killed."""

import json
import selectors
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
API_FORMS = ("threads", "asyncio")

WAIT = 120.0
"""How long a process may take to its first lease, in seconds: only ever used up by a failure."""


class Children:
    """Several processes. The end of the `with` kills them."""

    def __init__(self, module: str, arguments: Iterable[Sequence[str]]) -> None:
        """Start a process for each list of arguments."""
        command = [sys.executable, "-W", "error", "-m", module]
        self._processes = [
            subprocess.Popen([*command, *each], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            for each in arguments
        ]

    def __len__(self) -> int:
        return len(self._processes)

    def await_start(self) -> None:
        """Return when each process has had a lease."""
        for process in self._processes:
            assert process.stdout is not None
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                assert selector.select(WAIT), f"process {process.pid} has had no lease within {WAIT:g} s"
            assert process.stdout.readline() == "at work\n"

    def _end(self, timeout: float) -> list[Any]:
        """Ask all processes to end, and return the last output of each. Each must end by itself, without an error."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
        last: list[Any] = []
        for process in self._processes:
            said, _ = process.communicate(timeout=timeout)
            assert process.returncode == 0, f"a process has ended with status {process.returncode}: {said[-2000:]}"
            last.append(json.loads(said))
        return last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
