"""One place where the main thread waits: signals and wake-ups from other threads arrive as bytes in a socket pair.

The rule: no work is done inside a signal handler, and no handler raises an exception. The main thread reads the
signals in their order when it is ready for them.
"""

import contextlib
import select
import signal
import socket
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Self

WAKE = 0
READ = 4096


def known_signals(*names: str) -> frozenset[signal.Signals]:
    """Return the signals of these names, without those that this system does not have: Windows has few."""
    return frozenset(getattr(signal, name) for name in names if hasattr(signal, name))


class Wakeups:
    """The wake-up pipe of the main thread: the given signals and `wake` write to it."""

    def __init__(self, signals: Iterable[int]) -> None:
        """Prepare to receive `signals`; a signal that is ignored, as nohup ignores SIGHUP, stays ignored."""
        self._signals = list(signals)
        self._before: dict[int, object] = {}
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)
        self._wakeup_before = -1

    def wake(self) -> None:
        """Wake the main thread. Callable from any thread, at any time."""
        with contextlib.suppress(OSError):
            self._writer.send(bytes([WAKE]))

    def wait(self, timeout: float | None) -> list[int]:
        """Wait for a signal, a wake-up or the timeout; return the signals that arrived, in order."""
        if not select.select([self._reader], [], [], timeout)[0]:
            return []
        return [number for number in self._reader.recv(READ) if number != WAKE]

    def __enter__(self) -> Self:
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self._signals:
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, _leave_it_to_the_socket)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # what signal.signal returned
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()


def _leave_it_to_the_socket(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written the signal's number to the socket already."""
