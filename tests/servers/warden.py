"""The warden, which ends servers with the process that started them, however that process ends.

The warden is a small shell process that reads from a pipe which processes and folders to watch. When the pipe closes,
for instance because its writer was killed, the warden kills the remaining processes and removes the remaining folders.
(The kernel can kill processes too, but ties it to the thread that started them.) A process sends its own id to the
warden before it executes the server program, so that no server is ever unwatched.
"""

import atexit
import os
import pwd
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from tests.servers import versions

REMOVE = r"""
remove() {
    memory=$(sed -n '7s/.* //p' "$1/data/postmaster.pid" 2>/dev/null)
    [ -z "$memory" ] || ipcrm -m "$memory" 2>/dev/null
    umount -l "$1" 2>/dev/null
    for attempt in 1 2 3 4 5 6 7 8 9; do
        rm -rf "$1" 2>/dev/null && return
        sleep 0.1
    done
}
"""
"""The shell function that removes a folder, a disk mounted there, and the shared memory of a killed PostgreSQL server.

It tries again because the children of a killed server write for a moment longer.
"""

WARDEN = (
    REMOVE
    + r"""
trap '' HUP INT TERM
watched=' '
while read -r sign one; do
    case $sign in
    +) watched="$watched$one " ;;
    -) watched="${watched%% $one *} ${watched#* $one }" ;;
    esac
done
for one in $watched; do
    case $one in /*) ;; *) kill -KILL "$one" 2>/dev/null ;; esac
done
for one in $watched; do
    case $one in /*) remove "$one" ;; esac
done
"""
)

REGISTER_AND_RUN = 'echo "+ $$" >&0; exec "$@" </dev/null'
"""The shell command that registers a process with the warden and runs it. Standard input is the pipe to the warden."""


class Identity(TypedDict, total=False):
    """The arguments of `subprocess` that say as which user a program runs."""

    user: str
    group: int
    extra_groups: tuple[int, ...]


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

    def watch(self, one: int | Path) -> None:
        """Watch a process or a folder too."""
        os.write(self.entrance, f"+ {one}\n".encode())

    def forget(self, one: int | Path) -> None:
        """Stop watching: the process has ended, and its id may be given to another process; the folder is gone."""
        os.write(self.entrance, f"- {one}\n".encode())

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


def start(
    command: list[str], *, folder: Path, log: Path, environment: Mapping[str, str], user: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own that won't outlive this process. Its output goes to `log`.

    `user` is the name of the user to become, which only root can do.
    """
    versions.note(command)
    with log.open("ab") as out:
        return subprocess.Popen(
            ["/bin/sh", "-c", REGISTER_AND_RUN, "sh", *command],
            stdin=_wardens.get().entrance,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
            **identity(user),
        )


def identity(user: str | None) -> Identity:
    """Return the arguments of `subprocess` that run a program as a user; None is the user of this process."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": ()}


def watch(one: int | Path) -> None:
    """Watch a process that `start` did not start, such as a child of a server, or a folder."""
    _wardens.get().watch(one)


def forget(one: int | Path) -> None:
    """Tell the warden that a process has ended, or that a folder was removed."""
    _wardens.get().forget(one)


def remove(folder: Path) -> None:
    """Remove a watched folder."""
    subprocess.run(["/bin/sh", "-c", REMOVE + 'remove "$1"', "sh", str(folder)], check=True, timeout=60)
    forget(folder)
