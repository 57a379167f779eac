"""How a pool of psycopg_pool or an engine of SQLAlchemy connects: what is taken over of it, and what is refused.

Arguments of libpq are taken over. Where code of the user's decides how to connect, it makes the connections: it may
name another server, or fetch a password that is valid for minutes. What is neither is refused. No error of this file
repeats a value, because it may be a password.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tenure.errors import UsageError
from tenure.stores.postgresql.options import FORMS, OPTIONS, PORT, PgDeployment
from tenure.stores.sql.deployment import arguments_of, connector_of, sync_engine_of

OURS = frozenset({"connect_timeout", "client_encoding", "fallback_application_name", "tcp_user_timeout"})
"""The arguments of libpq that are left out, as all that begin with `keepalives`: Tenure has its own values for them."""

OF_DRIVERS = frozenset(
    {"autocommit", "row_factory", "cursor_factory", "connection_factory", "prepare_threshold", "context"}
    | {"timeout", "command_timeout", "tcp_keepalive", "async_fallback", "statement_cache_size"}
    | {"max_cached_statement_lifetime", "max_cacheable_statement_size"}
    | {"prepared_statement_cache_size", "prepared_statement_name_func"}
)
"""The arguments of drivers that say nothing of the server, the login or the session, and are left out."""


def deployment_of_pool(pool: Any, options: Mapping[str, Any] | None = None) -> PgDeployment:  # noqa: ANN401 - any
    """Take over how a psycopg pool or a SQLAlchemy engine connects. Raises UsageError for others, or if it cannot be.

    The values of `options` are those of a URL.
    """
    checked = {key: _check(key, value) for key, value in (options or {}).items() if value != ""}
    if hasattr(pool, "conninfo") and hasattr(pool, "kwargs"):
        return _of_pool(pool, checked)
    engine = sync_engine_of(pool)
    if getattr(getattr(engine, "dialect", None), "name", "") == "postgresql":
        return _of_engine(engine, checked)
    raise UsageError(
        f"a {type(pool).__name__} is no store: give a URL, a pool of psycopg_pool, or an engine of SQLAlchemy."
    )


def _check(key: str, value: object) -> Any:  # noqa: ANN401 - whatever the option is
    """Return the value of an option that was not given by a URL. Raises UsageError if it is not valid."""
    try:
        return OPTIONS[key].read(str(value))
    except (ValueError, KeyError):
        raise UsageError(f"`{key}` is not valid: in a URL it {OPTIONS[key].takes}.") from None


# -- engines -----------------------------------------------------------------------------------------------------


def _of_engine(engine: Any, options: dict[str, Any]) -> PgDeployment:  # noqa: ANN401 - any engine of SQLAlchemy
    arguments = arguments_of(engine)
    if arguments is None:
        if engine.dialect.driver != "psycopg":
            raise UsageError(
                "`creator=` or a listener for `do_connect` decides where the engine connects, and Tenure cannot use "
                f"connections of {engine.dialect.driver}: make an engine of psycopg (postgresql+psycopg://), or give "
                "a URL."
            )
        return PgDeployment([], {}, connect=connector_of(engine), **options)
    texts = [each for each in arguments.positional if each != ""]
    if len(texts) > 1 or not all(isinstance(each, str) for each in texts):
        raise UsageError("the engine passes arguments to its driver that Tenure cannot take over: give a URL.")
    keywords = {**_read_conninfo("".join(texts), "the engine"), **arguments.keywords}
    taken = _of_keywords(keywords, options, "engine")
    return replace(taken, is_current=lambda: arguments_of(engine) is not None)


# -- pools -------------------------------------------------------------------------------------------------------


def _of_pool(pool: Any, options: dict[str, Any]) -> PgDeployment:  # noqa: ANN401 - psycopg_pool need not be installed
    for key in ("conninfo", "kwargs"):
        if callable(getattr(pool, key)):
            raise UsageError(
                f"`{key}` of the pool is a function, whose values Tenure cannot take over, because they may change: "
                "give a URL."
            )
    made_by = pool.connection_class.__module__.partition(".")[0]
    if made_by in {"psycopg", "psycopg_pool"} and getattr(pool, "_configure", None) is None:
        given: dict[str, Any] = pool.kwargs or {}
        keywords = {**_read_conninfo(pool.conninfo, "`conninfo` of the pool"), **given}
        return _of_keywords(keywords, options, "pool")
    return PgDeployment([], {}, connect=_connector_of_pool(pool), **options)


def _connector_of_pool(pool: Any) -> Callable[[], Any]:  # noqa: ANN401
    """Return a function that connects as the pool does, by its `connection_class` and its `configure`."""
    from psycopg import AsyncConnection

    def connect() -> Any:  # noqa: ANN401
        connection = pool.connection_class.connect(pool.conninfo, **(pool.kwargs or {}))
        try:
            if pool._configure is not None:  # noqa: SLF001 - the pool does not show it otherwise
                pool._configure(connection)  # noqa: SLF001
        except BaseException:
            connection.close()
            raise
        return connection

    async def connect_async() -> Any:  # noqa: ANN401
        connection = await pool.connection_class.connect(pool.conninfo, **(pool.kwargs or {}))
        try:
            if pool._configure is not None:  # noqa: SLF001
                await pool._configure(connection)  # noqa: SLF001
        except BaseException:
            connection.pgconn.finish()
            raise
        return connection

    return connect_async if issubclass(pool.connection_class, AsyncConnection) else connect


def _read_conninfo(text: str | None, whose: str) -> dict[str, Any]:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return conninfo_to_dict(text or "")
    except ProgrammingError:
        raise UsageError(f"{whose} can't be understood: {FORMS}.") from None


# -- arguments of drivers ----------------------------------------------------------------------------------------


def _of_keywords(keywords: dict[str, Any], options: dict[str, Any], whose: str) -> PgDeployment:
    kept: dict[str, str] = {}
    for key, value in keywords.items():
        if value is not None and key not in OURS | OF_DRIVERS and not key.startswith("keepalives"):
            kept |= _in_libpq(key, value, whose)
    hosts = _hosts(kept)
    del kept["host"], kept["port"]
    if len(hosts) > 1:
        kept.setdefault("target_session_attrs", "read-write")
    return PgDeployment(hosts, kept, **options)


def _in_libpq(key: str, value: object, whose: str) -> dict[str, str]:
    """Return what an argument of a driver is for libpq. Raises UsageError if libpq has none like it."""
    from psycopg import pq

    if key == "ssl" and value is False:
        return {}
    key = {"database": "dbname", "ssl": "sslmode"}.get(key, key)
    known = {each.keyword.decode() for each in pq.Conninfo.get_defaults()} - {"replication"}
    if key not in known or not isinstance(value, (str, int)) or (key == "sslmode" and value not in SSL_MODES):
        raise UsageError(
            f"the argument `{key}` of the {whose}'s connections cannot be taken over by Tenure: leave it out, or give "
            "a URL."
        )
    return {key: str(value)}


SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def _hosts(keywords: dict[str, str]) -> list[tuple[str, int]]:
    """Return the servers of a connection. What the keywords leave out, libpq takes from the environment."""
    servers, port, address = (keywords.setdefault(key, "") for key in ("host", "port", "hostaddr"))
    if keywords.get("service") and not servers:
        raise UsageError("the pool or engine names a service, whose hosts are not known: give the hosts, or a URL.")
    if not (servers and address):
        del keywords["hostaddr"]
    elif "," in address:
        raise UsageError("the pool or engine has `host` and `hostaddr` for several servers: leave one of the two out.")
    servers = servers or address
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
