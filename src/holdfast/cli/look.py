"""`holdfast ls`, `show` and `release`: look at locks, and take one from its holder."""

import json
from dataclasses import asdict
from shlex import quote
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.say import Status, seconds, tell
from holdfast.client import Client
from holdfast.core.messages import HolderView, NameView, WaiterView
from holdfast.escaping import escape


def list_names(client: Client, *, as_json: bool) -> int:
    """Print all names that are held or waited for."""
    views = [view for name in client.names() if (view := client.inspect(name)).holders or view.waiters]
    if as_json:
        print_json([asdict(view) for view in views])
    elif views:
        Console().print(_names_table(views))
    else:
        print("Nothing is locked.")
    return Status.DONE


def show_name(client: Client, name: str, *, as_json: bool) -> int:
    """Print who holds a name, and who waits for it, in order."""
    view = client.inspect(name)
    if as_json:
        print_json(asdict(view))
        return Status.DONE
    console = Console()
    console.print(Text(_summary(view)))
    if view.holders:
        console.print(_holders_table(view.holders))
    if view.waiters:
        console.print(_waiters_table(view.waiters))
    return Status.DONE


def release_name(client: Client, name: str, *, force: bool) -> int:
    """Take a name from whoever holds it, and say from whom."""
    if not force:
        tell(
            f"{name!r} was not released: its holder does not know and may be writing just now. If it must be, use "
            "--force: its lease is lost at once, and only what checks fencing tokens will refuse its late writes. "
            f"`holdfast show {quote(name)}` tells who it is."
        )
        return Status.USAGE
    victims = client.revoke(name, force=True)
    for victim in victims:
        print(f"Took {escape(name)} from {escape(victim.owner)} (token {victim.token}).")
    if not victims:
        tell(f"nobody held {name!r}.")
    return Status.DONE if victims else Status.NOBODY


def print_json(value: Any) -> None:  # noqa: ANN401 - whatever JSON can say
    """Print JSON in ASCII, without a control character in it."""
    print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"))


def _names_table(views: list[NameView]) -> Table:
    table = _table("Name", "Holder")
    for heading in ("Token", "Held for", "Expires in", "Waiters"):
        table.add_column(heading, justify="right", no_wrap=True)
    for view in views:
        waiters = str(len(view.waiters))
        name = _text(view.name)
        for holder in view.holders:
            table.add_row(name, _text(holder.owner), *_facts(holder), waiters)
            name, waiters = Text(""), ""
        if not view.holders:
            table.add_row(name, Text("nobody", "dim"), "", "", "", waiters)
    return table


def _holders_table(holders: list[HolderView]) -> Table:
    table = _table("Holder")
    for heading in ("Token", "Held for", "Expires in"):
        table.add_column(heading, justify="right", no_wrap=True)
    for holder in holders:
        table.add_row(_text(holder.owner), *_facts(holder))
    return table


def _waiters_table(waiters: list[WaiterView]) -> Table:
    table = Table("", "Waiter", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Waited for", justify="right", no_wrap=True)
    for place, waiter in enumerate(waiters, 1):
        owner = _text(waiter.owner) + Text("" if waiter.alive else " (gone; will be skipped)", "dim")
        table.add_row(str(place), owner, seconds(waiter.waited_for))
    return table


def _facts(holder: HolderView) -> tuple[str, str, str]:
    return str(holder.token), seconds(holder.held_for), seconds(holder.expires_in)


def _summary(view: NameView) -> str:
    holders = " and ".join(escape(holder.owner) for holder in view.holders)
    state = f"is held by {holders}" if holders else "is free"
    if not holders and view.blocked_for:
        state = f"is kept from everyone for {seconds(view.blocked_for)} by a lock delay"
    waiting = f"; {len(view.waiters)} waiting" if view.waiters else ""
    return f"{escape(view.name)} {state}{waiting}."


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _text(text: str) -> Text:
    return Text(escape(text))
