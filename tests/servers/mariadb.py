"""MariaDB servers, alone or with a replica. They are as durable as a killed process needs, not a machine.

A server that lost power would lose data: a commit hands its log to the system, which writes it to the disk later.
"""

import os
import shutil
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from tests.servers import templates
from tests.servers.homes import Home, HousedServer
from tests.servers.ports import LOCALHOST
from tests.servers.waiting import TEST_TIMEOUT, ServerFailedError, wait_until

if TYPE_CHECKING:
    import pymysql

    from tests.servers.clock import Clock

USER, PASSWORD, DATABASE = "tenure", "secret", "tenure"

FIRST_STATEMENTS = f"""
FLUSH PRIVILEGES;
CREATE DATABASE {DATABASE};
CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON {DATABASE}.* TO '{USER}'@'%';
"""
"""The statements that complete the first data. The program runs them without rights in force until FLUSH PRIVILEGES."""

SETTINGS = (
    "--innodb-buffer-pool-size=32M",
    "--innodb-flush-log-at-trx-commit=2",  # with 0, a killed server would have lost the commits of the last second
    "--innodb-log-file-size=4M",
    "--innodb-use-native-aio=0",  # the system has few such requests for all processes together
    "--skip-name-resolve",
)

LINK = {"Slave_IO_Running": "Yes", "Slave_SQL_Running": "Yes"}

Row = tuple[Any, ...]


NO_SUCH_SESSION = 1094


