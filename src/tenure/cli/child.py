"""The command under the lock: a process group of its own, so that all its processes can be ended at once.

In a terminal the command is therefore a background job, which may write but not read. So tenure lends the terminal to
the command as soon as the kernel stops the command for using it; a shell would lend it beforehand. Most commands never
read from the terminal: for them Ctrl-C reaches tenure (and the script around it), and tenure forwards it.

If tenure is killed, the command ends with it: else it would go on after the lease has run out, beside the next holder.
A shell, the *watcher*, reads a pipe that tenure alone can write to. When the pipe ends, it kills the process group. On
Linux the kernel kills the command itself as well (`launcher.py`), wherever that has gone. The command starts only once
it is watched.
"""

import contextlib
import errno
import os
import pkgutil
import signal
import sys
from collections.abc import Mapping, Sequence

from tenure.cli import launcher
from tenure.cli.output import Status


def known_signals(*names: str) -> frozenset[signal.Signals]:
    """Return the signals of these names, without those that this system does not have: Windows has few."""
    return frozenset(getattr(signal, name) for name in names if hasattr(signal, name))


TERMINAL_STOPS = known_signals("SIGTTIN", "SIGTTOU")
JOB_STOPS = TERMINAL_STOPS | known_signals("SIGTSTP")

RESTORED = tuple(known_signals("SIGPIPE", "SIGXFSZ", "SIGCHLD"))
"""Signals that Python or a parent may ignore; the command starts with their defaults."""

WATCH = 'trap "" HUP INT QUIT TERM; read -r end || kill -s KILL -- "-$1"'
"""The shell program of the watcher. It reads one line from its pipe; if the pipe ends first, it kills the group."""


class Child:
    """A running command, the leader of its process group."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the command. Raises FileNotFoundError if there is no such command, OSError if it can't be run."""
        self._status: int | None = None
        self._terminal = Terminal()
        words = [os.fsencode(word) for word in command]
        words += [os.fsencode(f"{name}={value}") for name, value in environment.items()]
        if any(b"\0" in word for word in words):
            raise OSError(errno.EINVAL, "it has a NUL in its words or its environment")
        words_in, words_out = os.pipe()
        failure_in, failure_out = os.pipe()
        with os.fdopen(words_out, "wb") as launcher, os.fdopen(failure_in, "rb") as failures:
            self.pid = _spawn_launcher(words_in, failure_out)
            try:
                self._watcher = _Watcher(self.pid)
                launcher.write(b"\0".join([str(len(command)).encode(), *words]))
                launcher.close()
                failure = failures.read()  # ends as soon as the launcher has become the command
            except BaseException:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise
        if failure:
            self.wait()
            raise OSError(int(failure), os.strerror(int(failure)))

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
        self._watcher.end()
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


def _spawn_launcher(request: int, reply: int) -> int:
    """Start the launcher of a command in a process group of its own. The ends of the pipes are closed here."""
    try:
        for descriptor in (request, reply):
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - takes no keyword
        program = pkgutil.get_data("tenure.cli", "launcher.py") or b""
        call = [sys.executable, "-I", "-S", "-c", program.decode(), *map(str, (os.getpid(), request, reply))]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ()) | launcher.HELD_BACK
        return os.posix_spawn(sys.executable, call, os.environ, setpgroup=0, setsigdef=RESTORED, setsigmask=mask)
    finally:
        os.close(request)
        os.close(reply)


class _Watcher:
    """The process that kills the command's process group if this process ends before the command."""

    def __init__(self, group: int) -> None:
        source, self._sink = os.pipe()
        streams = (
            (os.POSIX_SPAWN_DUP2, source, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        )
        call = ["sh", "-c", WATCH, "tenure-watcher", str(group)]
        try:
            self._pid = os.posix_spawn("/bin/sh", call, {}, file_actions=streams, setpgroup=0, setsigdef=RESTORED)
        except BaseException:
            os.close(self._sink)
            raise
        finally:
            os.close(source)

    def end(self) -> None:
        """Watch no longer: the command has ended, and what it has left behind may go on."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._sink, b"\n")
        os.close(self._sink)
        os.waitpid(self._pid, 0)


def stop_oneself() -> None:
    """Stop this process, like Ctrl-Z, until it is continued. While stopped it renews nothing, and may lose leases."""
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)


class Terminal:
    """The terminal that this process was started from, if any."""

    def __init__(self) -> None:
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
