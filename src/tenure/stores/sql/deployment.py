"""The options that the URLs of SQL databases have in common, and how a SQLAlchemy engine of the user's connects.

No error of this file repeats a value of the URL, because it may be a password.
"""

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from tenure.contracts.limits import MAX_TTL
from tenure.contracts.store import Capabilities
from tenure.errors import UsageError
from tenure.stores.urlparts import Option, number, one_of, seconds

PREFIX = "tenure_"
CONNECTIONS = 8

STRICT, OBSERVED, OFF = "strict", "observed", "off"

TABLE = "table"
"""The mode with leases in the rows of a table. The other mode of a database has none."""

LONGEST_IDENTIFIER = 40
"""PostgreSQL cuts names after 63 bytes, MySQL refuses more than 64, and a prefix has a name behind it."""


def always() -> bool:
    """Return True: what a URL says does not change."""
    return True


@dataclass(slots=True)
class SqlDeployment(ABC):
    """The servers of one database, and which tables to use."""

    kind: ClassVar[str]
    """The database's name for users; in small letters, the scheme of its URLs."""

    hosts: list[tuple[str, int]]
    """A host that begins with a slash is a Unix socket."""
    _: KW_ONLY
    prefix: str = PREFIX
    connections: int = CONNECTIONS
    """How many connections carry requests, at most; one more listens."""
    max_ttl: float = MAX_TTL
    """The longest ttl of this client, in seconds, and the least length of a quarantine."""
    guard: str = OBSERVED
    mode: str = TABLE
    connect: Callable[[], Any] | None = None
    """How the user's code (a factory, pool or engine) makes a connection, which replaces the hosts and the login."""
    is_current: Callable[[], bool] = always
    """Whether the hosts and the login are still all that decides where the user's engine connects."""

    @property
    def strict(self) -> bool:
        """Whether any restart of the server begins a quarantine."""
        return self.guard == STRICT

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the database."""

    def tables(self) -> str:
        """Return the tables, or the locks in the mode without a table, for messages."""
        return f"{self.prefix}*"

    def place(self, host: str, port: int) -> str:
        """Return a host and its port as text."""
        if host.startswith("/"):
            return host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def title(self) -> str:
        """Return the URL without its secrets and options."""
        if self.connect is not None:
            name = getattr(self.connect, "__qualname__", type(self.connect).__name__)
            return f"{self.kind} by connections of {name} #{id(self.connect)} ({self.tables()})"
        hosts = ",".join(self.place(host, port) for host, port in self.hosts)
        return f"{self.kind.lower()}://{hosts}/{self.name} ({self.tables()})"

    def capabilities(self) -> Capabilities:
        """Return what the store with a table can do."""
        return Capabilities(
            min_ttl=0.05,
            queue=True,
            weights=True,
            runs_in_caller=False,
            max_ttl=float("inf") if self.guard == OFF else self.max_ttl,
            multi_acquire=True,
            barging=True,
            cells=True,
            hands_over=True,
        )


# -- options -----------------------------------------------------------------------------------------------------


def identifier(key: str, example: str = "locks", pattern: str = "[A-Za-z_][A-Za-z0-9_]*") -> Option:
    """Return an option that accepts a name of SQL."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text) or len(text) > LONGEST_IDENTIFIER:
            raise ValueError
        return text

    return Option(read, f"must be up to {LONGEST_IDENTIFIER} letters, digits and underscores, as ?{key}={example}")


def _connections(text: str) -> int:
    if not 1 <= (count := number(text)) <= 1000:  # noqa: PLR2004 - far more than a server grants
        raise ValueError
    return count


OPTIONS: Mapping[str, Option] = {
    "connections": Option(_connections, "must be a number from 1 to 1000, as ?connections=4"),
    "max_ttl": Option(seconds(1.0, 1e7), "must be the longest ttl that a lock may have, in seconds, as ?max_ttl=30"),
    "guard": Option(one_of(STRICT, OBSERVED, OFF), "must be strict, observed or off, as ?guard=off"),
}
"""Options that each of these URLs has."""


def check_mode(
    given: Mapping[str, Any], kind: str, mode: str, with_table: Sequence[str], without: Sequence[str]
) -> None:
    """Raise UsageError if an option of a URL belongs to the other mode; `mode` is the one without a table."""
    tableless = given.get("mode") == mode
    for key in with_table if tableless else without:
        if key in given:
            raise UsageError(
                f"the option {key} of the {kind} URL is {'not ' if tableless else ''}for ?mode={mode}, the mode "
                "without a table. Leave one of the two out."
            )


# -- engines -----------------------------------------------------------------------------------------------------

MAKER = "sqlalchemy.engine.create"
"""The module of the function that connects by arguments. `creator=` of an engine replaces it by one of the user's."""


@dataclass(slots=True)
class Arguments:
    """The arguments of the driver's `connect`, of the URL and `connect_args=`. They may contain a password."""

    positional: Sequence[Any]
    keywords: Mapping[str, Any]


def sync_engine_of(engine: Any) -> Any:  # noqa: ANN401 - SQLAlchemy need not be installed
    """Return the blocking engine below an engine for asyncio; anything else as it is."""
    return getattr(engine, "sync_engine", engine)


def arguments_of(engine: Any) -> Arguments | None:  # noqa: ANN401
    """Return the arguments by which an engine connects; None if code of the user's decides.

    Code decides by `creator=`, by a pool that was given, or by a listener for `do_connect`, which may change the
    arguments of each connection.
    """
    connect = engine.pool._creator  # noqa: SLF001 - a pool does not show it otherwise
    if getattr(connect, "__module__", "") != MAKER or list(engine.dialect.dispatch.do_connect):
        return None
    known = inspect.getclosurevars(connect).nonlocals
    if not {"cargs_tup", "cparams"} <= known.keys():  # another release of SQLAlchemy
        return None
    return Arguments(tuple(known["cargs_tup"]), dict(known["cparams"]))


def connector_of(engine: Any) -> Callable[[], Any]:  # noqa: ANN401
    """Return a function that connects as the engine does, its listeners included.

    It returns a connection of the driver, or something to await that does, if the engine is one for asyncio. The
    connection does not belong to the engine's pool, and takes no room in it.
    """

    def connect() -> Any:  # noqa: ANN401
        taken = engine.pool.recreate().connect()
        connection = taken.driver_connection
        taken.detach()
        return connection

    if not engine.dialect.is_async:
        return connect
    from sqlalchemy.util import greenlet_spawn

    async def connect_async() -> Any:  # noqa: ANN401
        return await greenlet_spawn(connect)

    return connect_async
