"""The accounts of the stories in a terminal, and as JSON."""

import json
from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.account import Account, Chapter, Figure
from demo.timeline import chart, legend, meanings

WIDEST = 120
"""The greatest width of a line. Longer lines are hard to read, even in a wider terminal."""

WRONG_SHOWN = 10


def printable(text: str) -> str:
    """Return `text` on one line, with every character that is not printable as an escape sequence."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def to_json(accounts: Mapping[str, Account], files: list[Path], page: Path) -> str:
    """Return the figures of all stories as JSON without control characters."""
    found = {
        "exact": not any(account.wrong for account in accounts.values()),
        **{name: account.facts for name, account in accounts.items()},
        "files": list(map(str, files)),
        "page": str(page),
    }
    return json.dumps(found, indent=2).replace("\x7f", "\\u007f")


def verdict(account: Account) -> str:
    """Return whether every count of a story is right."""
    wrong = "; ".join(account.wrong[:WRONG_SHOWN])
    return f"WRONG under Tenure: {wrong}. Please report this." if wrong else account.exact


def print_account(console: Console, account: Account) -> None:
    """Print what happened in a story."""
    for chapter in account.chapters:
        if chapter.title:
            heading(console, chapter.seconds())
        for sentence in chapter.sentences:
            say(console, sentence)
        if chapter.tale:
            _print_tale(console, chapter, account.workers)
    if account.rows:
        heading(console, account.caption)
        console.print(_table(account))
    say(console, verdict(account), "bold red" if account.wrong else "bold green")


def _print_tale(console: Console, chapter: Chapter, workers: int) -> None:
    result, width, ascii_only = chapter.result, _width(console), console.options.ascii_only
    tale = Table.grid(padding=(0, 1))
    tale.add_column(justify="right", width=6, style="dim")
    tale.add_column()
    for at, line in chapter.tale:
        tale.add_row(f"{at - result.began:.1f} s", line)
    console.print(tale, width=width)
    console.print()
    console.print(chart(result, workers, width, ascii_only=ascii_only), no_wrap=True)
    console.print(legend(meanings(result, chapter.held), ascii_only=ascii_only), width=width)


def _table(account: Account) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_footer=bool(account.sums))
    sums = account.sums or [Figure("")] * len(account.headings)
    for name, total in zip(account.headings, sums, strict=True):
        table.add_column(name, _text(total), justify="left" if name is account.headings[0] else "right", no_wrap=True)
    for row in account.rows:
        table.add_row(*map(_text, row))
    return table


def _text(cell: Figure) -> Text:
    return Text(cell.text, "bold red" if cell.wrong else "")


def heading(console: Console, text: str) -> None:
    """Print a heading."""
    console.print()
    say(console, text, "bold")


def say(console: Console, text: str, style: str = "") -> None:
    """Print a paragraph."""
    console.print(Text(printable(text), style), width=_width(console))


def _width(console: Console) -> int:
    return min(console.width, WIDEST)
