"""Waits for conditions of a server.

The rule: no wait relies on a fixed sleep. Each polls its condition until a deadline.
"""

import time
from collections.abc import Callable

TEST_TIMEOUT = 30.0
"""How long to wait for a condition, in seconds. Only a failure uses it up."""


class ServerFailedError(Exception):
    """A server failed. The message contains the end of its log."""


def wait_until(condition: Callable[[], object], what: str, within: float = TEST_TIMEOUT) -> None:
    """Wait until `condition()` is true, for at most `within` seconds. An `OSError` means that it is not true.

    Raises `ServerFailedError`, whose message contains `what`, the condition.
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
