"""The messages of the command on standard error, and its exit statuses.

The rule: every text from outside is escaped before it is printed.
"""

import logging
import sys
from enum import IntEnum

from tenure.errors import LeaseLost
from tenure.escaping import escape


class Status(IntEnum):
    """Exit statuses, those of sysexits.h where one fits."""

    DONE = 0
    NOBODY = 1
    """`release`: nobody held the name."""
    USAGE = 64
    STORE = 69
    """The store failed."""
    JOB_FAILED = 70
    """`once`: the job has failed, and has no attempt left."""
    NOT_GRANTED = 75
    """The lock was not granted within --timeout, or not at once with --no-wait. A later attempt may succeed."""
    LEASE_LOST = 76
    """The lease was lost while the command ran; the command was ended."""
    CANNOT_RUN = 126
    NOT_FOUND = 127
    SIGNALLED = 128
    """Add the number of the signal that ended the command or the wait for the lock."""


def tell(message: object) -> None:
    """Print one line on standard error."""
    print(f"tenure: {escape(str(message))}", file=sys.stderr, flush=True)


def seconds(duration: float) -> str:
    """Return a duration for people to read."""
    if duration < 60:  # noqa: PLR2004 - a minute
        return f"{duration:.1f} s"
    minutes, rest = divmod(round(duration), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


class _WarningHandler(logging.Handler):
    """Prints the library's warnings, except the loss of a lease: the command itself reports it."""

    def emit(self, record: logging.LogRecord) -> None:
        if not (isinstance(record.args, tuple) and any(isinstance(arg, LeaseLost) for arg in record.args)):
            tell(record.getMessage())


def tell_warnings() -> None:
    """Print the library's warnings in the format of this command's messages."""
    log = logging.getLogger("tenure")
    if not any(isinstance(handler, _WarningHandler) for handler in log.handlers):
        log.addHandler(_WarningHandler(logging.WARNING))
        log.propagate = False
