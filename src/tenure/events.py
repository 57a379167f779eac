"""The events of a client as log records, one line each, for any log system.

client = Client(url, on_event=json_lines(logging.getLogger("locks")))
"""

import json
import logging
from collections.abc import Callable

from tenure.core.events import EventKind, LockEvent

__all__ = ["json_lines"]

WARNINGS = frozenset(
    {
        EventKind.AT_RISK,
        EventKind.DROPPED,
        EventKind.LOST,
        EventKind.QUARANTINE_BEGUN,
        EventKind.RENEWAL_LATE,
        EventKind.STORE_ERROR,
        EventKind.STORE_UNREACHABLE,
    }
)
"""The events that are logged as warnings. Renewals are logged for debugging, all others as information."""


def json_lines(logger: logging.Logger | None = None) -> Callable[[LockEvent], None]:
    """Return a listener that logs each event as one line of JSON, to `logger` (default: that named tenure.events).

    The line has the fields of `LockEvent` that are known. It is ASCII without control characters, whatever names,
    owners and errors contain, and has no password of a URL. The record also has each field as an attribute with the
    prefix `tenure_`, as by `extra=`, for formatters and log systems that take attributes.
    """
    target = logging.getLogger("tenure.events") if logger is None else logger

    def listen(event: LockEvent) -> None:
        level = logging.WARNING if event.event in WARNINGS else logging.INFO
        if event.event is EventKind.RENEWED:
            level = logging.DEBUG
        if target.isEnabledFor(level):
            known = event.fields()
            extra = {f"tenure_{name}": value for name, value in known.items()}
            target.log(level, "%s", json.dumps(known), extra=extra)

    return listen
