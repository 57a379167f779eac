"""The findings of the demo, as text for a terminal and as JSON."""

import json
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.plan import DemoEvent, What
from demo.rounds import Story
from demo.tally import Day, Tally, wrong_counts
from demo.timeline import chart, legend

WIDEST = 120
"""The greatest width of a line. Longer lines are hard to read, even in a wider terminal."""

WRONG_SHOWN = 10


def printable(text: str) -> str:
    """Return `text` on one line, with every character that is not printable as an escape sequence."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


@dataclass(slots=True)
class Findings:
    """The findings of the demo."""

    log: str
    workers: int
    batches: int
    truth: Tally
    unlocked: Story
    locked: Story

    def wrong(self) -> list[str]:
        """Return what is wrong with the counts under the lock."""
        return wrong_counts(self.truth, self.locked.tally)

    def lines(self) -> int:
        """Return the number of lines of the log."""
        return self.truth.hits() + self.truth.malformed

    def lost_updates(self) -> int:
        """Return how many updates of the round without the lock are missing in the record."""
        return self.batches - len(self.unlocked.tally.batches)

    def refused(self) -> bool:
        """Tell whether a stopped worker's late write was refused."""
        stopped = {event.token for event in self.locked.all_of(What.STOPPED)}
        return any(event.token in stopped for event in self.locked.all_of(What.REFUSED))


def to_json(findings: Findings, files: list[Path]) -> str:
    """Return the findings as JSON without control characters."""
    truth, unlocked, locked = findings.truth, findings.unlocked, findings.locked
    wrong = findings.wrong()
    found = {
        "log": findings.log,
        "lines": findings.lines(),
        "malformed": truth.malformed,
        "batches": findings.batches,
        "workers": findings.workers,
        "exact": not wrong,
        "wrong": wrong,
        "lost_updates_without_lock": findings.lost_updates(),
        "lost_hits_without_lock": truth.hits() - unlocked.tally.hits(),
        "killed": [event.worker + 1 for event in locked.all_of(What.KILLED)],
        "stopped": [event.worker + 1 for event in locked.all_of(What.STOPPED)],
        "late_write_refused": findings.refused(),
        "seconds_without_lock": round(unlocked.ended - unlocked.began, 3),
        "seconds_with_lock": round(locked.ended - locked.began, 3),
        "days": {
            name: {
                "truth": day.summary(),
                "without_lock": unlocked.tally.days.get(name, Day()).summary(),
                "with_lock": locked.tally.days.get(name, Day()).summary(),
            }
            for name, day in sorted(truth.days.items())
        },
        "files": [str(path) for path in files],
    }
    return json.dumps(found, indent=2).replace("\x7f", "\\u007f")


def introduce(console: Console, log: str, workers: int, truth: Tally, batches: int) -> None:
    """Print what the demo is about to do."""
    hits, bad = truth.hits(), truth.malformed
    _say(
        console,
        f"{workers} processes count {printable(log)} into one shared record: {hits + bad:,} lines, {len(truth.days)} "
        f"days, {batches} batches. For each batch, a process reads the record, adds the batch, and writes it back.",
    )
    if bad:
        _say(console, f"{bad:,} malformed line{'s are' if bad > 1 else ' is'} counted as such, and otherwise ignored.")


def print_findings(console: Console, findings: Findings) -> None:
    """Print the events of both rounds, and compare their counts."""
    if not findings.batches:
        _say(console, "The log is empty: there is nothing to count.")
        return
    _tell_unlocked(console, findings)
    _tell_locked(console, findings)
    _heading(console, "What each round counted")
    console.print(_table(findings))


def print_verdict(console: Console, findings: Findings, files: list[Path]) -> None:
    """Print whether every count is right, and where the files are."""
    wrong = findings.wrong()
    if wrong:
        _say(console, f"WRONG under the lock: {'; '.join(wrong[:WRONG_SHOWN])}. Please report this.", "bold red")
        return
    exact = "Exact under the lock: hits, bytes, status classes and distinct visitors of every day, and malformed lines."
    _say(console, exact, "bold green")
    if files:
        console.print(
            f"{len(files)} files, one a day, are in {printable(str(files[0].parent))}", soft_wrap=True, markup=False
        )


