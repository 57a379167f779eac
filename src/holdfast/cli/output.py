"""In which form a command prints what it found: a table for a terminal, lines for a pipe, JSON if asked for.

*   A line for a pipe is one name, holder or waiter. Its fields stand between tabs, it has no heading and is never
    wrapped, and nothing is printed of nothing.
*   JSON has the fields that docs/cli.md lists, in ASCII. A field is never renamed or removed, but one may be added.

Every text that came from outside is escaped: a tab or the end of a line in a name is no tab and no end of a line here.
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.core.messages import HolderView, NameView, WaiterView
from holdfast.escaping import escape

Json = dict[str, Any]


def is_terminal() -> bool:
    """Tell whether a person reads what is printed."""
    return sys.stdout.isatty()


# -- a terminal ----------------------------------------------------------------------------------------------


def print_text(text: str) -> None:
    """Print escaped text, at a terminal in its width."""
    Console().print(Text(text))


def print_table(table: Table) -> None:
    """Print a table in the width of the terminal."""
    Console().print(table)


def table(*headings: str, numbers: Iterable[str] = ()) -> Table:
    """Return a table with columns of texts, which may be broken, and then of numbers, which are not."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for heading in numbers:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def cell(text: str) -> Text:
    """Return a text from outside for a table."""
    return Text(escape(text))


# -- a pipe --------------------------------------------------------------------------------------------------


def print_line(*fields: object) -> None:
    """Print fields between tabs, as one line."""
    print(*(escape(str(each)) for each in fields), sep="\t")


def join(values: Iterable[object]) -> str:
    """Return several values as one field."""
    return ", ".join(map(str, values))


def plain(duration: float) -> str:
    """Return a duration in seconds as a number."""
    return f"{duration:.1f}"


# -- JSON ----------------------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """Print JSON in ASCII, without a control character in it."""
    print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))


def name_json(view: NameView) -> Json:
    """Return what is known of a name."""
    return {
        **_fields(view, "name", "capacity", "last_token", "blocked_for"),
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
