"""The worker processes of one round. The rule: no worker outlives its round, whatever happens."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from demo import interrupts
from demo.plan import DemoError, DemoEvent, Plan, load_event

READ = 65536
ENDING = 10.0
"""How long to wait for the end of a killed process, in seconds."""


class Crew:
    """The running workers. They send their events through one pipe."""

    def __init__(self, plan: Plan, url: str, folder: Path) -> None:
        """Prepare the workers. `__enter__` starts them."""
        self._plan = plan
        self._url = url
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()
        self._pipe = -1
        self._rest = b""

    def __enter__(self) -> Self:
        self._pipe, end = os.pipe()
        path = self._folder / "plan.json"
        self._plan.save(path)
        try:
            with interrupts.deferred():
                for number in range(self._plan.workers):
                    self._processes.append(self._start(path, number, end))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        finally:
            os.close(end)
        return self

    def _start(self, plan: Path, number: int, pipe: int) -> subprocess.Popen[bytes]:
        """Start a worker in a process group of its own: Ctrl-C does not reach it, and the demo itself ends it."""
        with self._errors(number).open("wb") as errors:
            return subprocess.Popen(  # noqa: S603 - this same program
                [sys.executable, "-P", "-m", "demo.worker", str(plan), str(number)],
                stdin=subprocess.PIPE,
                stdout=pipe,
                stderr=errors,
                env={**os.environ, "TENURE_URL": self._url, "PYTHONPATH": os.pathsep.join(sys.path)},
                process_group=0,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with interrupts.deferred():
            for process in self._processes:
                process.kill()
            for process in self._processes:
                process.wait(ENDING)
                if process.stdin is not None:
                    with contextlib.suppress(OSError):
                        process.stdin.close()
            os.close(self._pipe)

    def events(self, timeout: float) -> list[DemoEvent] | None:
        """Return the next events, waiting up to `timeout` seconds for them; None once all workers have ended."""
        if not select.select([self._pipe], [], [], max(0.0, timeout))[0]:
            return []
        data = os.read(self._pipe, READ)
        if not data:
            return None
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [load_event(line) for line in whole]

    def tell(self, number: int) -> None:
        """Let a worker begin, or go on after its pause."""
        stdin = self._processes[number].stdin
        with contextlib.suppress(BrokenPipeError):
            if stdin is not None:
                stdin.write(b"go\n")
                stdin.flush()

    def send_signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal to a worker."""
        self._processes[number].send_signal(what)

    def kill(self, number: int) -> None:
        """Kill a worker, as the kernel does when memory is short."""
        self._killed.add(number)
        self._processes[number].kill()

    def check_health(self) -> None:
        """Raise DemoError if a worker has failed, unless `kill` ended it."""
        for number, process in enumerate(self._processes):
            if process.poll() and number not in self._killed:
                words = self._errors(number).read_text("utf-8", "replace").strip().splitlines()
                raise DemoError(f"worker {number + 1} failed: {words[-1] if words else process.returncode}")

    def check_ends(self, until: float) -> None:
        """Wait for the end of all workers. Raises DemoError if a worker failed or does not end in time."""
        try:
            for process in self._processes:
                process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise DemoError("a worker did not end in time. Run the demo again, on an idle machine.") from None
        self.check_health()

    def _errors(self, number: int) -> Path:
        return self._folder / f"worker-{number}.err"
