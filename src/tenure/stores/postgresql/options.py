"""The options of a PostgreSQL URL: the servers, the login, the tables, the rules.

No error of this file repeats a value of the URL, because it may be a password.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import SplitResult, unquote

from tenure.errors import UsageError
from tenure.stores.sql.deployment import LONGEST_IDENTIFIER, TABLE, SqlDeployment, check_mode, identifier
from tenure.stores.sql.deployment import OPTIONS as SHARED
from tenure.stores.urlparts import PORTS, Option, UrlParts, one_of, text

FORMS = "write postgresql://[user:password@]host1[:port],host2/database?schema=tenure"

PORT = 5432
ADVISORY = "advisory"
"""The mode with leases as advisory locks of sessions, without a table."""

ONLY_TABLE = ("schema", "prefix", "max_ttl", "guard")
"""The options of the mode with a table."""

SEQUENCE = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*")


def _sequence(text: str) -> str:
    if not SEQUENCE.fullmatch(text) or len(text) > 2 * LONGEST_IDENTIFIER:
        raise ValueError
    return text


LIBPQ_OPTIONS: Mapping[str, Option] = {
    "sslmode": Option(
        one_of("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
        "must be one of libpq's, as ?sslmode=verify-full",
    ),
    "sslrootcert": text("sslrootcert", "/etc/ssl/ca.pem"),
    "sslcert": text("sslcert", "/etc/ssl/client.pem"),
    "sslkey": text("sslkey", "/etc/ssl/client.key"),
    "sslpassword": text("sslpassword", "%2A%2A%2A"),
    "application_name": text("application_name", "billing"),
    "target_session_attrs": Option(
        one_of("any", "read-write", "primary"), "must be read-write, primary or any, as ?target_session_attrs=primary"
    ),
    "user": text("user", "tenure"),
    "password": text("password", "%2A%2A%2A"),
}
"""The options of a connection, with the names that libpq gives them."""

OPTIONS: Mapping[str, Option] = {
    "schema": identifier("schema"),
    "prefix": identifier("prefix"),
    **SHARED,
    "mode": Option(one_of(TABLE, ADVISORY), "must be table or advisory, as ?mode=advisory"),
    "sequence": Option(_sequence, "must be the name of a sequence, as ?sequence=app.tenure_tokens"),
    **LIBPQ_OPTIONS,
}
"""All options of a PostgreSQL URL."""


@dataclass(slots=True)
class PgDeployment(SqlDeployment):
    """The servers of one database, how to log in, and which tables to use."""

    kind: ClassVar = "PostgreSQL"

    login: dict[str, str] = field(repr=False)
    """Keywords of libpq besides the host and the port."""
    schema: str = ""
    """Empty: the first schema of the role's search path."""
    sequence: str = ""
    """The sequence of the tokens in the mode without a table; empty: `tenure_tokens`, if there is one."""

    @property
    def name(self) -> str:
        """The name of the database."""
        return self.login.get("dbname", "")

    def tables(self) -> str:
        """Return the tables, or the locks in the mode without a table, for messages."""
        if self.mode == ADVISORY:
            return "advisory locks"
        return f"{self.schema}.{self.prefix}*" if self.schema else f"{self.prefix}*"

    def place(self, host: str, port: int) -> str:
        """Return a host and its port as text. A socket is a folder, and the port a part of the name in it."""
        return f"{host}:{port}" if host.startswith("/") else SqlDeployment.place(self, host, port)


def deployment_of(parts: SplitResult) -> PgDeployment:
    """Parse a PostgreSQL URL. Raises UsageError if it can't be understood."""
    url = UrlParts(parts, "PostgreSQL", FORMS)
    query = url.query([*OPTIONS, "host", "port"])
    folder, port = query.pop("host", None), query.pop("port", None)
    options = url.take(query, OPTIONS)
    check_mode(options, "PostgreSQL", ADVISORY, ONLY_TABLE, ("sequence",))
    login: dict[str, str] = {key: options.pop(key) for key in LIBPQ_OPTIONS if key in options}
    if (given := url.login()) is not None:
        login["user"] = given.user
        if given.password is not None:
            login["password"] = given.password
    database = unquote(url.path()).strip("/")
    if "/" in database:
        raise UsageError(f"the path of a PostgreSQL URL is one database; {FORMS}.")
    if database:
        login["dbname"] = database
    if port is not None and folder is None:
        raise UsageError(f"the option port of the PostgreSQL URL belongs to ?host=/folder; {FORMS}.")
    hosts = url.hosts(PORT) if folder is None else [(_folder(folder), _port(port))]
    if len(hosts) > 1:
        login.setdefault("target_session_attrs", "read-write")
    return PgDeployment(hosts, login, **options)


def _folder(text: str) -> str:
    if not text.startswith("/"):
        raise UsageError(
            "the option host of the PostgreSQL URL is the folder of a Unix socket, as ?host=/run/postgresql."
        )
    return text


def _port(text: str | None) -> int:
    """Return the port of a Unix socket, which is a part of the name of its file."""
    if text is None:
        return PORT
    if not text.isdecimal() or int(text) not in PORTS:
        raise UsageError("the option port of the PostgreSQL URL is that of a Unix socket, as ?port=5433.")
    return int(text)
