"""A PgBouncer, which shares few connections to a PostgreSQL server among many clients."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from tests.servers.homes import Home, HousedServer
from tests.servers.ports import LOCALHOST
from tests.servers.postgresql import SUPERUSER, PostgresServer
from tests.servers.waiting import ServerFailedError


class PgBouncer(HousedServer):
    """One PgBouncer in front of a server. It lets in every client, as the superuser of the server."""

    title: ClassVar[str] = "PgBouncer"

    def __init__(
        self,
        folder: Path,
        postgres: PostgresServer,
        *,
        port: int | None = None,
        pool_mode: str = "transaction",
        pool_size: int = 2,
        options: Iterable[str] = (),
    ) -> None:
        """Prepare a pool of `pool_size` connections to a started server.

        A client has one of them for a `pool_mode`: "session", "transaction" or "statement". `options` are lines of its
        configuration, such as `"query_wait_timeout = 1"`.
        """
        super().__init__(folder, port=port)
        self.postgres = postgres
        self._settings = [f"pool_mode = {pool_mode}", f"default_pool_size = {pool_size}", *options]

    @property
    def url(self) -> str:
        """The URL for clients."""
        host, port = self.address
        return f"postgresql://{SUPERUSER}@{host}:{port}/postgres"

    def show(self, what: str) -> list[dict[str, Any]]:
        """Return what its console shows, such as `"pools"` or `"clients"`."""
        import psycopg
        from psycopg.rows import dict_row

        host, port = self.address
        with (
            psycopg.connect(
                host=host, port=port, user="pgbouncer", dbname="pgbouncer", autocommit=True, connect_timeout=2
            ) as connection,
            psycopg.ClientCursor(connection, row_factory=dict_row) as cursor,
        ):
            return cursor.execute(f"SHOW {what}".encode()).fetchall()

    def launch(self) -> None:
        """Start its process."""
        self.claim_port()
        super().launch()

    def _furnish(self, home: Home) -> None:
        pass

    def _command(self) -> list[str]:
        return [find_program(), str(self._configure())]

    def _configure(self) -> Path:
        host, port = self.postgres.address
        lines = [
            "[databases]",
            f"* = host={host} port={port} user={SUPERUSER}",
            "[pgbouncer]",
            f"listen_addr = {LOCALHOST}",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = any",
            "admin_users = pgbouncer",
            *self._settings,
            "",
        ]
        return self.home.write("pgbouncer.ini", "\n".join(lines))

    def _answers(self) -> bool:
        """Tell whether this process serves, and not another program that took the port first."""
        import psycopg

        with suppress(psycopg.OperationalError):
            settings = {row["key"]: row["value"] for row in self.show("config")}
            return settings.get("conffile") == str(self.home.folder / "pgbouncer.ini")
        return False


def find_program() -> str:
    """Return the path of the program. Raises `ServerFailedError` if there is none."""
    found = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    if found is None:
        raise ServerFailedError("There is no PgBouncer here: install the system's package pgbouncer.")
    return found
