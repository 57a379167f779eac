"""What needs a POSIX system, as Linux and macOS are, and what says so elsewhere.

The server stores and `memory://` run on any system that has Python. Lock files, Unix sockets, the command's job control
and the demo need signals, file locks and sockets that Windows does not have.
"""

import os

from tenure.errors import UsageError

POSIX = hasattr(os, "fork")
"""Whether this system has processes that fork, and all that comes with them."""


def require_posix(what: str, instead: str) -> None:
    """Raise UsageError if this is no POSIX system. `what` needs one; `instead` is what to do here."""
    if not POSIX:
        raise UsageError(f"{what} needs a POSIX system such as Linux or macOS, which this is not: {instead}.")