class MariaDbServer(HousedServer):
    """One MariaDB server, which keeps its data when it is killed and started again."""

    title: ClassVar[str] = "MariaDB server"

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        options: Iterable[str] = (),
        replicated: bool = False,
        clock: "Clock | None" = None,
        disk: str | None = None,
    ) -> None:
        """Prepare a server.

        `options` are further arguments such as `"--max-connections=10"`. A `replicated` server can have replicas.
        `clock` is the clock of the server. `disk` is the size of a disk of its own, such as "64m": only for root.
        """
        super().__init__(folder, port=port, clock=clock, disk=disk)
        self.options = list(options)
        self._replicated = replicated

    @property
    def url(self) -> str:
        """The URL for clients: of a user who has all rights in one database."""
        return self.url_for(USER, PASSWORD)

    def url_for(self, user: str, password: str, database: str = DATABASE) -> str:
        """Return the URL of a user with a password."""
        host, port = self.address
        return f"mysql://{quote(user, safe='')}:{quote(password, safe='')}@{host}:{port}/{database}"

    def connect(
        self, user: str = "root", password: str = "", database: str | None = DATABASE, *, timeout: float = 60
    ) -> "pymysql.Connection":
        """Return a connection in autocommit mode, of the administrator unless `user` says otherwise."""
        import pymysql

        host, port = self.address
        return pymysql.connect(
            host=host,
            port=port,
            user=user,
            password=password,
            database=database,
            autocommit=True,
            connect_timeout=timeout,
            read_timeout=timeout,
        )

    def execute(self, sql: str, *args: object) -> list[Row]:
        """Execute one statement as administrator, over a connection of its own; return the rows."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return list(cursor.fetchall()) if cursor.description else []

    def clients(self) -> list[int]:
        """Return the ids of all connections of users other than the administrator."""
        rows = self.execute("SELECT id FROM information_schema.processlist WHERE user NOT IN ('root', 'system user')")
        return [each for (each,) in rows]

    def kill_connection(self, connection: int) -> None:
        """End a connection by its id, as an administrator does; one that has ended by itself is no error."""
        import pymysql

        try:
            self.execute("KILL CONNECTION %s", connection)
        except pymysql.OperationalError as error:
            if error.args[0] != NO_SUCH_SESSION:
                raise

    def create_user(self, name: str, password: str) -> str:
        """Create a user who has no rights; return the URL, without a database."""
        self.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", name, password)
        return self.url_for(name, password, "")

    def create_database(self, name: str) -> str:
        """Create a database; return its URL, of the user who has all rights in it."""
        self.execute(f"CREATE DATABASE `{name}`")
        self.execute(f"GRANT ALL ON `{name}`.* TO '{USER}'@'%'")
        return self.url_for(USER, PASSWORD, name)

    @contextmanager
    def read_only(self) -> Generator[None, None, None]:
        """Let the server refuse the writes of all users but the administrator."""
        self.execute("SET GLOBAL read_only = 1")
        try:
            yield
        finally:
            self.execute("SET GLOBAL read_only = 0")

    def _furnish(self, home: Home) -> None:
        templates.furnish(home, "mariadb", _initialize)

    def _command(self) -> list[str]:
        home = self.home
        own = {
            "datadir": home.data,
            "tmpdir": home.folder,
            "socket": home.folder / "socket",
            "pid-file": home.folder / "pid",
            "bind-address": LOCALHOST,
            "port": self.port,
            "server-id": self.port,
        }
        log = "--log-bin=commits" if self._replicated else "--skip-log-bin"
        words = [f"--{name}={value}" for name, value in own.items()]
        return [find_program("mariadbd"), "--no-defaults", *words, *SETTINGS, log, *self.options]

    def _answers(self) -> bool:
        """Tell whether this server serves, and not another program that took the port first."""
        import pymysql

        with suppress(pymysql.MySQLError), self.connect(timeout=2) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@pid_file")
            return cursor.fetchone() == (str(self.home.folder / "pid"),)
        return False


class Replica(MariaDbServer):
    """A replica: it receives and applies all commits of a primary a moment later (asynchronous replication)."""

    title: ClassVar[str] = "MariaDB replica"

    def __init__(self, folder: Path, primary: MariaDbServer, *, options: Iterable[str] = ()) -> None:
        """Prepare a replica of a `replicated` server, which must have been started."""
        super().__init__(folder, options=options, replicated=True)
        self.primary = primary
        self._promoted = False
        self._lags = False

    def follows(self) -> bool:
        """Tell whether it receives and applies the commits of its primary."""
        return LINK.items() <= self._status().items()

    def await_caught_up(self) -> None:
        """Return when it has applied all that its primary has committed by now."""
        ((position,),) = self.primary.execute("SELECT @@gtid_current_pos")
        if self.execute("SELECT MASTER_GTID_WAIT(%s, %s)", position, TEST_TIMEOUT) != [(0,)]:
            raise ServerFailedError(f"The replica has not caught up within {TEST_TIMEOUT:g} s: {self._status()}")

    @contextmanager
    def lags(self) -> Generator[None, None, None]:
        """Let it receive nothing. If it is promoted meanwhile, it has forgotten what its primary commits meanwhile."""
        self._lags = True
        self.execute("STOP SLAVE IO_THREAD")
        try:
            yield
        finally:
            self._lags = False
            if self.serves and not self._promoted:
                self.execute("START SLAVE IO_THREAD")

    def promote(self) -> None:
        """Make it a primary, with what it has received. It never follows again."""
        self.execute("STOP SLAVE IO_THREAD")
        wait_until(self._has_applied, "a replica that has applied all it received")
        self.execute("STOP SLAVE")
        self.execute("RESET SLAVE ALL")
        self.execute("SET GLOBAL read_only = 0")
        self._promoted = True

    def discard(self) -> None:
        """Stop the server, and remove its data: the next start is the first one."""
        super().discard()
        self._promoted = False

    def await_ready(self, within: float = TEST_TIMEOUT) -> None:
        """Return when the server serves, and follows its primary."""
        super().await_ready(within)
        if not self._promoted:
            self._follow()

    def _follow(self) -> None:
        if not self._status():
            host, port = self.primary.address
            self.execute(
                "CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %s, MASTER_USER = 'root', MASTER_CONNECT_RETRY = 1,"
                " MASTER_USE_GTID = slave_pos",
                host,
                port,
            )
        self.execute("START SLAVE SQL_THREAD" if self._lags else "START SLAVE")

    def _has_applied(self) -> bool:
        status = self._status()
        return bool(status["Read_Master_Log_Pos"] == status["Exec_Master_Log_Pos"])

    def _status(self) -> dict[str, Any]:
        """Return the state of the replication, empty if it was never configured."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW SLAVE STATUS")
            row = cursor.fetchone()
            return dict(zip((column[0] for column in cursor.description or ()), row or (), strict=False))

    def _command(self) -> list[str]:
        return [*super()._command(), "--skip-slave-start", f"--read-only={int(not self._promoted)}"]


def find_program(name: str) -> str:
    """Return the path of a program of MariaDB. Raises `ServerFailedError` if there is none."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    if found is None:
        raise ServerFailedError(f"There is no {name} here: install the system's package mariadb-server-core.")
    return found


def _initialize(home: Home) -> None:
    """Make the data of a new server: an administrator without a password, one database and its user."""
    statements = home.write("first.sql", FIRST_STATEMENTS)
    options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", *SETTINGS[:-1]]
    program = find_program("mariadb-install-db")
    # Each server that starts deletes the temporary tables that it finds in its tmpdir, those of other servers as well.
    folders = [f"--datadir={home.data}", f"--tmpdir={home.folder}"]
    home.run([program, "--no-defaults", *folders, f"--extra-file={statements}", *options])
