"""What the command prints, and the statuses it exits with.

Every text that came from outside is escaped before it is printed.
"""

import logging
import sys
from enum import IntEnum

from holdfast.errors import LeaseLost
from holdfast.escaping import escape


class Status(IntEnum):
    """Exit statuses, after sysexits.h where it has one that fits."""

    DONE = 0
    NOBODY = 1
    """`release`: nobody held the name."""
    USAGE = 64
    STORE = 69
    """The store did not do what was asked."""
    NOT_GRANTED = 75
    """The lock was not granted within --timeout, or not at once with --no-wait. Worth trying again later."""
    LEASE_LOST = 76
    """The lease was lost while the command ran; the command was ended."""
    CANNOT_RUN = 126
    NOT_FOUND = 127
    SIGNALLED = 128
    """Plus the number of the signal that ended the command, or the wait for the lock."""


def tell(message: object) -> None:
    """Print one line on standard error."""
    print(f"holdfast: {escape(str(message))}", file=sys.stderr, flush=True)


def seconds(duration: float) -> str:
    """Return a duration for people to read."""
    if duration < 60:  # noqa: PLR2004 - a minute
        return f"{duration:.1f} s"
    minutes, rest = divmod(round(duration), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


class _Teller(logging.Handler):
    """Tells the library's warnings, but not the loss of a lease: the command tells that itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not (isinstance(record.args, tuple) and any(isinstance(arg, LeaseLost) for arg in record.args)):
            tell(record.getMessage())


def tell_warnings() -> None:
    """Have the library's warnings told as this command tells things."""
    log = logging.getLogger("holdfast")
    if not any(isinstance(handler, _Teller) for handler in log.handlers):
        log.addHandler(_Teller(logging.WARNING))
        log.propagate = False
