"""The PostgreSQL servers, users and tables that the tests of the store need."""

import os
import pwd
import ssl
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from tenure.stores.postgresql.schema import ddl, grants
from tenure.stores.sql.deployment import PREFIX
from tests.servers import Certificates, PostgresServer, Proxy
from tests.servers.homes import Home

USER, PASSWORD = "locker", "correct horse%battery"
"""A user who may do nothing but lock."""

HANDSHAKE = 4
"""How many chunks a client sends on a connection before its first statement: login, greeting, settings."""


class TlsPostgres(PostgresServer):
    """A server that takes TLS."""

    title: ClassVar[str] = "PostgreSQL server with TLS"

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        """Prepare a server with one of these certificates."""
        super().__init__(folder)
        self.certificates = certificates

    def _furnish(self, home: Home) -> None:
        super()._furnish(home)
        for name, file in (("server.crt", self.certificates.certificate), ("server.key", self.certificates.key)):
            copy = home.data / name
            copy.write_bytes(file.read_bytes())
            copy.chmod(0o600)
            if home.user is not None:
                os.chown(copy, pwd.getpwnam(home.user).pw_uid, -1)
        self.options.append("ssl=on")


def tables_for(server: PostgresServer, user: str, schema: str) -> None:
    """Make the tables in a schema as an administrator, and give a user the least rights."""
    with server.connect() as connection:
        connection.execute(ddl(schema, PREFIX).encode())
        connection.execute(grants(schema, PREFIX, user).encode())


def url_at(address: tuple[str, int], query: str = "", user: str = "tenure", database: str = "postgres") -> str:
    """Return the URL of a server behind an address."""
    host, port = address
    return f"postgresql://{user}@{host}:{port}/{database}{query}"


@contextmanager
def proxy_for(server: PostgresServer, *, seed: int = 0, tls: ssl.SSLContext | None = None) -> Generator[Proxy]:
    """Run a proxy in front of a server that spares the handshakes."""
    with Proxy(server.address, spared=HANDSHAKE, seed=seed, tls=tls) as proxy:
        yield proxy


def queries(server: PostgresServer, pids: Iterable[int]) -> list[str]:
    """Return what these processes of the server run or ran last."""
    rows = server.execute("SELECT query FROM pg_stat_activity WHERE pid = ANY (%s)", list(pids))
    return [query for (query,) in rows]
