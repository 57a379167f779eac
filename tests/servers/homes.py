"""Homes: folders in which servers run as an ordinary user, even if root runs the tests.

PostgreSQL and PgBouncer refuse to run as root. The folders of pytest are closed to other users, so such a server keeps
its data in a home under /tmp. Its log stays in its own folder, for the reader of a failed test.
"""

import os
import pwd
import secrets
import subprocess
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tests.servers import warden
from tests.servers.server import Server
from tests.servers.waiting import ServerFailedError

if TYPE_CHECKING:
    from tests.servers.clock import Clock

ORDINARY_USERS = ("postgres", "nobody")
"""The users as which root starts a server: the first that this machine has."""

ROOMS = Path("/tmp")  # noqa: S108 - every user must reach it, and the path of a Unix socket must be short


class Home:
    """A folder of an ordinary user. It is removed at the end of this process, if not before."""

    def __init__(self, disk: str | None = None) -> None:
        """Make the folder. `disk` is the size of a disk of its own, such as "64m", which only root can mount."""
        self.user = ordinary_user()
        self.folder = ROOMS / f"tenure-server-{secrets.token_hex(8)}"
        warden.watch(self.folder)
        self.folder.mkdir(mode=0o700)
        if disk is not None:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={disk}", "tmpfs", str(self.folder)]
            subprocess.run(mount, check=True, timeout=10)
        if self.user is not None:
            os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, pwd.getpwnam(self.user).pw_gid)

    @property
    def data(self) -> Path:
        """The folder of the data."""
        return self.folder / "data"

    def run(self, command: Sequence[str], *, stdin: IO[bytes] | None = None) -> None:
        """Run a program in the folder, as its user. Raises `ServerFailedError` with what the program says."""
        done = subprocess.run(
            command,
            stdin=stdin or subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            check=False,
            timeout=120,
            **warden.identity(self.user),
        )
        if done.returncode:
            said = done.stdout.decode(errors="replace")[-2000:]
            raise ServerFailedError(f"{command[0]} ended with {done.returncode}. It said:\n{said}")

    def write(self, name: str, text: str) -> Path:
        """Write a file that the user can read; return its path."""
        file = self.folder / name
        file.write_text(text, "utf-8")
        file.chmod(0o644)
        return file

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        warden.remove(self.folder)


class HousedServer(Server):
    """A server that runs in a home. The end of its `with` removes the home, and with it the data."""

    def __init__(
        self, folder: Path, *, port: int | None = None, clock: "Clock | None" = None, disk: str | None = None
    ) -> None:
        """Prepare a server. `disk` is the size of a disk of its own, such as "64m", which only root can mount."""
        super().__init__(folder, port=port)
        self._clock = clock
        self._disk = disk
        self._home: Home | None = None

    @property
    def home(self) -> Home:
        """The home of the server."""
        if self._home is None:
            raise ServerFailedError(f"The {self.title} has no data before it is started.")
        return self._home

    def launch(self) -> None:
        """Start its process, for the first time in a new home."""
        if self._home is None:
            self._home = Home(self._disk)
            try:
                self._furnish(self._home)
            except BaseException:
                self.discard()
                raise
        super().launch()

    def discard(self) -> None:
        """Stop the server, and remove its data: the next start is the first one."""
        self.stop(0)
        if self._home is not None:
            self._home.remove()
            self._home = None

    def fill_disk(self) -> None:
        """Leave no space on the disk of the server."""
        if self._disk is None:
            raise ServerFailedError(f"The {self.title} has no disk of its own: give it one with `disk`.")
        with self._ballast.open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))

    def free_disk(self) -> None:
        """Give back the space that `fill_disk` took."""
        self._ballast.unlink()

    def __exit__(self, *_exception: object) -> None:
        self.discard()

    @abstractmethod
    def _furnish(self, home: Home) -> None:
        """Make the data for the first start."""

    @property
    def _ballast(self) -> Path:
        return self.home.folder / "ballast"

    def _start_process(self) -> "subprocess.Popen[bytes]":
        home = self.home
        environment = {} if self._clock is None else self._clock.environment()
        if self._clock is not None and home.user is not None:
            environment = self._clock.environment_in(home.folder)
        return warden.start(
            self._command(), folder=home.folder, log=self._log_file, environment=environment, user=home.user
        )


@cache
def mounts_disks() -> bool:
    """Tell whether a server can have a disk of its own. Root may not mount one in a container."""
    if os.geteuid() != 0:
        return False
    try:
        Home(disk="1m").remove()
    except subprocess.CalledProcessError:
        return False
    return True


def ordinary_user() -> str | None:
    """Return the user as which servers run: None, the user of this process, unless that is root.

    Raises `ServerFailedError` if root finds no other user.
    """
    if os.geteuid() != 0:
        return None
    for user in ORDINARY_USERS:
        with suppress(KeyError):
            return pwd.getpwnam(user).pw_name
    raise ServerFailedError(f"Root starts servers as {' or '.join(ORDINARY_USERS)}: create such a user.")
