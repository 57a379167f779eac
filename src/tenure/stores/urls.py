"""The mapping from URLs to stores: `SCHEMES` has one entry per scheme."""

import os
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from tenure.contracts.store import StoreSource
from tenure.errors import UsageError
from tenure.posix import require_posix
from tenure.stores.embedded import SERVERS, folder_url_source, memory_url_source, sqlite_url_source
from tenure.stores.extras import load, require, require_redis

VARIABLE = "TENURE_URL"

FILE_VARIABLE = "TENURE_URL_FILE"
"""The variable with the name of a file that contains the URL, so that no environment contains a password."""

REDIS = ("tenure.stores.redis.links.threads", "tenure.stores.redis.links.aio")
ETCD = ("tenure.stores.etcd.directory",)
MEMCACHED = ("tenure.stores.memcached.store",)
NATS = ("tenure.stores.nats.bucket", "tenure.stores.rows.in_loop", "tenure.stores.rows.store")
ZOOKEEPER = (
    "tenure.stores.zookeeper.directory",
    "kazoo.client",
    "kazoo.security",
    "kazoo.handlers.utils",
    "puresasl.client",
)
DYNAMODB = ("tenure.stores.dynamodb.table", "tenure.stores.rows.store")
OBJECTS = ("tenure.stores.objects", "obstore.exceptions", "obstore.store")
POSTGRESQL = (
    "tenure.stores.postgresql.threads",
    "tenure.stores.postgresql.aio",
    "tenure.stores.postgresql.database",
    "tenure.stores.postgresql.examining",
    "tenure.stores.postgresql.advisory",
    "tenure.stores.sql.session_locks",
    "tenure.stores.sql.store",
)
MYSQL = (
    "tenure.stores.mysql.threads",
    "tenure.stores.mysql.database",
    "tenure.stores.mysql.examining",
    "tenure.stores.mysql.get_lock",
    "tenure.stores.sql.session_locks",
    "tenure.stores.sql.store",
)
"""The modules that operations of these stores need besides those that creating a client imports."""

ASYNC_MYSQL = ("tenure.stores.mysql.aio",)
"""Those of an AsyncClient at MySQL: only where asyncmy is installed."""

FILE_FORMS = "for a lock file write sqlite:///absolute/path, sqlite:///~/path or sqlite:relative/path"

NO_SCHEME = f"a store URL must begin with its scheme, as redis://host:6379; {FILE_FORMS}"


def store_source(url: object = None) -> StoreSource:
    """Return the store source of a URL or a client, else of the environment, else of this user's lock file.

    The environment contains the URL in TENURE_URL, or the name of a file with the URL in TENURE_URL_FILE.

    Raises UsageError if the URL can't be understood. Nothing is connected yet.
    """
    if hasattr(url, "connection_pool") or hasattr(url, "nodes_manager"):
        require_redis()
        load(REDIS)
        from tenure.stores.redis import redis_source

        return redis_source(url)
    if (pool := _source_of_pool(url)) is not None:
        return pool
    url = _from_environment() if url is None else url
    if url is None:
        return _default()
    if url == "":
        raise UsageError(f"the store URL is empty; give one, or leave it out and {VARIABLE} unset for a lock file.")
    parts = _split(url)
    if not parts.scheme:
        raise UsageError(f"{NO_SCHEME}.")
    make = SCHEMES.get(parts.scheme)
    if make in SERVED and not str(url).partition(":")[2].startswith("//"):
        begins = f"{parts.scheme}://{OTHER_THAN_HOSTS.get(parts.scheme, 'host')}"
        raise UsageError(f"the URL of a store on servers has two slashes after its scheme, as {begins}.")
    if make is None:
        raise UsageError(f"no store has the scheme {parts.scheme!r}; {_known_like(parts)}")
    plain, ttl = _without_ttl(parts)
    return make(parts) if ttl is None else replace(make(plain), ttl=ttl)


def _without_ttl(parts: SplitResult) -> tuple[SplitResult, float | None]:
    """Return a URL without the option that is none of its store's: the ttl of locks that say none; and that."""
    options = parts.query.split("&")
    given = [each.partition("=")[2] for each in options if each.partition("=")[0] == "ttl"]
    if not given:
        return parts, None
    try:
        ttl = float(given[-1])
    except ValueError:
        raise UsageError("ttl must be the ttl of locks that say none, in seconds, as ?ttl=10") from None
    return parts._replace(query="&".join(each for each in options if each.partition("=")[0] != "ttl")), ttl


def _source_of_pool(pool: object) -> StoreSource | None:
    """Return the source of stores in the database of a pool or an engine of the user's; None if it is neither."""
    dialect = getattr(getattr(getattr(pool, "sync_engine", pool), "dialect", None), "name", None)
    if dialect == "postgresql" or hasattr(pool, "conninfo"):
        require("the PostgreSQL store", ("psycopg",), "postgresql")
        load(POSTGRESQL)
        from tenure.stores.postgresql import postgresql_source

        return postgresql_source(pool)
    if dialect in {"mysql", "mariadb"}:
        require("the MySQL store", ("pymysql",), "mysql")
        _load_mysql()
        from tenure.stores.mysql import source_of_engine

        return source_of_engine(pool)
    return None


def _from_environment() -> str | None:
    url, file = os.environ.get(VARIABLE), os.environ.get(FILE_VARIABLE)
    return url if url is not None or file is None else read_url(Path(file))


def read_url(file: Path) -> str:
    """Return the URL in a file, which must be its only line. Raises UsageError if there is none."""
    try:
        lines = file.read_text("utf-8").strip().splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise UsageError(f"the file {str(file)!r}, which must hold the store URL, cannot be read ({why}).") from None
    if len(lines) != 1:
        raise UsageError(f"the file {str(file)!r} must hold one line: the store URL.")
    return lines[0]


