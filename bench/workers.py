"""Child processes that do what they are told, and that never outlive the benchmark."""

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
"""How long an answer may take, in seconds, before the benchmark gives up."""


class Worker:
    """A child that runs `target(line, *args)` and is killed, by its pid, at the end."""

    def __init__(self, target: Callable[..., None], *args: object) -> None:
        """Start it."""
        self._line, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_run, args=(target, theirs, *args), daemon=True)
        self._process.start()
        theirs.close()

    def order(self, what: object) -> None:
        """Send it something to do."""
        self._line.send(what)

    def answer(self) -> Any:  # noqa: ANN401 - what a worker answers is between it and who asks
        """Return its next answer. Raises TimeoutError if there is none, EOFError if it died."""
        if not self._line.poll(TEST_TIMEOUT):
            message = f"no answer of process {self._process.pid} within {TEST_TIMEOUT:g} s"
            raise TimeoutError(message)
        return self._line.recv()

    def kill(self) -> None:
        """Send it SIGKILL and wait for its end."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle: it kills us
    with contextlib.suppress(EOFError, BrokenPipeError):
        target(line, *args)
