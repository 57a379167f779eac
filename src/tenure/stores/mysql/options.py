"""The options of a MySQL URL, of an engine or a connection factory of the user's: servers, login, tables and rules.

No error of this file repeats a value of the URL, because it may be a password.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote

from tenure.errors import UsageError
from tenure.stores.urlparts import Option, UrlParts, number, one_of, seconds, switch, text

FORMS = "write mysql://[user:password@]host1[:port],host2/database?prefix=tenure_"

PORT = 3306
PREFIX = "tenure_"
CONNECTIONS = 8
MAX_TTL = 60.0

STRICT, OBSERVED, OFF = "strict", "observed", "off"
AUTO = "auto"

TABLE, GET_LOCK = "table", "get_lock"
"""The modes: leases in the rows of a table; leases as named locks of sessions, without a table."""

ONLY_TABLE = ("max_ttl", "guard", "notify")
"""The options of the mode with a table."""

LONGEST_PREFIX = 40
"""MySQL refuses names of more than 64 characters, and a prefix has a name behind it."""

ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def _prefix(text: str) -> str:
    if not text or len(text) > LONGEST_PREFIX or not ALLOWED.issuperset(text):
        raise ValueError
    return text


def _connections(text: str) -> int:
    if not 1 <= (count := number(text)) <= 1000:  # noqa: PLR2004 - far more than a server grants
        raise ValueError
    return count


TLS_OPTIONS: Mapping[str, Option] = {
    "ssl": switch("ssl"),
    "ssl_ca": text("ssl_ca", "/etc/ssl/ca.pem"),
    "ssl_cert": text("ssl_cert", "/etc/ssl/client.pem"),
    "ssl_key": text("ssl_key", "/etc/ssl/client.key"),
    "ssl_verify_identity": switch("ssl_verify_identity"),
}
"""The options of TLS, with the names that PyMySQL gives them."""

OPTIONS: Mapping[str, Option] = {
    "prefix": Option(_prefix, f"must be up to {LONGEST_PREFIX} letters, digits and underscores, as ?prefix=locks_"),
    "connections": Option(_connections, "must be a number from 1 to 1000, as ?connections=4"),
    "max_ttl": Option(seconds(1.0, 1e7), "must be the longest ttl in use, in seconds, as ?max_ttl=60"),
    "guard": Option(one_of(STRICT, OBSERVED, OFF), "must be strict, observed or off, as ?guard=off"),
    "notify": Option(one_of(AUTO, OFF), "must be auto or off, as ?notify=off"),
    "mode": Option(one_of(TABLE, GET_LOCK), "must be table or get_lock, as ?mode=get_lock"),
    "unix_socket": text("unix_socket", "/run/mysqld/mysqld.sock"),
    **TLS_OPTIONS,
}
"""All options of a MySQL URL."""


@dataclass(slots=True)
class MySqlDeployment:
    """The servers of one database, how to log in, and which tables to use."""

    hosts: list[tuple[str, int]]
    """A host that begins with a slash is the path of a Unix socket."""
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    tls: ssl.SSLContext | None = None
    prefix: str = PREFIX
    """The prefix of the tables. Without a table: locks of different prefixes have nothing to do with each other."""
    connections: int = CONNECTIONS
    """How many connections carry requests, at most; one more listens."""
    max_ttl: float = MAX_TTL
    """The longest ttl of this client, in seconds: how long a server that may have forgotten grants grants nothing."""
    guard: str = OBSERVED
    notify: str = AUTO
    mode: str = TABLE
    connect: Callable[[], Any] | None = None
    """The connection factory of the user's, which replaces the hosts and the login."""

    @property
    def strict(self) -> bool:
        """Whether any restart of the server begins a quarantine."""
        return self.guard == STRICT

    def title(self) -> str:
        """Return the URL without its secrets and options."""
        if self.connect is not None:
            name = getattr(self.connect, "__qualname__", type(self.connect).__name__)
            return f"MySQL by connections of {name} #{id(self.connect)} ({self.prefix}*)"
        hosts = ",".join(place(host, port) for host, port in self.hosts)
        if self.mode == GET_LOCK:
            return f"mysql://{hosts}/{self.database} (named locks of {self.prefix})"
        return f"mysql://{hosts}/{self.database} ({self.prefix}*)"


