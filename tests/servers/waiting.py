"""Waiting for what a server does in its own time.

Nothing here sleeps and hopes: a condition is looked at again and again, within a bound.
"""

import time
from collections.abc import Callable

TEST_TIMEOUT = 30.0
"""How long to wait, in seconds, for what must happen: only ever used up by a failure."""


class ServerFailedError(Exception):
    """A server does not do what it has to; the message holds the end of its log."""


def wait_until(condition: Callable[[], object], what: str, within: float = TEST_TIMEOUT) -> None:
    """Wait until `condition()` is true, for at most `within` seconds, and take an `OSError` for a no.

    Raises `ServerFailedError`, which says `what` was waited for.
    """
    give_up_at = time.monotonic() + within
    while not holds(condition):
        if time.monotonic() > give_up_at:
            raise ServerFailedError(f"Not within {within:g} s: {what}.")
        time.sleep(0.005)


def holds(condition: Callable[[], object]) -> bool:
    """Tell whether a condition is true now; an `OSError` means that it is not."""
    try:
        return bool(condition())
    except OSError:
        return False
