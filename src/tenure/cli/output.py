"""What a command prints, and its exit statuses.

The output is a table for a terminal, lines for a pipe, JSON with --json:

*   A line for a pipe is one name, holder or waiter. Tabs separate its fields. It has no heading and is never
    wrapped. An empty result prints no line.
*   JSON is ASCII and has the fields that docs/cli.md lists. A field is never renamed or removed; fields may be added.

Messages go to the standard error. Every text from outside is escaped, so that a tab or a newline in a name cannot forge
a field or a line.
"""

import json
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from importlib.util import find_spec
from textwrap import indent
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tenure.contracts.limits import EVERYBODY
from tenure.contracts.messages import HolderView, NameView, WaiterView
from tenure.errors import LeaseLost
from tenure.escaping import escape

if TYPE_CHECKING:
    from datetime import datetime

    from tenure.core.session import Session
    from tenure.primitives.jobs import JobView

Json = dict[str, Any]
T = TypeVar("T")


class Status(IntEnum):
    """Exit statuses, those of sysexits.h where one fits."""

    DONE = 0
    NOBODY = 1
    """`release`: nobody held the name, or the lease of the handle has ended. `doctor`: an error or a warning."""
    NOT_SEEN = 2
    """`doctor`: no server could be looked at."""
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


# -- messages ------------------------------------------------------------------------------------------------


