"""PostgreSQL servers, alone or with a streaming standby. They are as durable as a killed process needs, not a machine.

A server that lost power would lose data, for nothing is forced to the disk (`fsync=off`).
"""

import os
import shutil
import signal
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from tests.servers import templates, warden
from tests.servers.children import Child, await_stopped, children, end, freeze
from tests.servers.homes import Home, HousedServer
from tests.servers.ports import LOCALHOST
from tests.servers.server import STOP_TIMEOUT
from tests.servers.waiting import ServerFailedError, wait_until

if TYPE_CHECKING:
    import psycopg

    from tests.servers.clock import Clock

FOLDER = "TENURE_POSTGRES"
"""The environment variable that may name the folder of the programs."""

INSTALLED = Path("/usr/lib/postgresql")
"""Where Debian has a folder for each version."""

SUPERUSER = "tenure"
DATABASE = "postgres"

LOGINS = f"""
local all,replication {SUPERUSER} trust
host all,replication {SUPERUSER} 127.0.0.1/32 trust
host all,replication all 127.0.0.1/32 scram-sha-256
"""
"""Who may log in: the superuser without a password, every other user with one."""

SETTINGS = {
    "listen_addresses": LOCALHOST,
    "fsync": "off",
    "max_connections": "100",
    "shared_buffers": "16MB",
    "wal_keep_size": "64MB",  # for a standby that lags
    "wal_retrieve_retry_interval": "50ms",
    "dynamic_shared_memory_type": "mmap",  # else a killed server leaves files in /dev/shm
    "log_checkpoints": "off",
}

Row = tuple[Any, ...]


class PostgresServer(HousedServer):
    """One PostgreSQL server, which keeps its data when it is killed and started again."""

    title: ClassVar[str] = "PostgreSQL server"

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        options: Iterable[str] = (),
        users: Iterable[tuple[str, str]] = (),
        clock: "Clock | None" = None,
        disk: str | None = None,
    ) -> None:
        """Prepare a server.

        `options` are settings such as `"max_connections=10"`. `users` are names and passwords of users to create.
        `clock` is the clock of the server. `disk` is the size of a disk of its own, such as "64m": only for root.
        """
        super().__init__(folder, port=port, clock=clock, disk=disk)
        self.options = list(options)
        self._users = list(users)
        self._stopped: list[Child] = []

    @property
    def url(self) -> str:
        """The URL for clients, as a superuser without a password."""
        return self._url(SUPERUSER, DATABASE)

    def url_for(self, user: str, password: str, database: str = DATABASE) -> str:
        """Return the URL of a user with a password."""
        return self._url(f"{quote(user, safe='')}:{quote(password, safe='')}", database)

    def connect(self, url: str | None = None, **options: object) -> "psycopg.Connection[Row]":
        """Return a connection in autocommit mode, of the superuser unless `url` says otherwise.

        `options` are those of libpq, such as `application_name`.
        """
        import psycopg

        given: dict[str, Any] = {"connect_timeout": 10, **options}
        return psycopg.connect(url or self.url, autocommit=True, **given)

    def execute(self, sql: str, *args: object) -> list[Row]:
        """Execute one statement as superuser, over a connection of its own; return the rows."""
        with self.connect() as connection:
            done = connection.execute(sql.encode(), args or None)
            return done.fetchall() if done.description else []

    def clients(self, application: str | None = None) -> list[int]:
        """Return the process ids of the server for its clients: for all others, or those of one application name."""
        rows = self.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " AND (%s::text IS NULL OR application_name = %s)",
            application,
            application,
        )
        return [pid for (pid,) in rows]

    def terminate(self, pid: int) -> None:
        """End the connection of the server process `pid`, as an administrator does."""
        self.execute("SELECT pg_terminate_backend(%s, 10000)", pid)

    def create_user(self, name: str, password: str) -> str:
        """Create a user who must log in with a password and has no rights; return the URL."""
        self.execute(f'CREATE ROLE "{name}" LOGIN PASSWORD ' + _literal(password))
        return self.url_for(name, password)

    def create_database(self, name: str) -> str:
        """Create a database; return its URL."""
        self.execute(f'CREATE DATABASE "{name}"')
        return self._url(SUPERUSER, name)

    @contextmanager
    def read_only(self) -> Generator[None, None, None]:
        """Let all transactions be read-only, unless they say otherwise. Open connections learn of it a moment later."""
        self.configure("default_transaction_read_only", "on")
        try:
            yield
        finally:
            self.configure("default_transaction_read_only", None)

    def configure(self, setting: str, value: str | None) -> None:
        """Change a setting of the running server, also for later starts; None is its default.

        New connections have it afterwards.
        """
        before = self.execute("SELECT pg_conf_load_time()")
        self.execute(
            f"ALTER SYSTEM SET {setting} = {_literal(value)}" if value is not None else f"ALTER SYSTEM RESET {setting}"
        )
        self.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self.execute("SELECT pg_conf_load_time()") != before, f"the new value of {setting}")

    def pause(self) -> None:
        """Stop all processes of the server with SIGSTOP."""
        self._stopped = freeze(self.pid)
        for child in self._stopped:
            warden.watch(child.pid)  # a stopped process does not notice that its server was killed
            child.send(signal.SIGSTOP)
        for child in self._stopped:
            await_stopped(child.pid)
        super().pause()

    def resume(self) -> None:
        """Continue all processes after a pause."""
        self._continue_children()
        super().resume()

    def await_ready(self, within: float = 30.0) -> None:
        """Return when the server serves, and its users exist."""
        super().await_ready(within)
        users, self._users = self._users, []
        for name, password in users:
            self.create_user(name, password)

    def _url(self, login: str, database: str) -> str:
        host, port = self.address
        return f"postgresql://{login}@{host}:{port}/{database}"

    def _furnish(self, home: Home) -> None:
        templates.furnish(home, "postgresql", _initialize)

    def _command(self) -> list[str]:
        settings = [f"{name}={value}" for name, value in SETTINGS.items()]
        own = [f"port={self.port}", f"unix_socket_directories={self.home.folder}"]
        options = [word for setting in (*settings, *own, *self.options) for word in ("-c", setting)]
        return [find_program("postgres"), "-D", str(self.home.data), *options]

    def _answers(self) -> bool:
        """Tell whether this server serves, and not another program that took the port first."""
        import psycopg

        with suppress(psycopg.OperationalError), self.connect(connect_timeout=2) as connection:
            return connection.execute("SHOW data_directory").fetchone() == (str(self.home.data),)
        return False

    def _end(self, number: signal.Signals, timeout: float = STOP_TIMEOUT) -> None:
        """End all processes of the server. An orderly end does not wait for clients."""
        if self._process is None:
            return
        ends_at_once = number == signal.SIGKILL
        remaining = self._children(ends_at_once=ends_at_once)
        self._continue_children()
        if ends_at_once:
            end(remaining)
        super()._end(signal.SIGKILL if ends_at_once else signal.SIGINT, timeout)
        end(remaining)

    def _children(self, *, ends_at_once: bool) -> list[Child]:
        if not self.runs:
            return []
        return freeze(self.pid) if ends_at_once else children(self.pid)

    def _continue_children(self) -> None:
        for child in self._stopped:
            child.send(signal.SIGCONT)
            warden.forget(child.pid)
        self._stopped = []