def _tell_unlocked(console: Console, findings: Findings) -> None:
    story, lost = findings.unlocked, findings.lost_updates()
    _heading(console, f"1. Without a lock ({story.ended - story.began:.1f} s)")
    if lost:
        _say(
            console,
            f"{findings.batches} updates were written, and {lost} of them are lost: several processes read the same "
            "record, and the last one to write overwrote the updates of the others.",
        )
    else:
        _say(console, "By luck, no update was lost this time. Try more workers or a longer log.")


def _tell_locked(console: Console, findings: Findings) -> None:
    story = findings.locked
    _heading(console, f"2. Under the lock ({story.ended - story.began:.1f} s)")
    tale = Table.grid(padding=(0, 1))
    tale.add_column(justify="right", width=6, style="dim")
    tale.add_column()
    for at, line in _tale(story):
        tale.add_row(f"{at - story.began:.1f} s", line)
    console.print(tale, width=_width(console))
    console.print()
    ascii_only = console.options.ascii_only
    console.print(chart(story, findings.workers, _width(console), ascii_only=ascii_only), no_wrap=True)
    console.print(legend(ascii_only=ascii_only), width=_width(console))


def _tale(story: Story) -> list[tuple[float, str]]:
    """Return the faults that the demo caused and their consequences, each with its instant."""
    tale: list[tuple[float, str]] = []
    for event in story.all_of(What.KILLED):
        tale.append((event.at, f"Worker {event.worker + 1} is killed in the middle of its update."))
        tale += _successor(story, event.token, "It never releases the lock, but its lease expires after a second")
        tale += _batch_done(story, event)
    for event in story.all_of(What.STOPPED):
        tale.append((event.at, f"Worker {event.worker + 1} is stopped (SIGSTOP) just before it writes its update."))
        tale += _successor(story, event.token, "Its lease expires as well")
    for event in story.all_of(What.REFUSED):
        told = f"Worker {event.worker + 1} continues, still believes that it holds the lock, and writes. The record"
        tale.append(
            (event.at, f"{told} refuses its token {event.token}, for it has seen a larger one. The worker starts over.")
        )
    return sorted(tale)


def _successor(story: Story, token: int, why: str) -> list[tuple[float, str]]:
    """Return the next grant of the lock after `token`, with the reason `why` it was possible."""
    later = [event for event in story.all_of(What.GRANTED) if event.token > token]
    if not later:
        return []
    first = min(later, key=lambda event: event.token)
    return [(first.at, f"{why}: worker {first.worker + 1} is granted the lock, with token {first.token}.")]


def _batch_done(story: Story, killed: DemoEvent) -> list[tuple[float, str]]:
    """Return when another worker counted the batch of the killed worker."""
    done = [event for event in story.all_of(What.WROTE) if event.batch == killed.batch]
    told = "counts the batch of worker {}, which is missing in the record."
    return [(event.at, f"Worker {event.worker + 1} {told.format(killed.worker + 1)}") for event in done]


def _table(findings: Findings) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_footer=True)
    truth, unlocked, locked = findings.truth, findings.unlocked.tally, findings.locked.tally
    table.add_column("\nday", "all", no_wrap=True)
    sums = (truth.hits(), unlocked.hits(), locked.hits())
    for heading, total in zip(("hits\nin truth", "\nno lock", "\nunder lock"), sums, strict=True):
        table.add_column(heading, _count(total, truth.hits()), justify="right", no_wrap=True)
    for heading in ("visitors\nin truth", "\nno lock", "\nunder lock"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in sorted(truth.days.keys() | unlocked.days.keys() | locked.days.keys()):
        days = [tally.days.get(name, Day()) for tally in (truth, unlocked, locked)]
        hits = [_count(day.hits, days[0].hits) for day in days]
        table.add_row(name, *hits, *(_count(len(day.visitors), len(days[0].visitors)) for day in days))
    return table


def _count(count: int, right: int) -> Text:
    return Text(f"{count:,}", "" if count == right else "bold red")


def _heading(console: Console, text: str) -> None:
    console.print()
    _say(console, text, "bold")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style), width=_width(console))


def _width(console: Console) -> int:
    return min(console.width, WIDEST)
