"""In which form a command prints what it found: a table for a terminal, lines for a pipe, JSON if asked for.

*   A line for a pipe is one name, holder or waiter. Its fields stand between tabs, it has no heading and is never
    wrapped, and nothing is printed of nothing.
*   JSON has the fields that docs/cli.md lists, in ASCII. A field is never renamed or removed, but one may be added.

Every text that came from outside is escaped: a tab or the end of a line in a name is no tab and no end of a line here.
"""

import json
import sys
from collections.abc import Iterable
from textwrap import indent
from typing import Any

from holdfast.contracts.messages import HolderView, NameView, WaiterView
from holdfast.escaping import escape

Json = dict[str, Any]


def is_terminal() -> bool:
    """Tell whether a person reads what is printed."""
    return sys.stdout.isatty()


# -- a pipe --------------------------------------------------------------------------------------------------


def print_line(*fields: object) -> None:
    """Print fields between tabs, as one line, at once: the next one may take a request."""
    print(*(escape(str(each)) for each in fields), sep="\t", flush=True)


def join(values: Iterable[object]) -> str:
    """Return several values as one field."""
    return ", ".join(map(str, values))


def plain(duration: float) -> str:
    """Return a duration in seconds as a number."""
    return f"{duration:.1f}"


# -- JSON ----------------------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """Print JSON in ASCII, without a control character in it."""
    print(_json(value))


def print_json_list(values: Iterable[object]) -> None:
    """Print a JSON list as `print_json` does, each value when it comes."""
    before, end = "[\n", "[]"
    for value in values:
        print(before, indent(_json(value), "  "), sep="", end="", flush=True)
        before, end = ",\n", "\n]"
    print(end)


def _json(value: object) -> str:
    return json.dumps(value, indent=2).replace("\x7f", "\\u007f")


def name_json(view: NameView) -> Json:
    """Return what is known of a name."""
    return {
        **_fields(view, "name", "capacity", "last_token", "blocked_for", "quarantined_for"),
        "holders": [holder_json(holder) for holder in view.holders],
        "waiters": [waiter_json(waiter) for waiter in view.waiters],
    }


def holder_json(holder: HolderView) -> Json:
    """Return what is known of a holder."""
    return _fields(holder, "owner", "token", "weight", "held_for", "expires_in", "ttl", "value")


def waiter_json(waiter: WaiterView) -> Json:
    """Return what is known of a waiter."""
    return _fields(waiter, "owner", "weight", "waited_for", "alive")


def _fields(view: object, *names: str) -> Json:
    return {name: getattr(view, name) for name in names}