class Standby(PostgresServer):
    """A standby: it receives and applies all commits of a primary a moment later (asynchronous replication)."""

    title: ClassVar[str] = "PostgreSQL standby"

    def __init__(self, folder: Path, primary: PostgresServer, *, options: Sequence[str] = ()) -> None:
        """Prepare a standby of a server, which must serve when the standby is started for the first time."""
        super().__init__(folder, options=options)
        self.primary = primary

    def follows(self) -> bool:
        """Tell whether it receives the commits of its primary."""
        return self.execute("SELECT status FROM pg_stat_wal_receiver") == [("streaming",)]

    def await_caught_up(self) -> None:
        """Return when it has applied all that its primary has committed by now."""
        ((position,),) = self.primary.execute("SELECT pg_current_wal_flush_lsn()")
        behind = "SELECT 1 WHERE pg_last_wal_replay_lsn() < %s::pg_lsn"
        wait_until(lambda: not self.execute(behind, position), "a standby that has caught up")

    @contextmanager
    def lags(self) -> Generator[None, None, None]:
        """Let it receive nothing. If it is promoted meanwhile, it has forgotten what its primary commits meanwhile."""
        if self.primary.serves:
            wait_until(self.follows, "a standby that follows, and is not about to")
        self.configure("primary_conninfo", "")
        wait_until(lambda: not self.execute("SELECT 1 FROM pg_stat_wal_receiver"), "a standby that receives nothing")
        try:
            yield
        finally:
            if self.serves:
                self.configure("primary_conninfo", self._source())

    def promote(self) -> None:
        """Make it a primary, with what it has received. It never follows again."""
        self.execute("SELECT pg_promote()")
        wait_until(lambda: self.execute("SELECT pg_is_in_recovery()") == [(False,)], "a promoted standby")

    def _source(self) -> str:
        host, port = self.primary.address
        return f"host={host} port={port} user={SUPERUSER}"

    def _furnish(self, home: Home) -> None:
        program, data = find_program("pg_basebackup"), str(home.data)
        home.run([program, "-d", self._source(), "-D", data, "-c", "fast", "-X", "stream", "--no-sync"])
        with (home.data / "postgresql.auto.conf").open("a", encoding="utf-8") as settings:
            settings.write(f"primary_conninfo = {_literal(self._source())}\n")
        (home.data / "standby.signal").touch()


def find_program(name: str) -> str:
    """Return the path of a program of PostgreSQL: of `TENURE_POSTGRES`, of the PATH, or the newest of Debian's.

    Raises `ServerFailedError` if there is none.
    """
    named = os.environ.get(FOLDER)
    newest = sorted(INSTALLED.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    folders = [named] if named else [os.environ.get("PATH", os.defpath), *map(str, newest)]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise ServerFailedError(f"There is no {name} here: install the system's package postgresql, or set {FOLDER}.")
    return found


def _initialize(home: Home) -> None:
    """Make the data of a new server."""
    options = ["-A", "trust", "-U", SUPERUSER, "-E", "UTF8", "--locale=C", "--no-sync", "-N", "--wal-segsize=1"]
    home.run([find_program("initdb"), "-D", str(home.data), *options])
    (home.data / "pg_hba.conf").write_text(LOGINS, "utf-8")


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
