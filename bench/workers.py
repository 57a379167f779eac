"""Child processes that follow the benchmark's commands. The rule: none of them outlives the benchmark."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

CONTEXT = multiprocessing.get_context("spawn")
TEST_TIMEOUT = 60.0
"""How long a reply of a child may take, in seconds."""


class Worker:
    """A child process that runs `target(line, *args)`, and is killed by its pid at the end."""

    def __init__(self, target: Callable[..., None], *args: object) -> None:
        """Start the process."""
        self._line, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_run, args=(target, theirs, *args), daemon=True)
        self._process.start()
        theirs.close()

    def order(self, what: object) -> None:
        """Send the child a command."""
        self._line.send(what)

    def answer(self) -> Any:  # noqa: ANN401 - each target has replies of its own type
        """Return the child's next reply. Raises TimeoutError without a reply, EOFError if the child died."""
        if not self._line.poll(TEST_TIMEOUT):
            message = f"no answer of process {self._process.pid} within {TEST_TIMEOUT:g} s"
            raise TimeoutError(message)
        return self._line.recv()

    def kill(self) -> None:
        """Kill the child with SIGKILL, and wait for its end."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._process.close()
        self._line.close()


def _run(target: Callable[..., None], line: Connection, *args: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles an interrupt, and kills this process
    with contextlib.suppress(EOFError, BrokenPipeError):
        target(line, *args)
