"""What a store needs and is not everywhere: say what to install, before anything is imported that lacks it."""

from importlib.util import find_spec

from holdfast.errors import UsageError


def require_redis() -> None:
    """Raise UsageError unless what the Redis stores need is there."""
    for needed in ("redis", "hiredis"):
        if find_spec(needed) is None:
            raise UsageError(f"the Redis store needs {needed}, which is not installed: pip install 'holdfast[redis]'")
