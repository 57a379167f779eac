"""The options of a PostgreSQL URL, or of a pool or engine of the user's: the servers, the login, the tables, the rules.

No error of this file repeats a value of the URL, because it may be a password.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote

from tenure.errors import UsageError
from tenure.stores.urlparts import PORTS, Option, UrlParts, number, one_of, seconds, text

FORMS = "write postgresql://[user:password@]host1[:port],host2/database?schema=tenure"

PORT = 5432
PREFIX = "tenure_"
CONNECTIONS = 8
MAX_TTL = 60.0

STRICT, OBSERVED, OFF = "strict", "observed", "off"

TABLE, ADVISORY = "table", "advisory"
"""The modes: leases in the rows of a table; leases as advisory locks of sessions, without a table."""

ONLY_TABLE = ("schema", "prefix", "max_ttl", "guard")
"""The options of the mode with a table."""

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SEQUENCE = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*")
LONGEST_IDENTIFIER = 40
"""PostgreSQL cuts names after 63 bytes, and a prefix has a name behind it."""


def _identifier(text: str) -> str:
    if not IDENTIFIER.fullmatch(text) or len(text) > LONGEST_IDENTIFIER:
        raise ValueError
    return text


def _connections(text: str) -> int:
    if not 1 <= (count := number(text)) <= 1000:  # noqa: PLR2004 - far more than a server grants
        raise ValueError
    return count


def _sequence(text: str) -> str:
    if not SEQUENCE.fullmatch(text) or len(text) > 2 * LONGEST_IDENTIFIER:
        raise ValueError
    return text


def identifier(key: str) -> Option:
    """Return an option that accepts a name of SQL."""
    return Option(_identifier, f"must be up to {LONGEST_IDENTIFIER} letters, digits and underscores, as ?{key}=locks")


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
    "connections": Option(_connections, "must be a number from 1 to 1000, as ?connections=4"),
    "max_ttl": Option(seconds(1.0, 1e7), "must be the longest ttl in use, in seconds, as ?max_ttl=60"),
    "guard": Option(one_of(STRICT, OBSERVED, OFF), "must be strict, observed or off, as ?guard=off"),
    "mode": Option(one_of(TABLE, ADVISORY), "must be table or advisory, as ?mode=advisory"),
    "sequence": Option(_sequence, "must be the name of a sequence, as ?sequence=app.tenure_tokens"),
    **LIBPQ_OPTIONS,
}
"""All options of a PostgreSQL URL."""


@dataclass(slots=True)
class PgDeployment:
    """The servers of one database, how to log in, and which tables to use."""

    hosts: list[tuple[str, int]]
    login: dict[str, str] = field(repr=False)
    """Keywords of libpq besides the host and the port."""
    schema: str = ""
    """Empty: the first schema of the role's search path."""
    prefix: str = PREFIX
    connections: int = CONNECTIONS
    """How many connections carry requests, at most; one more listens."""
    max_ttl: float = MAX_TTL
    """The longest ttl of this client, in seconds: how long a server that may have forgotten grants grants nothing."""
    guard: str = OBSERVED
    mode: str = TABLE
    sequence: str = ""
    """The sequence of the tokens in the mode without a table; empty: `tenure_tokens`, if there is one."""

    @property
    def strict(self) -> bool:
        """Whether any restart of the server begins a quarantine."""
        return self.guard == STRICT

    def title(self) -> str:
        """Return the URL without its secrets and options."""
        hosts = ",".join(place(host, port) for host, port in self.hosts)
        if self.mode == ADVISORY:
            return f"postgresql://{hosts}/{self.login.get('dbname', '')} (advisory locks)"
        tables = f"{self.schema}.{self.prefix}" if self.schema else self.prefix
        return f"postgresql://{hosts}/{self.login.get('dbname', '')} ({tables}*)"


def place(host: str, port: int) -> str:
    """Return a host and its port as text. A host that begins with a slash is the folder of a socket."""
    if host.startswith("/"):
        return f"{host}:{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def deployment_of(parts: SplitResult) -> PgDeployment:
    """Parse a PostgreSQL URL. Raises UsageError if it can't be understood."""
    url = UrlParts(parts, "PostgreSQL", FORMS)
    query = url.query([*OPTIONS, "host", "port"])
    folder, port = query.pop("host", None), query.pop("port", None)
    options = url.take(query, OPTIONS)
    _check_mode(options)
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


