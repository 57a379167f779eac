"""The base of all servers: a folder, a port, and a process that is started, awaited, disturbed and ended."""

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Self

from tests.servers import warden
from tests.servers.children import await_stopped
from tests.servers.ports import LOCALHOST, Reservation, reserve
from tests.servers.waiting import TEST_TIMEOUT, ServerFailedError, holds

STOP_TIMEOUT = 5.0
"""How long a server may take for an orderly end, in seconds, before it is killed."""


class Server(ABC):
    """One server process on this machine, with its data and its log in a folder of its own.

    `with` starts and stops the server. `kill()` is a crash; `start()` starts it again on its port, with its data.
    """

    title: ClassVar[str]
    """The title of the server in messages."""
    distances: tuple[int, ...] = ()
    """The distances of its other ports from its own port."""

    def __init__(self, folder: Path, *, port: int | None = None, environment: Mapping[str, str] | None = None) -> None:
        """Prepare a server without starting it. `port` is its port on 127.0.0.1; default: any free port."""
        self.folder = folder
        self._fixed_port = port
        self._reservation: Reservation | None = None
        self._last_port: int | None = None
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._log_begins = 0

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the program and its arguments."""

    @abstractmethod
    def _answers(self) -> bool:
        """Tell whether the server is ready to serve. An `OSError` means no."""

    @property
    def port(self) -> int:
        """The port of the server."""
        if self._reservation is None:
            raise ServerFailedError(f"The {self.title} has no port before it is started.")
        return self._reservation.port

    @property
    def address(self) -> tuple[str, int]:
        """The address for clients."""
        return LOCALHOST, self.port

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._running().pid

    @property
    def runs(self) -> bool:
        """Whether the process is alive, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def serves(self) -> bool:
        """Whether the process is alive and not paused."""
        return self.runs and not self._paused

    def log(self) -> str:
        """Return the log of the server."""
        return self._log_file.read_text("utf-8", errors="replace") if self._log_file.exists() else ""

    def start(self) -> None:
        """Start the server, and return when it serves. Raises `ServerFailedError` with the end of its log."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start the process; `await_ready()` waits until it serves. So several servers can start concurrently."""
        if self.runs:
            raise ServerFailedError(f"The {self.title} runs already.")
        self._end(signal.SIGKILL)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.claim_port()
        self._spawn()

    def claim_port(self) -> int:
        """Reserve and return the port, so that other servers can be configured with it before this one starts."""
        if self._reservation is None:
            self._reservation = reserve(self._fixed_port or self._last_port, self.distances)
        return self._reservation.port

    def await_ready(self, within: float = TEST_TIMEOUT) -> None:
        """Return when the server serves. Raises `ServerFailedError` after `within` seconds."""
        try:
            self._poll(within)
        except BaseException:
            self.stop(0)
            raise

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """End the server in an orderly way, or kill it after `timeout` seconds; release its port."""
        self._end(signal.SIGTERM if timeout else signal.SIGKILL, timeout)
        if self._reservation is not None:
            self._last_port = self._reservation.port
            self._reservation.give_up()
            self._reservation = None

    def kill(self) -> None:
        """Kill the server, like a crash. It keeps its port, and `start()` starts it again."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """End the server in an orderly way, and start it on the same port with its stored data."""
        self._end(signal.SIGTERM)
        self.start()

    def pause(self) -> None:
        """Stop the process with SIGSTOP. Its connections stay open, and the system accepts new ones for it."""
        self._running().send_signal(signal.SIGSTOP)
        self._paused = True
        await_stopped(self._running().pid)

    def resume(self) -> None:
        """Continue the process after a pause."""
        self._running().send_signal(signal.SIGCONT)
        self._paused = False

    def mend(self) -> None:
        """Resume the server if it is paused, start it if it doesn't run."""
        if not self.runs:
            self.start()
        elif not self.serves:
            self.resume()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    @property
    def _log_file(self) -> Path:
        return self.folder / "log"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise ServerFailedError(f"The {self.title} does not run: start it.")
        return self._process

    def _spawn(self) -> None:
        self._log_begins = self._log_file.stat().st_size if self._log_file.exists() else 0
        self._process = self._start_process()

    def _start_process(self) -> subprocess.Popen[bytes]:
        return warden.start(self._command(), folder=self.folder, log=self._log_file, environment=self._environment)

    def _poll(self, within: float) -> None:
        """Poll until the server serves."""
        give_up_at = time.monotonic() + within
        while not holds(self._answers):
            if not self.runs:
                self._try_another_port()
            if time.monotonic() > give_up_at:
                raise self._failure(f"does not serve within {within:g} s")
            time.sleep(0.005)

    def _end(self, number: signal.Signals, timeout: float = STOP_TIMEOUT) -> None:
        """Send the process a signal, if there is one, and wait for its end; kill it after `timeout` seconds."""
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        warden.forget(self._process.pid)
        self._process = None
        self._paused = False

    def _try_another_port(self) -> None:
        """Start on another port if another program took this one. Raises `ServerFailedError` after other failures."""
        if self._fixed_port or "address already in use" not in self._recent_log().lower():
            raise self._failure("ended")
        taken, self._reservation = self._reservation, None
        self.launch()
        if taken is not None:
            taken.give_up()

    def _recent_log(self) -> str:
        return self._log_file.read_bytes()[self._log_begins :].decode("utf-8", errors="replace")

    def _failure(self, what: str) -> ServerFailedError:
        return ServerFailedError(f"The {self.title} {what}. The end of its log:\n{self._recent_log()[-2000:]}")


def start_all(servers: Sequence[Server]) -> None:
    """Start several servers concurrently; stop all if one fails."""
    with ExitStack() as undo:
        for server in servers:
            undo.callback(server.stop, 0)
            server.launch()
        for server in servers:
            server.await_ready()
        undo.pop_all()


def stop_all(servers: Sequence[Server], timeout: float = STOP_TIMEOUT) -> None:
    """Stop several servers. With `timeout` 0 they are killed, for their data are not needed any more."""
    with ExitStack() as each:
        for server in servers:
            each.callback(server.stop, timeout)
