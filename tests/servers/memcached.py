"""A memcached server: the program of this machine."""

import os
import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from tests.servers.ports import LOCALHOST
from tests.servers.server import Server
from tests.servers.waiting import ServerFailedError

PRIORITY = -10


class MemcachedServer(Server):
    """One memcached server. It keeps nothing on disk: a restart forgets everything."""

    title: ClassVar[str] = "memcached server"

    def __init__(
        self, folder: Path, *, port: int | None = None, megabytes: int = 16, options: Sequence[str] = ()
    ) -> None:
        """Prepare a server with so much memory. `options` are further arguments, such as `("-M",)`."""
        super().__init__(folder, port=port)
        self._megabytes = megabytes
        self.options = list(options)

    @property
    def url(self) -> str:
        """The URL for clients."""
        host, port = self.address
        return f"memcached://{host}:{port}"

    def command(self, packed: bytes, end: bytes = b"\r\n") -> bytes:
        """Send a command on a connection of its own, and return what comes until `end`."""
        with socket.create_connection(self.address, 5.0) as connection:
            connection.sendall(packed)
            said = b""
            while not said.endswith(end):
                if not (data := connection.recv(65_536)):
                    raise ServerFailedError(f"The {self.title} closed the connection after {said!r}.")
                said += data
        return said

    def keys(self) -> list[str]:
        """Return the keys of all items, as memcached shows them."""
        said = self.command(b"lru_crawler metadump hash\r\n", b"END\r\n").decode()
        return sorted(line.split()[0].removeprefix("key=") for line in said.splitlines() if line.startswith("key="))

    def flush(self) -> None:
        """Forget all items, as after `flush_all`."""
        self.command(b"flush_all\r\n")

    def _spawn(self) -> None:
        """Start the process ahead of others: its clock is a timer of its own, and one that stands still ends leases."""
        super()._spawn()
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, self._running().pid, PRIORITY)

    def _command(self) -> list[str]:
        user = ["-u", "nobody"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        where = ["-l", LOCALHOST, "-p", str(self.port), "-U", "0"]
        return [find_program(), *user, *where, "-m", str(self._megabytes), *self.options]

    def _answers(self) -> bool:
        return self.command(b"version\r\n").startswith(b"VERSION")


def find_program() -> str:
    """Return the path of the program, or of `TENURE_MEMCACHED`. Raises `ServerFailedError` if there is none."""
    found = os.environ.get("TENURE_MEMCACHED") or shutil.which("memcached")
    if found is None:
        raise ServerFailedError(
            "There is no memcached here: install the system's package memcached, or name the program by "
            "TENURE_MEMCACHED."
        )
    return found