def _check_mode(options: Mapping[str, Any]) -> None:
    """Raise UsageError if an option belongs to the other mode."""
    advisory = options.get("mode") == ADVISORY
    for key in ONLY_TABLE if advisory else ("sequence",):
        if key in options:
            raise UsageError(
                f"the option {key} of the PostgreSQL URL is {'not ' if advisory else ''}for ?mode=advisory, the mode "
                "without a table. Leave one of the two out."
            )


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


# -- pools and engines -------------------------------------------------------------------------------------------


def deployment_of_pool(pool: Any, options: Mapping[str, Any] | None = None) -> PgDeployment:  # noqa: ANN401 - any
    """Take over the servers and the login of a psycopg pool or a SQLAlchemy engine. Raises UsageError for others.

    The values of `options` are those of a URL.
    """
    checked = {key: _check(key, value) for key, value in (options or {}).items() if value != ""}
    if hasattr(pool, "conninfo") and hasattr(pool, "kwargs"):
        return _of_keywords(_keywords_of_pool(pool), checked)
    engine = getattr(pool, "sync_engine", pool)
    if getattr(getattr(engine, "dialect", None), "name", "") == "postgresql":
        _, keywords = engine.dialect.create_connect_args(engine.url)
        return _of_keywords(keywords, checked)
    raise UsageError(
        f"a {type(pool).__name__} is no store: give a URL, a pool of psycopg_pool, or an engine of SQLAlchemy."
    )


def _check(key: str, value: object) -> Any:  # noqa: ANN401 - whatever the option is
    """Return the value of an option that was not given by a URL. Raises UsageError if it is not valid."""
    try:
        return OPTIONS[key].read(str(value))
    except (ValueError, KeyError):
        raise UsageError(f"`{key}` is not valid: in a URL it {OPTIONS[key].takes}.") from None


def _keywords_of_pool(pool: Any) -> dict[str, Any]:  # noqa: ANN401 - psycopg_pool need not be installed
    """Return how a pool connects. Raises UsageError if that is not known now."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    for key in ("conninfo", "kwargs"):
        if callable(getattr(pool, key)):
            raise UsageError(
                f"`{key}` of the pool is a function, whose values Tenure cannot take over, because they may change: "
                "give a URL."
            )
    try:
        return {**conninfo_to_dict(pool.conninfo or ""), **(pool.kwargs or {})}
    except ProgrammingError:
        raise UsageError(f"`conninfo` of the pool can't be understood: {FORMS}.") from None


def _of_keywords(keywords: dict[str, Any], options: dict[str, Any]) -> PgDeployment:
    kept = {key: str(value) for key, value in keywords.items() if key in TAKEN_OVER and value is not None}
    if "database" in keywords:
        kept["dbname"] = str(keywords["database"])
    hosts = _hosts(keywords)
    if len(hosts) > 1:
        kept.setdefault("target_session_attrs", "read-write")
    return PgDeployment(hosts, kept, **options)


def _hosts(keywords: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the servers of a connection. What the keywords leave out, libpq takes from the environment."""
    servers, port = (str(keywords.get(key) or "") for key in ("host", "port"))
    if keywords.get("service") and not servers:
        raise UsageError("the pool or engine names a service, whose hosts are not known: give the hosts, or a URL.")
    servers = servers or str(keywords.get("hostaddr") or "")
    if not (servers and port):
        from psycopg import pq

        defaults = {each.keyword.decode(): (each.val or b"").decode() for each in pq.Conninfo.get_defaults()}
        servers = servers or defaults["host"] or defaults["hostaddr"] or "localhost"
        port = port or defaults["port"] or str(PORT)
    hosts, ports = servers.split(","), port.split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if len(ports) != len(hosts) or not all(each.isdecimal() for each in ports):
        raise UsageError("the pool or engine must have one port, or as many ports as hosts, each of them a number.")
    return [(host, int(port)) for host, port in zip(hosts, ports, strict=True)]


TAKEN_OVER = frozenset(
    {*LIBPQ_OPTIONS, "dbname", "sslcrl", "passfile", "service", "krbsrvname", "gsslib", "channel_binding"}
)
"""The keywords of libpq that are taken over from a pool or an engine."""
