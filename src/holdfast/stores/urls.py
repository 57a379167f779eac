"""From a URL to a store. A new store is one line here."""

import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.contracts.store import StoreSource
from holdfast.errors import UsageError
from holdfast.posix import require_posix
from holdfast.stores.extras import load, require_redis

VARIABLE = "HOLDFAST_URL"

FILE_VARIABLE = "HOLDFAST_URL_FILE"
"""Names a file that holds the URL, so that a password stands in no environment."""

REDIS = ("holdfast.stores.redis.threads", "holdfast.stores.redis.fan_out_link", "holdfast.stores.redis.aio")
ETCD = ("holdfast.stores.etcd.directory", "holdfast.stores.etcd.threads", "holdfast.stores.etcd.aio")
ZOOKEEPER = (
    "holdfast.stores.zookeeper.directory",
    "kazoo.client",
    "kazoo.security",
    "kazoo.handlers.utils",
    "puresasl.client",
)
"""What operations of these stores need, beside what making a client imports anyway."""

FILE_FORMS = "for a lock file write sqlite:///absolute/path, sqlite:///~/path or sqlite:relative/path"

SERVERS = "use a server, as redis://, etcd:// or zookeeper://, or memory:// for the threads of one process"

NO_SCHEME = f"a store URL begins with its scheme, as redis://host:6379; {FILE_FORMS}"


def store_source(url: object = None) -> StoreSource:
    """Return the store of a URL or of a client, else of the environment, else of a lock file of this user.

    The environment has the URL in HOLDFAST_URL, or the name of a file that holds it in HOLDFAST_URL_FILE.

    Raises UsageError if the URL can't be understood. Nothing is connected yet.
    """
    if hasattr(url, "connection_pool") or hasattr(url, "nodes_manager"):
        require_redis()
        load(REDIS)
        from holdfast.stores.redis import redis_source

        return redis_source(url)
    url = _from_environment() if url is None else url
    if url is None:
        return _default()
    if url == "":
        raise UsageError(f"the store URL is empty; give one, or leave it out and {VARIABLE} unset for a lock file.")
    parts = _split(url)
    if not parts.scheme:
        raise UsageError(f"{NO_SCHEME}.")
    make = SCHEMES.get(parts.scheme)
    if make is None:
        raise UsageError(f"no store is known by the scheme {parts.scheme!r}; {_known_like(parts)}")
    return make(parts)


def _from_environment() -> str | None:
    url, file = os.environ.get(VARIABLE), os.environ.get(FILE_VARIABLE)
    return url if url is not None or file is None else read_url(Path(file))


def read_url(file: Path) -> str:
    """Return the URL that a file holds: its only line. Raises UsageError if it holds none."""
    try:
        lines = file.read_text("utf-8").strip().splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"the file {str(file)!r}, which is to hold the store URL, cannot be read ({why}).") from None
    if len(lines) != 1:
        raise UsageError(f"the file {str(file)!r} must hold one line: the store URL.")
    return lines[0]


def _known_like(parts: SplitResult) -> str:
    """Say what may have been meant by a URL of an unknown scheme."""
    if near := get_close_matches(parts.scheme, SCHEMES, 1):
        return f"did you mean {near[0]}?"
    if not parts.netloc:  # host:6379
        return f"{NO_SCHEME}."
    return f"there are {', '.join(SCHEMES)}; {FILE_FORMS}."


def _split(url: object) -> SplitResult:
    """Take a URL apart. No error repeats it: it may hold a password."""
    if not isinstance(url, str):
        raise UsageError(f"a store URL is a str, not {type(url).__name__}; {FILE_FORMS}.")
    try:
        return urlsplit(url)
    except ValueError:
        raise UsageError(f"the store URL cannot be read; {FILE_FORMS}.") from None


def default_file() -> Path:
    """Return the lock file of this user, and make its folder.

    It is found by the password database and not by the environment, so that a cron job and a login shell of one
    user never use two files.

    Raises UsageError if it cannot be made, or if this is no POSIX system.
    """
    require_posix("a lock file, the store where no URL is given,", f"{SERVERS}, by a URL or by {VARIABLE}")
    import pwd  # Windows has no such module

    try:
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        home = Path.home()
    path = home / ".local" / "state" / "holdfast" / "locks.db"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = (
            f"no store was given, and the default file {path} cannot be made ({error.strerror}); give a URL, or set "
            f"{VARIABLE}, for example to sqlite:///var/lib/app/locks.db"
        )
        raise UsageError(message) from error
    return path


def _default() -> StoreSource:
    from holdfast.stores.sqlite import sqlite_source

    return sqlite_source(default_file())


def _memory(parts: SplitResult) -> StoreSource:
    from holdfast.stores.memory import memory_source, shared_table

    _refuse_extras(parts)
    name = parts.netloc + parts.path
    return memory_source(shared_table(name), f"memory://{name}")


def _sqlite(parts: SplitResult) -> StoreSource:
    from holdfast.stores.sqlite import sqlite_source

    _refuse_extras(parts)
    require_posix("a lock file (sqlite://)", SERVERS)
    if parts.netloc or not parts.path.strip("/"):
        message = "a lock file is given as sqlite:///absolute/path, sqlite:///~/path or sqlite:relative/path"
        raise UsageError(message)
    path = unquote(parts.path)
    if "\0" in path:
        message = "a path cannot contain a NUL character; give another one"
        raise UsageError(message)
    if path.startswith("/~"):
        try:
            return sqlite_source(Path(path[1:]).expanduser())
        except RuntimeError:
            message = f"the home folder in {path[1:]!r} is not known; write sqlite:///~/path or an absolute path"
            raise UsageError(message) from None
    if path.startswith("/"):
        return sqlite_source(Path("/" + path.lstrip("/")))
    return sqlite_source(Path(path).absolute())


def _redis(parts: SplitResult) -> StoreSource:
    require_redis()
    load(REDIS)
    from holdfast.stores.redis import redis_url_source

    return redis_url_source(parts)


def _redlock(parts: SplitResult) -> StoreSource:
    require_redis()
    load(REDIS)
    from holdfast.stores.quorum import redlock_url_source

    return redlock_url_source(parts)


def _zookeeper(parts: SplitResult) -> StoreSource:
    from holdfast.stores.zookeeper import zookeeper_url_source

    source = zookeeper_url_source(parts)
    load(ZOOKEEPER)
    return source


def _etcd(parts: SplitResult) -> StoreSource:
    from holdfast.stores.etcd import etcd_url_source

    load(ETCD)
    return etcd_url_source(parts)


def _refuse_extras(parts: SplitResult) -> None:
    if parts.query or parts.fragment:
        message = f"a {parts.scheme}: URL takes no options after `?` or `#`; escape these characters in a path"
        raise UsageError(message)


SCHEMES: dict[str, Callable[[SplitResult], StoreSource]] = {
    "sqlite": _sqlite,
    "memory": _memory,
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
}
