"""What is drawn for people: tables, in the width of a terminal, and the screens of `tenure top` and `--watch`.

Only this file imports rich, which need not be installed.

A screen is drawn from the last snapshot of a board, which looks at the store once a second at most. It changes nothing
in the store. Every text from outside is escaped, and put on the screen without markup.
"""

import asyncio
import codecs
import errno
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from logging import NullHandler, getLogger

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tenure.cli.board import MOST_NAMES, Board, Snapshot, is_silent, longest_wait, seen, troubles, wrong_with
from tenure.cli.child import known_signals
from tenure.cli.output import Status, job_row, kind_of, seconds
from tenure.client import AsyncClient
from tenure.contracts.messages import HolderView, NameView, WaiterView
from tenure.core.explaining import explain
from tenure.errors import UsageError
from tenure.escaping import escape
from tenure.primitives.jobs import JobView

REDRAW = 1.0
"""After how many seconds a screen is drawn again, so that it tells the age of what it shows."""

MOST_TROUBLES = 5
"""How many troubles stand above a list."""

MOST_TYPED = 100
"""How many characters of a filter or a command are taken."""

KEY = re.compile(r"\x1b\[[0-?]*[@-~]|\x1bO[A-~]|.", re.DOTALL)
"""One key, as terminals send it."""

ENTER, ESCAPE, ERASE = ("\r", "\n"), "\x1b", ("\x7f", "\b")
STEPS = {"k": -1, "j": 1, "g": -MOST_NAMES, "G": MOST_NAMES}
ARROWS = {"A": -1, "B": 1, "H": -MOST_NAMES, "F": MOST_NAMES, "5~": -10, "6~": 10}
MOVES = STEPS | {f"\x1b{mode}{key}": step for key, step in ARROWS.items() for mode in "[O"}
"""By how many rows a key moves the selection: arrows, k and j, page up and down, home and end, g and G."""

ENDING = known_signals("SIGINT", "SIGTERM", "SIGHUP")
"""The signals that end a screen."""

ROWS = 100
"""The greatest number of names in one table, so that a long list is printed in parts as it arrives."""

LEAST_TEXT = 12
"""The room that a column of texts gets, before columns are left out for it."""

BETWEEN = 3
"""The most characters between two columns."""

Row = list[Text]


@dataclass(slots=True, frozen=True)
class Column:
    """A column of a table."""

    heading: str
    leaves: int = 0
    """If there is no room, the column with the largest number is left out first; that of 0 stays."""
    number: bool = False


Number = partial(Column, number=True)
FACTS = (Number("Token", 5), Number("Held for", 4), Number("Expires in", 2))
NAMES = (Column("Name"), Column("Holder"), *FACTS, Number("Waiters", 1), Number("Kind", 3))
HOLDERS = (Column("Holder"), *FACTS)
WAITERS = (Number(""), Column("Waiter"), Number("Waited for", 1))
JOBS = (
    *(Column("Job"), Column("Window", 4), Column("State"), Number("Last run (UTC)", 2), Number("Took", 6)),
    *(Column("By", 5), Number("Next (UTC)", 3), Column("Error", 1), Number("Usual", 7)),
)
HISTORY = (
    *(Number("At (UTC)"), Number("What"), Number("Token", 2), Column("Owner", 1), Number("Waited", 5)),
    *(Number("Held", 4), Column("How", 3)),
)
USED = (
    *(Column("Name"), Column("Holder"), Number("Waiters", 1), Number("Longest wait", 4), Number("Held for", 5)),
    *(Number("Ends in", 2), Number("Kind", 3)),
)
ELECTIONS = (
    *(Column("Election"), Column("Leader"), Column("Publishes", 1), Number("Leads for", 4), Number("Candidates", 3)),
    Number("Token", 2),
)
QUEUE = (Number(""), Column("Who"), Number("For", 1), Number("Ends in", 2), Number("Token", 3))

# -- tables --------------------------------------------------------------------------------------------------


def print_names(views: Iterator[NameView]) -> bool:
    """Print tables of names, each as soon as its names have arrived; return whether there were any names."""
    console, any_name = Console(), False
    while some := list(islice(views, ROWS)):
        console.print(_names_table(some))
        any_name = True
    return any_name


