"""The formats of a command's output: a table for a terminal, lines for a pipe, JSON with --json.

*   A line for a pipe is one name, holder or waiter. Tabs separate its fields. It has no heading and is never
    wrapped. An empty result prints no line.
*   JSON is ASCII and has the fields that docs/cli.md lists. A field is never renamed or removed; fields may be added.

Every text from outside is escaped, so that a tab or a newline in a name cannot forge a field or a line.
"""

import json
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from textwrap import indent
from typing import Any

from tenure.contracts.messages import HolderView, NameView, WaiterView
from tenure.escaping import escape

Json = dict[str, Any]


def is_terminal() -> bool:
    """Tell whether the standard output is a terminal."""
    return sys.stdout.isatty()


def has_rich() -> bool:
    """Tell whether the package that draws tables is installed."""
    return find_spec("rich") is not None


def draws_tables() -> bool:
    """Tell whether a command prints tables for people: without rich, a terminal gets the lines of a pipe."""
    return is_terminal() and has_rich()


# -- a pipe --------------------------------------------------------------------------------------------------


def print_line(*fields: object) -> None:
    """Print one line of fields separated by tabs, and flush it, for the next line may need a request to the store."""
    print(*(escape(str(each)) for each in fields), sep="\t", flush=True)


def join(values: Iterable[object]) -> str:
    """Return several values as one field."""
    return ", ".join(map(str, values))


def plain(duration: float) -> str:
    """Return a duration in seconds as a number."""
    return f"{duration:.1f}"


# -- JSON ----------------------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """Print a value as JSON in ASCII, without control characters."""
    print(_json(value))


def print_json_list(values: Iterable[object]) -> None:
    """Print a JSON list as `print_json` does, and flush each value as soon as the iterable yields it."""
    before, end = "[\n", "[]"
    for value in values:
        print(before, indent(_json(value), "  "), sep="", end="", flush=True)
        before, end = ",\n", "\n]"
    print(end)


def _json(value: object) -> str:
    return json.dumps(value, indent=2).replace("\x7f", "\\u007f")


def name_json(view: NameView) -> Json:
    """Return the JSON of a name."""
    return {
        **_fields(view, "name", "capacity", "last_token", "blocked_for", "quarantined_for"),
        "holders": [holder_json(holder) for holder in view.holders],
        "waiters": [waiter_json(waiter) for waiter in view.waiters],
    }


def holder_json(holder: HolderView) -> Json:
    """Return the JSON of a holder."""
    return _fields(holder, "owner", "token", "weight", "held_for", "expires_in", "ttl", "value")


def waiter_json(waiter: WaiterView) -> Json:
    """Return the JSON of a waiter."""
    return _fields(waiter, "owner", "weight", "waited_for", "alive")


def _fields(view: object, *names: str) -> Json:
    return {name: getattr(view, name) for name in names}
