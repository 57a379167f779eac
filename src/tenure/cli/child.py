"""The command under the lock: a process group of its own, so that all its processes can be ended at once.

In a terminal the command is therefore a background job, which may write but not read. So tenure lends the terminal to
the command as soon as the kernel stops the command for using it; a shell would lend it beforehand. Most commands never
read from the terminal: for them Ctrl-C reaches tenure (and the script around it), and tenure forwards it.
"""

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from tenure.cli.diagnostics import Status
from tenure.cli.wakeups import known_signals

TERMINAL_STOPS = known_signals("SIGTTIN", "SIGTTOU")
JOB_STOPS = TERMINAL_STOPS | known_signals("SIGTSTP")

RESTORED = tuple(known_signals("SIGPIPE", "SIGXFSZ", "SIGCHLD"))
"""Signals that Python or a parent may ignore; the command starts with their defaults."""


class Child:
    """A running command, the leader of its process group."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the command. Raises FileNotFoundError if there is no such command, OSError if it can't be run."""
        self.pid = os.posix_spawnp(command[0], list(command), environment, setpgroup=0, setsigdef=RESTORED)
        self._status: int | None = None
        self._terminal = Terminal()

    def poll(self) -> int | None:
        """Return the exit status, as a shell gives it, once the command has ended; handle its stops until then."""
        while self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return None
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status))
            else:
                self._ended(os.waitstatus_to_exitcode(status))
        return self._status

    def signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        if self._status is None:
            os.kill(self.pid, number)

    def signal_all(self, number: int) -> None:
        """Send a signal to the command and all processes of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def wait(self) -> None:
        """Wait until the command has ended."""
        if self._status is None:
            self._ended(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))

    def _ended(self, code: int) -> None:
        self._status = code if code >= 0 else Status.SIGNALLED - code
        self._terminal.take_back()

    def _stopped(self, by: int) -> None:
        """Lend the terminal to a command that reads from it; stop together with a command stopped by Ctrl-Z."""
        if by in TERMINAL_STOPS and self._terminal.lend(self.pid):
            self.signal_all(signal.SIGCONT)
        elif by in JOB_STOPS:
            lent = self._terminal.take_back()
            stop_oneself()
            if lent:
                self._terminal.lend(self.pid)
            self.signal_all(signal.SIGCONT)


def stop_oneself() -> None:
    """Stop this process, like Ctrl-Z, until it is continued. While stopped it renews nothing, and may lose leases."""
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)


class Terminal:
    """The terminal that this process was started from, if any."""

    def __init__(self) -> None:
        """Start with the terminal not lent."""
        self._lent = False

    def lend(self, group: int) -> bool:
        """Put process group `group` in the foreground if this process is there; return whether it was."""
        try:
            with _Tty() as tty:
                if os.tcgetpgrp(tty) != os.getpgrp():
                    return False
                os.tcsetpgrp(tty, group)
        except OSError:
            return False
        self._lent = True
        return True

    def take_back(self) -> bool:
        """Put this process in the foreground again if the terminal was lent; return whether it was."""
        lent, self._lent = self._lent, False
        if lent:
            with contextlib.suppress(OSError), _Tty() as tty:
                os.tcsetpgrp(tty, os.getpgrp())
        return lent


class _Tty:
    """The open controlling terminal, with SIGTTOU blocked: else the kernel stops a background process that takes it."""

    def __enter__(self) -> int:
        self._descriptor = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        os.close(self._descriptor)
