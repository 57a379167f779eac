"""The options of a MySQL URL, and what is taken over of an engine of SQLAlchemy.

The usual arguments of an engine are taken over. Else the engine makes the connections: by code of the user's, which may
name another server or fetch a password that is valid for minutes, or by arguments that only its driver understands. No
error of this file repeats a value, because it may be a password.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from urllib.parse import SplitResult, unquote

from tenure.errors import UsageError
from tenure.stores.sql.deployment import (
    OFF,
    TABLE,
    SqlDeployment,
    arguments_of,
    check_mode,
    connector_of,
    identifier,
    sync_engine_of,
)
from tenure.stores.sql.deployment import OPTIONS as SHARED
from tenure.stores.urlparts import Option, UrlParts, one_of, switch, text

FORMS = "write mysql://[user:password@]host1[:port],host2/database?prefix=tenure_"

PORT = 3306
AUTO = "auto"

GET_LOCK = "get_lock"
"""The mode with leases as named locks of sessions, without a table."""

ONLY_TABLE = ("max_ttl", "guard", "notify")
"""The options of the mode with a table."""

TLS_OPTIONS: Mapping[str, Option] = {
    "ssl": switch("ssl"),
    "ssl_ca": text("ssl_ca", "/etc/ssl/ca.pem"),
    "ssl_cert": text("ssl_cert", "/etc/ssl/client.pem"),
    "ssl_key": text("ssl_key", "/etc/ssl/client.key"),
    "ssl_verify_identity": switch("ssl_verify_identity"),
}
"""The options of TLS, with the names that PyMySQL gives them."""

OPTIONS: Mapping[str, Option] = {
    "prefix": identifier("prefix", "locks_", "[A-Za-z0-9_]+"),
    **SHARED,
    "notify": Option(one_of(AUTO, OFF), "must be auto or off, as ?notify=off"),
    "mode": Option(one_of(TABLE, GET_LOCK), "must be table or get_lock, as ?mode=get_lock"),
    "unix_socket": text("unix_socket", "/run/mysqld/mysqld.sock"),
    **TLS_OPTIONS,
}
"""All options of a MySQL URL."""


@dataclass(slots=True)
class MySqlDeployment(SqlDeployment):
    """The servers of one database, how to log in, and which tables to use.

    Without a table: locks of different prefixes have nothing to do with each other.
    """

    kind: ClassVar = "MySQL"

    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    tls: ssl.SSLContext | None = None
    notify: str = AUTO

    @property
    def name(self) -> str:
        """The name of the database."""
        return self.database

    def tables(self) -> str:
        """Return the tables, or the locks in the mode without a table, for messages."""
        return f"named locks of {self.prefix}" if self.mode == GET_LOCK else f"{self.prefix}*"


def deployment_of(parts: SplitResult) -> MySqlDeployment:
    """Parse a MySQL URL. Raises UsageError if it can't be understood."""
    url = UrlParts(parts, "MySQL", FORMS)
    options = url.take(url.query(OPTIONS), OPTIONS)
    check_mode(options, "MySQL", GET_LOCK, ONLY_TABLE, ())
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
    deployment.tls = tls_of(tls, "the MySQL URL")
    for key, value in options.items():
        setattr(deployment, key, value)
    return deployment


def tls_of(options: Mapping[str, Any], whose: str) -> ssl.SSLContext | None:
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


LOGIN = frozenset({"host", "port", "unix_socket", "user", "password", "passwd", "database", "db", *TLS_OPTIONS})
"""The arguments of the drivers that are taken over."""

OF_DRIVERS = frozenset(
    {"charset", "collation", "use_unicode", "client_flag", "sql_mode", "autocommit", "program_name", "echo", "conv"}
    | {"connect_timeout", "read_timeout", "write_timeout", "cursorclass", "cursor_cls", "binary_prefix"}
    | {"local_infile", "max_allowed_packet"}
)
"""The arguments that say nothing of the server or the login, and are left out: Tenure has its own values for them."""

TLS_KEYS = {"ca": "ssl_ca", "cert": "ssl_cert", "key": "ssl_key", "check_hostname": "ssl_verify_identity"}
"""The keys of a mapping `ssl`, and the arguments that are the same."""

CONNECTING = frozenset({"pymysql", "asyncmy", "aiomysql"})
"""The drivers whose connections Tenure can use."""


def deployment_of_engine(engine: Any) -> MySqlDeployment:  # noqa: ANN401 - SQLAlchemy need not be installed
    """Take over how an engine connects, sync or asyncio. Raises UsageError for others, or if it cannot be."""
    engine = sync_engine_of(engine)
    if getattr(getattr(engine, "dialect", None), "name", "") not in {"mysql", "mariadb"}:
        raise UsageError(f"a {type(engine).__name__} is no engine of SQLAlchemy for MySQL or MariaDB: give a URL.")
    arguments = arguments_of(engine)
    if arguments is not None and not arguments.positional and _is_usual(arguments.keywords):
        return replace(_of_keywords(arguments.keywords), is_current=lambda: arguments_of(engine) is not None)
    if engine.dialect.driver not in CONNECTING:
        raise UsageError(
            "the engine connects by `creator=`, by a listener for `do_connect` or by arguments that Tenure cannot take "
            f"over, and Tenure cannot use connections of {engine.dialect.driver}: make an engine of PyMySQL "
            "(mysql+pymysql://) or asyncmy, or give a URL."
        )
    return MySqlDeployment([], connect=connector_of(engine))


def _is_usual(keywords: Mapping[str, Any]) -> bool:
    """Tell whether all arguments are taken over or left out."""
    given: Any = keywords.get("ssl")
    if isinstance(given, Mapping) and not TLS_KEYS.keys() >= set(given):  # pyright: ignore[reportUnknownArgumentType]
        return False
    return all(key in LOGIN | OF_DRIVERS for key, value in keywords.items() if value is not None)


def _of_keywords(keywords: Mapping[str, Any]) -> MySqlDeployment:
    given: Any = keywords.get("ssl")
    files: dict[str, Any] = {key: keywords[key] for key in TLS_OPTIONS if key != "ssl" and key in keywords}
    if isinstance(given, Mapping):
        if "ca" in given:
            files["ssl_verify_identity"] = True  # as the drivers do
        files |= {TLS_KEYS[key]: value for key, value in given.items()}  # pyright: ignore[reportUnknownVariableType]
    elif given:
        files["ssl"] = True
    deployment = MySqlDeployment(
        [(str(keywords.get("unix_socket") or keywords.get("host") or "localhost"), int(keywords.get("port") or PORT))],
        str(keywords.get("user") or ""),
        str(keywords.get("password") or keywords.get("passwd") or ""),
        str(keywords.get("database") or keywords.get("db") or ""),
    )
    deployment.tls = given if isinstance(given, ssl.SSLContext) else tls_of(files, "the engine")
    if not deployment.database:
        raise UsageError("the engine's URL names no database: give an engine of the database that keeps the locks.")
    return deployment
