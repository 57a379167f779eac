"""The warden, which ends servers with the process that started them, however that process ends.

The warden is a small shell process that reads from a pipe which processes to watch. When the pipe closes, for instance
because its writer was killed, the warden kills the remaining processes. (The kernel can do that too, but ties it to the
thread that started the process.) A process sends its own id to the warden before it executes the server program, so
that no server is ever unwatched.
"""

import atexit
import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

WARDEN = r"""
trap '' HUP INT TERM
pids=' '
while read -r sign pid; do
    case $sign in
    +) pids="$pids$pid " ;;
    -) pids="${pids%% $pid *} ${pids#* $pid }" ;;
    esac
done
[ "$pids" = ' ' ] || kill -KILL $pids 2>/dev/null
"""

REGISTER_AND_RUN = 'echo "+ $$" >&0; exec "$@" </dev/null'
"""The shell command that registers a process with the warden and runs it. Standard input is the pipe to the warden."""


class Warden:
    """The warden of this process."""

    def __init__(self) -> None:
        """Start the warden."""
        reading, self.entrance = os.pipe()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", WARDEN], stdin=reading, stdout=subprocess.DEVNULL, start_new_session=True
            )
        finally:
            os.close(reading)

    def forget(self, pid: int) -> None:
        """Stop watching a process: it has ended, and its id may be given to another process."""
        os.write(self.entrance, b"- %d\n" % pid)

    def dismiss(self) -> None:
        """End the warden, and with it the processes that it still watches."""
        os.close(self.entrance)
        self._process.wait()

    def disown(self) -> None:
        """Leave the warden to the parent process, from which this process was forked."""
        os.close(self.entrance)
        self._process.returncode = 0  # it is no child of this process, so there is nothing to wait for


class _Wardens:
    """The warden of each process, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._warden: Warden | None = None

    def get(self) -> Warden:
        """Return the warden of this process."""
        with self._lock:
            if self._warden is None:
                self._warden = Warden()
                atexit.register(self._dismiss)
            return self._warden

    def _dismiss(self) -> None:
        if self._warden is not None:
            self._warden.dismiss()

    def after_fork(self) -> None:
        """Leave the servers, and the warden, to the parent."""
        self._lock = threading.Lock()
        if self._warden is not None:
            self._warden.disown()
            self._warden = None
            atexit.unregister(self._dismiss)


_wardens = _Wardens()
os.register_at_fork(after_in_child=_wardens.after_fork)


def start(command: list[str], *, folder: Path, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that won't outlive this process. Its output goes to `log`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            ["/bin/sh", "-c", REGISTER_AND_RUN, "sh", *command],
            stdin=_wardens.get().entrance,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def forget(pid: int) -> None:
    """Tell the warden that a started process has ended."""
    _wardens.get().forget(pid)