def tell(message: object) -> None:
    """Print one line on standard error. If its reader is gone, as a closed terminal, print nothing and go on."""
    try:
        print(f"tenure: {escape(str(message))}", file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open to the end, and not what the command inherits


def confirmed(warning: str, question: str) -> bool:
    """Ask for confirmation at a terminal, and return whether it was given; without a terminal it is not."""
    if not sys.stdin.isatty():
        return False
    for line in warning.splitlines():
        print(escape(line), file=sys.stderr)
    print(f"{escape(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def seconds(duration: float) -> str:
    """Return a duration for people to read."""
    if duration < 60:  # noqa: PLR2004 - a minute
        return f"{duration:.1f} s"
    minutes, rest = divmod(round(duration), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


class Teller(logging.Handler):
    """Prints what is logged, except the loss of a lease: the command itself reports it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message."""
        if not (isinstance(record.args, tuple) and any(isinstance(arg, LeaseLost) for arg in record.args)):
            tell(record.getMessage())


def tell_warnings() -> None:
    """Print the library's warnings in the format of this command's messages."""
    log = logging.getLogger("tenure")
    if not any(isinstance(handler, Teller) for handler in log.handlers):
        log.addHandler(Teller(logging.WARNING))
        log.propagate = False


# -- the output ----------------------------------------------------------------------------------------------


def is_terminal() -> bool:
    """Tell whether the standard output is a terminal."""
    return sys.stdout.isatty()


def has_rich() -> bool:
    """Tell whether the package that draws tables is installed."""
    return find_spec("rich") is not None


def draws_tables() -> bool:
    """Tell whether a command prints tables for people: without rich, a terminal gets the lines of a pipe."""
    return is_terminal() and has_rich()


def print_line(*fields: object) -> None:
    """Print one line of fields separated by tabs, and flush it, for the next line may need a request to the store."""
    print(*(escape(str(each)) for each in fields), sep="\t", flush=True)


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


def print_one(options: Namespace, value: object, sentence: str = "", *fields: object) -> None:
    """Print one thing: with --json its JSON, else a sentence for people, or fields for a pipe, if it has them."""
    if options.as_json:
        print_json(value)
    elif is_terminal():
        print(escape(sentence), end="\n" if sentence else "")
    elif fields:
        print_line(*fields)


def print_all(
    options: Namespace,
    entries: Sequence[T],
    to_json: Callable[[T], Json],
    to_fields: Callable[[T], Sequence[str]],
    draw: Callable[[Sequence[T]], None],
    *,
    nothing: str,
) -> None:
    """Print a list: as JSON, in lines for a pipe, or for people as a table; if it is empty, tell `nothing`."""
    if options.as_json:
        print_json(list(map(to_json, entries)))
    elif not draws_tables():
        for each in entries:
            print_line(*to_fields(each))
    elif entries:
        draw(entries)
    if not entries:
        tell(nothing)


def plain(duration: float | None) -> str:
    """Return a duration in seconds as a number; "" for None."""
    return "" if duration is None else f"{duration:.1f}"


def kind_of(view: NameView) -> str:
    """Return the kind of a name, as far as the store tells it: semaphore, rwlock, job, election, or else lock."""
    if view.capacity > 1:
        return "rwlock" if view.capacity == EVERYBODY else "semaphore"
    from tenure.primitives.why import JOB

    if view.name.startswith(JOB):
        return "job"
    return "election" if any(holder.value for holder in view.holders) else "lock"


def name_json(view: NameView) -> Json:
    """Return the JSON of a name."""
    return {
        "kind": kind_of(view),
        **fields_json(view, "name", "capacity", "last_token", "blocked_for", "quarantined_for", "quarantined_since"),
        "holders": [holder_json(holder) for holder in view.holders],
        "waiters": [waiter_json(waiter) for waiter in view.waiters],
    }


def holder_json(holder: HolderView) -> Json:
    """Return the JSON of a holder."""
    times = ("held_for", "expires_in", "ttl")
    return fields_json(holder, "owner", "token", "weight", *times, "value", "released", "reason", "detached")


def waiter_json(waiter: WaiterView) -> Json:
    """Return the JSON of a waiter."""
    return fields_json(waiter, "owner", "weight", "waited_for", "alive")


def fields_json(view: object, *names: str) -> Json:
    """Return some fields of a view as JSON."""
    return {name: getattr(view, name) for name in names}


# -- jobs, limits and stocks, for people ----------------------------------------------------------------------

BY_KEY = "by key"
"""What a view says instead of a window."""

ANY_RULE = (1, 1.0)
"""A rate and its seconds: a look at a limit, and a reset, do not depend on them."""


def job_row(view: "JobView") -> tuple[str, ...]:
    """Return the cells of a job in a table: as `job_fields`, with its state for people."""
    name, every, _, *rest = job_fields(view)
    return (name, every, story_of(view), *rest)


def job_fields(view: "JobView") -> tuple[str, ...]:
    """Return what a line of `jobs` shows.

    Name, window, state; of the present run, or else the last: its beginning, how long it goes on or took, by whom; next
    window, last error, how long a run usually takes.
    """
    last = view.runs[-1] if view.runs else None
    took = view.running_for if view.running else (None if last is None else last.took)
    return (
        view.name,
        view.every,
        state_of(view),
        _text(view.since if view.running or last is None else last.at),
        plain(took),
        view.running if view.running or last is None else last.by,
        _text(view.next),
        last.error if last else "",
        plain(view.usual),
    )


def story_of(view: "JobView") -> str:
    """Return the state of a job, for people."""
    if view.running_for is None:
        late = "" if view.overdue_for is None else f", overdue for {seconds(view.overdue_for)}"
        return state_of(view) + late
    usually = "" if view.usual is None else f", usually {seconds(view.usual)}"
    return f"{'paused, ' if view.paused else ''}running for {seconds(view.running_for)}{usually}"


def state_of(view: "JobView") -> str:
    """Return the state of a job in a word: new, running, done, failed or paused."""
    if view.paused:
        return "paused"
    if view.running:
        return "running"
    if view.every == BY_KEY and view.runs:  # each key has a record of its own; the job has their history
        return "failed" if view.runs[-1].error else "done"
    return "done" if view.done else "failed" if view.error else "new"


def _text(at: "datetime | None") -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


class StockView(NamedTuple):
    """What a stock has, as its segments show it one after another."""

    left: int
    reserved: int
    segments: int


async def read_stock(session: "Session", name: str) -> StockView | None:
    """Return what a stock has; None if there is no such stock. It makes none, unlike the objects that users make."""
    from tenure.contracts.cells import cell_name
    from tenure.table.stock import Segment, segments_of

    cells, prefix = session.cells, session.prefix
    states = [await cells.look(cell_name("stock-0", prefix, name))]
    count = segments_of(states[0][0])
    if not count:
        return None
    states += [await cells.look(cell_name(f"stock-{at}", prefix, name)) for at in range(1, count)]
    segments = [(Segment.read(state, count), now) for state, now in states if state is not None]
    left = sum(segment.available(now) for segment, now in segments)
    kept = sum(units for segment, now in segments for units, until in segment.reserved.values() if until > now)
    return StockView(left, kept, count)


def limit_text(busy_for: float) -> str:
    """Return the state of a limit, for people."""
    return f"busy: idle again in {seconds(busy_for)} if nobody comes" if busy_for else "idle, or not in use"


def stock_text(view: StockView | None) -> str:
    """Return the state of a stock, for people."""
    return "no such stock" if view is None else f"{view.left} left, {view.reserved} reserved"