def print_rows(columns: Sequence[Column], lines: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    Console().print(_table(columns, [list(map(cell, line)) for line in lines]))


def print_name(summary: str, view: NameView) -> None:
    """Print the summary of a name, and tables of its holders and its waiters."""
    console = Console()
    console.print(Text(summary))
    if view.holders:
        console.print(_table(HOLDERS, [[holder_cell(each), *_facts(each)] for each in view.holders]))
    if view.waiters:
        places = [Text(str(place)) for place in range(1, len(view.waiters) + 1)]
        waits = [[waiter_cell(each), Text(seconds(each.waited_for))] for each in view.waiters]
        console.print(_table(WAITERS, [[place, *wait] for place, wait in zip(places, waits, strict=True)]))


def _names_table(views: Sequence[NameView]) -> Table:
    rows: list[Row] = []
    for view in views:
        name, last = cell(view.name), [Text(str(len(view.waiters))), Text(kind_of(view))]
        for holder in view.holders:
            rows.append([name, cell(holder.owner), *_facts(holder), *last])
            name, last = Text(), [Text(), Text()]
        if not view.holders:
            rows.append([name, Text("nobody", "dim"), Text(), Text(), Text(), *last])
    return _table(NAMES, rows)


def _facts(holder: HolderView) -> Row:
    return [Text(str(holder.token)), Text(seconds(holder.held_for)), Text(seconds(holder.expires_in))]


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    return fitted(Table(box=box.SIMPLE_HEAD, pad_edge=False), columns, rows, Console().width)


def fitted(table: Table, columns: Sequence[Column], rows: Sequence[Row], width: int, *, cut: bool = False) -> Table:
    """Fill a table with the columns for which a terminal of this width has room.

    Numbers are never cut or wrapped; texts are wrapped, or cut if each row is to be one line. If there is no room for
    LEAST_TEXT characters of each text, or a fifth of the width, the columns with the largest `leaves` are left out.
    """
    naturals = [max(map(cell_len, [of.heading, *(row[at].plain for row in rows)])) for at, of in enumerate(columns)]
    enough = max(LEAST_TEXT, width // 5)
    least = [natural if of.number else min(natural, enough) for natural, of in zip(naturals, columns, strict=True)]
    kept = list(range(len(columns)))
    while sum(least[at] + BETWEEN for at in kept) > width and any(columns[at].leaves for at in kept):
        kept.remove(max(kept, key=lambda at: columns[at].leaves))
    texts = sorted((at for at in kept if not columns[at].number), key=naturals.__getitem__)
    room, widths = width - sum(naturals[at] for at in kept if columns[at].number) - BETWEEN * len(kept), naturals[:]
    for place, at in enumerate(texts):
        widths[at] = max(1, min(naturals[at], room // (len(texts) - place)))
        room -= widths[at]
    for at in kept:
        number = columns[at].number
        table.add_column(
            columns[at].heading,
            justify="right" if number else "left",
            width=widths[at],
            no_wrap=cut or number,
            overflow="ellipsis" if cut else "fold",
        )
    for row in rows:
        table.add_row(*(row[at] for at in kept))
    return table


def holder_cell(holder: HolderView) -> Text:
    """Return the owner with the reason, and whether only a handle has the lease."""
    reason = f": {escape(holder.reason)}" if holder.reason else ""
    return cell(holder.owner) + Text(reason) + Text(" (detached: has a handle)" if holder.detached else "", "dim")


def waiter_cell(waiter: WaiterView) -> Text:
    """Return the owner of a waiter, and whether it will be skipped."""
    return cell(waiter.owner) + Text("" if waiter.alive else " (gone; will be skipped)", "dim")


def cell(text: str) -> Text:
    """Return a text from outside as a cell of a table, escaped."""
    return Text(escape(text))


# -- the screen ----------------------------------------------------------------------------------------------

Keyed = tuple[str, partial[Row]]
"""What a row is about, and what makes its cells: a list may be long, and few of its rows are seen."""


class Screen:
    """What is shown, and what is selected there."""

    def __init__(self, page: str, name: str = "", *, fixed: bool = False) -> None:
        """Begin on a page: names, jobs, elections, or name; of a `fixed` screen it stays the only one."""
        self.ended = False
        self._page, self._name, self._fixed = page, name, fixed
        self._back = page
        self._filter = ""
        self._typed: str | None = None
        """A filter or a command that is being typed, from its / or : on."""
        self._note = ""
        self._chosen: str = ""
        """What the selected row is about: rows move."""
        self._at = 0
        """Where it was."""
        self._keys: list[str] = []
        """What the rows are about that were drawn last."""

    # -- keys ----------------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        """Do what a key asks for."""
        self._note = ""
        if self._typed is not None:
            self._type(key)
        elif key in MOVES:
            self._at = max(0, min(len(self._keys) - 1, self._at + MOVES[key]))
            self._chosen = self._keys[self._at] if self._keys else ""
        elif key == "q":
            self.ended = True
        elif self._fixed:
            return
        elif key == ":" or (key == "/" and self._page != "name"):
            self._typed = key
        elif key in ENTER and self._page in ("names", "elections") and self._chosen in self._keys:
            self._back = self._page
            self._go("name", self._chosen)
        elif key == ESCAPE and self._page == "name":
            chosen = self._name
            self._go(self._back)
            self._chosen = chosen
        elif key == ESCAPE:
            self._filter = ""

    def _go(self, page: str, name: str = "") -> None:
        self._page, self._name = page, name
        self._chosen = ""
        self._at = 0

    def _type(self, key: str) -> None:
        typed = self._typed or ":"
        if key in ENTER and typed[0] == ":":
            self._run(typed[1:].strip())
        if key in ENTER or key == ESCAPE:
            self._typed = None
        elif key in ERASE:
            self._typed = typed[:-1] or None
        elif key.isprintable() and len(typed) < MOST_TYPED:
            self._typed = typed + key
        if typed[0] == "/" and key not in ENTER:
            self._filter = (self._typed or "")[1:]

    def _run(self, word: str) -> None:
        if word in PAGES:
            self._filter = ""
            self._go(word)
        elif word in ("q", "quit"):
            self.ended = True
        elif word:
            self._note = f"There is no :{word}. There are :{', :'.join(PAGES)} and :q."

    # -- what is drawn -------------------------------------------------------------------------------------

    def draw(self, board: Board, console: Console) -> Group:
        """Return what the screen shows now, in the size of the terminal."""
        if self._page == "name":
            board.include("name", self._name)
        snapshot = board.snapshot
        columns, rows = self._list(snapshot)
        lines = [self._head(board, len(rows)), self._prompt(), *self._above(board, console)]
        if self._filter and self._page != "name":
            rows = [row for row in rows if self._filter.lower() in row[0].lower()]
        self._keys = [key for key, _ in rows]
        if self._chosen in self._keys:
            self._at = self._keys.index(self._chosen)
        self._at = max(0, min(len(rows) - 1, self._at))
        self._chosen = self._keys[self._at] if rows else ""
        room = max(1, console.height - len(lines) - 1)
        first = max(0, min(self._at - room // 2, len(rows) - room))
        visible = rows[first : first + room]
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
        fitted(table, columns, [row() for _, row in visible], console.width, cut=True)
        if visible:
            table.rows[self._at - first].style = "reverse"
        return Group(*lines, table if visible else Text(self._nothing(board), "dim"))

    def _head(self, board: Board, count: int) -> Text:
        """Return what the page is of, and if the store was seen, how many there are."""
        if self._page == "name":
            return _line(cell(self._name), "bold")
        snapshot = board.snapshot
        many = f": {'more than ' if snapshot.more else ''}{count}" if snapshot.seen else ""
        waiting = sum(len(view.waiters) for view in snapshot.used()) if self._page == "names" else 0
        waiters = f", waiters: {waiting}" if waiting else ""
        return _line(cell(f"{self._page}{many}{waiters} ({board.client.namespace or board.title})"), "bold")

    def _prompt(self) -> Text:
        if self._typed is not None:
            return _line(cell(self._typed) + Text("_"))
        if self._note:
            return _line(cell(self._note), "yellow")
        if self._fixed:
            return _line(Text("q quits, j k move"), "dim")
        filtered = f"/{self._filter} (esc ends it)  " if self._filter and self._page != "name" else ""
        keys = "q quits, j k move, " + ("esc goes back" if self._page == "name" else "enter opens, / filters")
        keys += f", :{' :'.join(PAGES)}"
        return _line(cell(filtered) + Text(keys), "dim")

    def _above(self, board: Board, console: Console) -> Iterable[Text]:
        """Yield what stands above the list: what is wrong, and of one name why it is not granted."""
        snapshot = board.snapshot
        if not snapshot.seen and not snapshot.error:
            yield _line(cell(seen(snapshot)), "dim")
        wrong = list(troubles(snapshot))
        if self._page == "name":
            wrong = [each for each in wrong if each.page == "store"]
        for each in wrong[:MOST_TROUBLES]:
            text = f"{each.name}: {each.text}" if each.name else each.text
            yield from _wrapped(text, console, "red") if each.page == "store" else [_line(cell(text), "red")]
        if len(wrong) > MOST_TROUBLES:
            yield _line(Text(f"... and {len(wrong) - MOST_TROUBLES} more that is wrong"), "red")
        view = snapshot.views.get(self._name)
        if self._page == "name" and view is not None:
            for reason in explain(view, board.capabilities).reasons:
                yield from _wrapped(f"{reason.text}.", console)

    def _list(self, snapshot: Snapshot) -> tuple[Sequence[Column], list[Keyed]]:
        if self._page != "name":
            columns, rows = PAGES[self._page]
            return columns, rows(snapshot)
        view = snapshot.views.get(self._name)
        return QUEUE, [] if view is None else _queue(view)

    def _nothing(self, board: Board) -> str:
        if not board.snapshot.seen:
            return ""
        if self._filter and self._page != "name":
            return f"None of the {self._page} has this in its name."
        if self._page == "name":
            return "" if self._name in board.snapshot.views else "This name was not looked at yet."
        able = board.capabilities.cells if self._page == "jobs" else board.capabilities.records
        if not able:
            return f"This store keeps no list of {self._page}."
        return {"names": "No name is held.", "jobs": "No job has run."}.get(
            self._page, "No leader publishes a value. One without a value looks like the holder of a lock."
        )


def _line(text: Text, style: str = "") -> Text:
    """Return a text that takes one line of the screen: what does not fit is cut."""
    text.no_wrap, text.overflow = True, "ellipsis"
    text.stylize(style)
    return text


def _wrapped(text: str, console: Console, style: str = "") -> list[Text]:
    """Return a text in as many lines as it needs."""
    return [_line(line, style) for line in cell(text).wrap(console, console.width)]


# -- rows ----------------------------------------------------------------------------------------------------


def _names(snapshot: Snapshot) -> list[Keyed]:
    """Return the names in use, those with most waiters first."""
    used = sorted(snapshot.used(), key=lambda view: (-len(view.waiters), view.name))
    return [(view.name, partial(_name_row, view)) for view in used]


def _name_row(view: NameView) -> Row:
    first = min(view.holders, key=lambda each: each.expires_in, default=None)
    rest = f" and {len(view.holders) - 1} more" if len(view.holders) > 1 else ""
    return [
        cell(view.name),
        Text("nobody", "dim") if first is None else cell(view.holders[0].owner) + Text(rest),
        Text(str(len(view.waiters))),
        Text(seconds(longest_wait(view)) if view.waiters else ""),
        Text(seconds(max(each.held_for for each in view.holders)) if first else ""),
        Text("") if first is None else _ends(first),
        Text(kind_of(view)),
    ]


def _ends(holder: HolderView) -> Text:
    return Text(seconds(holder.expires_in), "red" if is_silent(holder) else "")


def _jobs(snapshot: Snapshot) -> list[Keyed]:
    return [(view.name, partial(_job_row, view)) for view in snapshot.jobs]


def _job_row(view: JobView) -> Row:
    row = list(map(cell, job_row(view)))
    row[2].stylize("red" if wrong_with(view) else "")
    return row


def _elections(snapshot: Snapshot) -> list[Keyed]:
    """Return the names whose holders publish values."""
    led = [view for view in snapshot.used() if any(holder.value for holder in view.holders[:1])]
    return [(view.name, partial(_election_row, view)) for view in led]


def _election_row(view: NameView) -> Row:
    leader = view.holders[0]
    return [
        cell(view.name),
        cell(leader.owner),
        cell(leader.value),
        Text(seconds(leader.held_for)),
        Text(str(len(view.waiters))),
        Text(str(leader.token)),
    ]


def _queue(view: NameView) -> list[Keyed]:
    """Return the holders of a name, and then its waiters in their order."""
    holders = [(f"holder {place}", partial(_holder_row, each)) for place, each in enumerate(view.holders)]
    return holders + [(f"waiter {at}", partial(_waiter_row, at, each)) for at, each in enumerate(view.waiters, 1)]


def _holder_row(holder: HolderView) -> Row:
    token = Text(str(holder.token))
    return [Text("held by"), holder_cell(holder), Text(seconds(holder.held_for)), _ends(holder), token]


def _waiter_row(place: int, waiter: WaiterView) -> Row:
    return [Text(str(place)), waiter_cell(waiter), Text(seconds(waiter.waited_for)), Text(), Text()]


PAGES: dict[str, tuple[Sequence[Column], Callable[[Snapshot], list[Keyed]]]] = {
    "names": (USED, _names),
    "jobs": (JOBS, _jobs),
    "elections": (ELECTIONS, _elections),
}


# -- the terminal --------------------------------------------------------------------------------------------


def show_screen(
    made: Callable[[], AsyncClient], screen: Screen, *, pattern: str | None = None, name: str | None = None
) -> int:
    """Show a screen until a key or a signal ends it; return the status. The terminal is then as it was before.

    Raises UsageError if there is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or Console().is_dumb_terminal:
        raise UsageError("there is no terminal to draw on. In a script, repeat `tenure ls` or `tenure show NAME`.")
    getLogger("tenure").addHandler(NullHandler())  # the screen tells what is wrong

    async def run() -> int:
        async with made() as client:
            return await _follow(Board(client, pattern=pattern, name=name), screen)

    try:
        return asyncio.run(run())
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise BrokenPipeError from error  # the terminal is gone, as a pipe whose reader has left


async def _follow(board: Board, screen: Screen) -> int:
    """Draw a screen after each look, each key, and each second."""
    changed = asyncio.Event()
    looking = asyncio.create_task(_look(board, changed))
    looking.add_done_callback(lambda _: changed.set())
    try:
        with _signals(changed) as ended_by, _keys(screen, changed), Live(screen=True, auto_refresh=False) as live:
            while not (screen.ended or ended_by):
                live.update(screen.draw(board, live.console), refresh=True)
                if looking.done():
                    looking.result()
                with suppress(TimeoutError):
                    async with asyncio.timeout(REDRAW):
                        await changed.wait()
                changed.clear()
    finally:
        board.close()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    return Status.SIGNALLED + ended_by[0] if ended_by else Status.DONE


async def _look(board: Board, changed: asyncio.Event) -> None:
    async for _ in board.looks(float("inf")):
        changed.set()


@contextmanager
def _signals(changed: asyncio.Event) -> Generator[list[int]]:
    """Collect the signals that end a screen, and draw anew when the terminal has another size.

    ^Z does nothing: it would leave the terminal as it is.
    """
    loop, ended_by = asyncio.get_running_loop(), list[int]()

    def end(number: int) -> None:
        ended_by.append(number)
        changed.set()

    taken: dict[int, Callable[[], None]] = {number: partial(end, number) for number in ENDING}
    taken.update((number, changed.set) for number in known_signals("SIGWINCH", "SIGTSTP"))
    for number, handler in taken.items():
        loop.add_signal_handler(number, handler)
    try:
        yield ended_by
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


@contextmanager
def _keys(screen: Screen, changed: asyncio.Event) -> Generator[None]:
    """Read the keys one by one, without echo, and give them to the screen; a terminal that is gone ends it."""
    import termios
    import tty

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def read() -> None:
        try:
            got = os.read(keyboard, 1024)
        except OSError:
            got = b""
        if not got:
            screen.ended = True
        for key in KEY.findall(decoder.decode(got)):
            screen.press(key)
        changed.set()

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        with suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)
