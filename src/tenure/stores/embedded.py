"""The mapping from URLs to the stores without a server: a lock file, a folder, or a table in this process."""

from pathlib import Path
from urllib.parse import SplitResult, unquote

from tenure.contracts.store import StoreSource
from tenure.errors import UsageError
from tenure.posix import require_posix

SERVERS = "use a server, as redis://, etcd:// or zookeeper://, or memory:// for the threads of one process"


def memory_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores on the table of a `memory://` URL."""
    from tenure.stores.memory import memory_source, shared_table

    _refuse_extras(parts)
    name = parts.netloc + parts.path
    return memory_source(shared_table(name), f"memory://{name}")


def sqlite_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores on the lock file of a URL. Raises UsageError if the URL can't be understood."""
    from tenure.stores.sqlite import sqlite_source

    require_posix("a lock file (sqlite://)", SERVERS)
    return sqlite_source(_path_of(parts, "lock file"))


def folder_url_source(parts: SplitResult) -> StoreSource:
    """Return the source of stores in the folder of a URL. Raises UsageError if the URL can't be understood."""
    from tenure.stores.folder import folder_source

    require_posix("a folder of locks (file://)", SERVERS)
    return folder_source(_path_of(parts, "folder of locks"))


def _path_of(parts: SplitResult, what: str) -> Path:
    _refuse_extras(parts)
    if parts.netloc or not parts.path.strip("/"):
        scheme = parts.scheme
        raise UsageError(
            f"a {what} must be given as {scheme}:///absolute/path, {scheme}:///~/path or {scheme}:relative/path"
        )
    path = unquote(parts.path)
    if "\0" in path:
        raise UsageError(f"the path of the {what} contains a NUL character; give another path")
    if path.startswith("/~"):
        try:
            return Path(path[1:]).expanduser()
        except RuntimeError:
            message = (
                f"the home folder in {path[1:]!r} is not known; write {parts.scheme}:///~/path or an absolute path"
            )
            raise UsageError(message) from None
    if path.startswith("/"):
        return Path("/" + path.lstrip("/"))
    return Path(path).absolute()


def _refuse_extras(parts: SplitResult) -> None:
    if parts.query or parts.fragment:
        message = f"a {parts.scheme}: URL takes no options after `?` or `#`; escape these characters in a path"
        raise UsageError(message)