def _known_like(parts: SplitResult) -> str:
    """Return a hint which URL may have been meant by an unknown scheme."""
    if near := get_close_matches(parts.scheme, SCHEMES, 1):
        return f"did you mean {near[0]}?"
    if (store := parts.scheme.partition("+")[0]) in SCHEMES:  # mysql+pymysql, the dialect and the driver of SQLAlchemy
        return f"did you mean {store}?"
    if not parts.netloc:  # host:6379
        return f"{NO_SCHEME}."
    return f"there are {', '.join(SCHEMES)}; {FILE_FORMS}."


def _split(url: object) -> SplitResult:
    """Split a URL. No error repeats the URL, because it may contain a password."""
    if not isinstance(url, str) and type(url).__module__.partition(".")[0] == "sqlalchemy":
        raise UsageError(
            f"a {type(url).__name__} of SQLAlchemy is no store: give its engine, as connection.engine or "
            "session.get_bind(), from which Tenure makes connections of its own."
        )
    if not isinstance(url, str):
        raise UsageError(f"a store URL is a str, not {type(url).__name__}; {FILE_FORMS}.")
    try:
        return urlsplit(url)
    except ValueError:
        raise UsageError(f"the store URL is not valid; {FILE_FORMS}.") from None


def default_file() -> Path:
    """Return the path of this user's lock file, and create its folder.

    The path comes from the password database and not from the environment, so that a cron job and a login shell of one
    user use the same file.

    Raises UsageError if the folder cannot be created, or if this is no POSIX system.
    """
    require_posix("a lock file, the store where no URL is given,", f"{SERVERS}, by a URL or by {VARIABLE}")
    import pwd  # Windows has no such module

    try:
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        home = Path.home()
    path = home / ".local" / "state" / "tenure" / "locks.db"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = (
            f"no store was given, and the default file {path} cannot be created ({error.strerror}); give a URL, or set "
            f"{VARIABLE}, for example to sqlite:///var/lib/app/locks.db"
        )
        raise UsageError(message) from error
    return path


def _default() -> StoreSource:
    from tenure.stores.sqlite import sqlite_source

    return sqlite_source(default_file())


def _redis(parts: SplitResult) -> StoreSource:
    require_redis()
    load(REDIS)
    from tenure.stores.redis import redis_url_source

    return redis_url_source(parts)


def _redlock(parts: SplitResult) -> StoreSource:
    require_redis()
    load(REDIS)
    from tenure.stores.quorum import redlock_url_source

    return redlock_url_source(parts)


def _zookeeper(parts: SplitResult) -> StoreSource:
    from tenure.stores.zookeeper import zookeeper_url_source

    source = zookeeper_url_source(parts)
    load(ZOOKEEPER)
    return source


def _etcd(parts: SplitResult) -> StoreSource:
    from tenure.stores.etcd import etcd_url_source

    load(ETCD)
    return etcd_url_source(parts)


def _memcached(parts: SplitResult) -> StoreSource:
    from tenure.stores.memcached import memcached_url_source

    load(MEMCACHED)
    return memcached_url_source(parts)


def _nats(parts: SplitResult) -> StoreSource:
    require("the NATS store", ("nats", "nkeys"), "nats")
    load(NATS)
    from tenure.stores.nats import nats_url_source

    return nats_url_source(parts)


def _dynamodb(parts: SplitResult) -> StoreSource:
    require("the DynamoDB store", ("botocore",), "dynamodb")
    load(DYNAMODB)
    from tenure.stores.dynamodb import dynamodb_url_source

    return dynamodb_url_source(parts)


def _objects(parts: SplitResult) -> StoreSource:
    require("the store in buckets", ("obstore",), "objects")
    load(OBJECTS)
    from tenure.stores.objects import objects_url_source

    return objects_url_source(parts)


def _postgresql(parts: SplitResult) -> StoreSource:
    require("the PostgreSQL store", ("psycopg",), "postgresql")
    load(POSTGRESQL)
    from tenure.stores.postgresql import postgresql_url_source

    return postgresql_url_source(parts)


def _mysql(parts: SplitResult) -> StoreSource:
    require("the MySQL store", ("pymysql",), "mysql")
    _load_mysql()
    from tenure.stores.mysql import mysql_url_source

    return mysql_url_source(parts)


def _load_mysql() -> None:
    load(MYSQL)
    if find_spec("asyncmy") is not None:
        load(ASYNC_MYSQL)


SCHEMES: dict[str, Callable[[SplitResult], StoreSource]] = {
    "sqlite": sqlite_url_source,
    "file": folder_url_source,
    "memory": memory_url_source,
    "unix": _redis,
    **{
        f"{scheme}{shape}": _redis
        for scheme in ("redis", "rediss", "valkey", "valkeys")
        for shape in ("", "+sentinel", "+cluster")
    },
    "redlock": _redlock,
    "redlocks": _redlock,
    "zookeeper": _zookeeper,
    "etcd": _etcd,
    "etcds": _etcd,
    "memcached": _memcached,
    "nats": _nats,
    "natss": _nats,
    "s3": _objects,
    "gs": _objects,
    "az": _objects,
    "dynamodb": _dynamodb,
    "postgresql": _postgresql,
    "postgres": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
}

SERVED = frozenset(SCHEMES.values()) - {sqlite_url_source, folder_url_source, memory_url_source}
"""The makers of stores whose URLs have a host or a path after two slashes."""

OTHER_THAN_HOSTS = {"s3": "bucket", "gs": "bucket", "az": "container", "dynamodb": "table"}
"""What stands after the two slashes where that is no host."""
