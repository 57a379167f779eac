"""Say what to install that a store needs, and import all of it when a client is made.

If a thread imports a module when it first uses a client, another thread may fork in the middle of it. The child has the
lock of that module then, which nobody in it ever releases, and waits for it for ever.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from holdfast.errors import UsageError


def require_redis() -> None:
    """Raise UsageError unless what the Redis stores need is there."""
    for needed in ("redis", "hiredis"):
        if find_spec(needed) is None:
            raise UsageError(f"the Redis store needs {needed}, which is not installed: pip install 'holdfast[redis]'")
    _look_up_version()


@cache
def _look_up_version() -> None:
    """Look up the version of redis-py, as it does itself when it first connects: what that imports is imported now."""
    metadata = import_module("importlib.metadata")
    with suppress(metadata.PackageNotFoundError):
        metadata.version("redis")


def load(modules: Iterable[str]) -> None:
    """Import what the operations of a store would import later, as far as it is installed."""
    for module in ("encodings.idna", "concurrent.futures.thread", *modules):  # the first two to look up a host
        if find_spec(module.partition(".")[0]) is not None:
            import_module(module)
