"""The packages that stores and adapters need: tells what to install, and imports those of a store with its client.

A thread that imports a module at its first use of a client holds the import lock of that module. If another thread
forks meanwhile, the lock stays locked in the child for ever.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from tenure.errors import UsageError


def require(store: str, packages: Iterable[str], extra: str) -> None:
    """Raise UsageError unless the packages of a store are installed."""
    for needed in packages:
        if find_spec(needed) is None:
            raise UsageError(f"{store} needs {needed}, which is not installed: pip install 'tenure[{extra}]'")


@contextmanager
def needed_by(importer: str, title: str, extra: str, *packages: str) -> Generator[None]:
    """Have the imports in the body say what to install if one of `packages`, of an extra, is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        message = f"{importer} needs {title}: pip install 'tenure[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from error


def require_redis() -> None:
    """Raise UsageError unless the packages for Redis are installed."""
    require("the Redis store", ("redis", "hiredis"), "redis")
    _look_up_version()


@cache
def _look_up_version() -> None:
    """Look up the version of redis-py, as redis-py does when it first connects, so that its imports happen now."""
    metadata = import_module("importlib.metadata")
    with suppress(metadata.PackageNotFoundError):
        metadata.version("redis")


def load(modules: Iterable[str]) -> None:
    """Import the installed modules that the operations of a store would import later."""
    for module in ("encodings.idna", "concurrent.futures.thread", *modules):  # a host look-up needs the first two
        if find_spec(module.partition(".")[0]) is not None:
            import_module(module)