def place(host: str, port: int) -> str:
    """Return a host and its port as text. A host that begins with a slash is the path of a socket."""
    if host.startswith("/"):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def deployment_of(parts: SplitResult) -> MySqlDeployment:
    """Parse a MySQL URL. Raises UsageError if it can't be understood."""
    url = UrlParts(parts, "MySQL", FORMS)
    options = url.take(url.query(OPTIONS), OPTIONS)
    _check_mode(options)
    database = unquote(url.path()).strip("/")
    if not database or "/" in database:
        raise UsageError(f"the path of a MySQL URL is one database; {FORMS}.")
    path = options.pop("unix_socket", None)
    if path is not None and not path.startswith("/"):
        raise UsageError("the option unix_socket of the MySQL URL must be a path, as ?unix_socket=/run/mysqld.sock.")
    deployment = MySqlDeployment(url.hosts(PORT) if path is None else [(path, PORT)], database=database)
    if (login := url.login()) is not None:
        deployment.user, deployment.password = login.user, login.password or ""
    tls = {key: options.pop(key) for key in TLS_OPTIONS if key in options}
    deployment.tls = _tls(tls, "the MySQL URL")
    for key, value in options.items():
        setattr(deployment, key, value)
    return deployment


def _check_mode(options: Mapping[str, Any]) -> None:
    """Raise UsageError if an option belongs to the other mode."""
    for key in ONLY_TABLE if options.get("mode") == GET_LOCK else ():
        if key in options:
            raise UsageError(
                f"the option {key} of the MySQL URL is not for ?mode=get_lock, the mode without a table. Leave one of "
                "the two out."
            )


def _tls(options: Mapping[str, Any], whose: str) -> ssl.SSLContext | None:
    """Return how to secure connections; None: not at all. Raises UsageError if a file can't be used."""
    if options.get("ssl") is False or not any(options.values()):
        return None
    ca, check = options.get("ssl_ca"), bool(options.get("ssl_verify_identity"))
    try:
        context = ssl.create_default_context(cafile=ca)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the certificates that servers make for themselves break it
        context.check_hostname = check
        context.verify_mode = ssl.CERT_REQUIRED if ca or check else ssl.CERT_NONE
        if (certificate := options.get("ssl_cert")) is not None:
            context.load_cert_chain(certificate, options.get("ssl_key"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"a file that an ssl_ option of {whose} names cannot be used ({type(error).__name__}); give readable "
            "files in the PEM format."
        ) from None
    return context


# -- engines and factories -----------------------------------------------------------------------------------------


def deployment_of_engine(engine: Any) -> MySqlDeployment:  # noqa: ANN401 - SQLAlchemy need not be installed
    """Take over the server and the login of a SQLAlchemy engine, sync or asyncio. Raises UsageError for others."""
    engine = getattr(engine, "sync_engine", engine)
    if getattr(getattr(engine, "dialect", None), "name", "") not in {"mysql", "mariadb"}:
        raise UsageError(f"a {type(engine).__name__} is no engine of SQLAlchemy for MySQL or MariaDB: give a URL.")
    _, keywords = engine.dialect.create_connect_args(engine.url)
    given = keywords.get("ssl")
    files: dict[str, Any] = {key: keywords[key] for key in TLS_OPTIONS if key != "ssl" and key in keywords}
    if isinstance(given, Mapping):
        names = {"ca": "ssl_ca", "cert": "ssl_cert", "key": "ssl_key", "check_hostname": "ssl_verify_identity"}
        files |= {names[key]: value for key, value in given.items() if key in names}  # pyright: ignore[reportUnknownVariableType]
    elif given:
        files["ssl"] = True
    deployment = MySqlDeployment(
        [(str(keywords.get("unix_socket") or keywords.get("host") or "localhost"), int(keywords.get("port") or PORT))],
        str(keywords.get("user") or ""),
        str(keywords.get("password") or keywords.get("passwd") or ""),
        str(keywords.get("database") or keywords.get("db") or ""),
    )
    deployment.tls = given if isinstance(given, ssl.SSLContext) else _tls(files, "the engine's URL")
    if not deployment.database:
        raise UsageError("the engine's URL names no database: give an engine of the database that keeps the locks.")
    return deployment
