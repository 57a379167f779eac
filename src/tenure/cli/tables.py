"""Tables for a terminal, in its width. Only this file imports rich, which need not be installed."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenure.cli.diagnostics import seconds
from tenure.contracts.messages import HolderView, NameView, WaiterView
from tenure.escaping import escape

ROWS = 100
"""The greatest number of names in one table, so that a long list is printed in parts as it arrives."""

FACTS = ("Token", "Held for", "Expires in")


def print_names(views: Iterator[NameView]) -> bool:
    """Print tables of names, each as soon as its names have arrived; return whether there were any names."""
    console, any_name = Console(), False
    while some := list(islice(views, ROWS)):
        console.print(_names_table(some))
        any_name = True
    return any_name


def print_jobs(lines: Sequence[Sequence[str]]) -> None:
    """Print a table of jobs."""
    table = _table("Job", "Window", "State", "Last run (UTC)", "Took", "By", "Next (UTC)", "Error")
    for line in lines:
        table.add_row(*map(_cell, line))
    Console().print(table)


def print_name(summary: str, view: NameView) -> None:
    """Print the summary of a name, and tables of its holders and its waiters."""
    console = Console()
    console.print(Text(summary))
    if view.holders:
        console.print(_holders_table(view.holders))
    if view.waiters:
        console.print(_waiters_table(view.waiters))


def _names_table(views: Sequence[NameView]) -> Table:
    table = _table("Name", "Holder", numbers=(*FACTS, "Waiters"))
    for view in views:
        waiters = str(len(view.waiters))
        name = _cell(view.name)
        for holder in view.holders:
            table.add_row(name, _cell(holder.owner), *_facts(holder), waiters)
            name, waiters = Text(""), ""
        if not view.holders:
            table.add_row(name, Text("nobody", "dim"), "", "", "", waiters)
    return table


def _holders_table(holders: Sequence[HolderView]) -> Table:
    table = _table("Holder", numbers=FACTS)
    for holder in holders:
        table.add_row(_cell(holder.owner), *_facts(holder))
    return table


def _waiters_table(waiters: Sequence[WaiterView]) -> Table:
    table = _table("", "Waiter", numbers=("Waited for",))
    for place, waiter in enumerate(waiters, 1):
        owner = _cell(waiter.owner) + Text("" if waiter.alive else " (gone; will be skipped)", "dim")
        table.add_row(str(place), owner, seconds(waiter.waited_for))
    return table


def _facts(holder: HolderView) -> tuple[str, str, str]:
    return str(holder.token), seconds(holder.held_for), seconds(holder.expires_in)


def _table(*headings: str, numbers: Iterable[str] = ()) -> Table:
    """Return a table with columns of text, which may wrap, followed by columns of numbers, which never wrap."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for heading in numbers:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def _cell(text: str) -> Text:
    """Return a text from outside as a cell of a table, escaped."""
    return Text(escape(text))
