"""The timeline of a round as text: a row for each worker, time from left to right."""

from dataclasses import dataclass
from enum import IntEnum

from rich.text import Text

from demo.plan import DemoEvent, What
from demo.rounds import RoundResult


class Mark(IntEnum):
    """The content of a cell. A cell with several events shows the largest mark."""

    IDLE = 0
    HELD = 1
    FROZEN = 2
    SOLD = 3
    STOPPED = 4
    REFUSED = 5
    KILLED = 6


GLYPHS = {
    Mark.IDLE: ("·", ".", "dim"),
    Mark.HELD: ("█", "#", "green"),
    Mark.FROZEN: ("░", "=", "yellow"),
    Mark.SOLD: ("●", "o", "green"),
    Mark.STOPPED: ("S", "S", "bold yellow"),
    Mark.REFUSED: ("R", "R", "bold red"),
    Mark.KILLED: ("K", "K", "bold red"),
}
MEANINGS = {
    Mark.HELD: "holds the lock",
    Mark.SOLD: "sells a coupon",
    Mark.KILLED: "killed",
    Mark.STOPPED: "stopped",
    Mark.FROZEN: "frozen",
    Mark.REFUSED: "late write refused",
}
ENDS_HOLD = (What.RELEASED, What.KILLED, What.STOPPED)


@dataclass(slots=True)
class Span:
    """A period in one row. `start` and `end` are instants."""

    worker: int
    start: float
    end: float
    mark: Mark


def spans(events: list[DemoEvent], end: float) -> list[Span]:
    """Return the spans to draw for the events, in the order of time."""
    drawn: list[Span] = []
    since: dict[tuple[int, What], float] = {}
    for event in events:
        since[event.worker, event.what] = event.at
        if event.what in ENDS_HOLD and (granted := since.pop((event.worker, What.GRANTED), None)) is not None:
            drawn.append(Span(event.worker, granted, event.at, Mark.HELD))
        if event.what is What.CONTINUED:
            stopped = since.get((event.worker, What.STOPPED), end)
            drawn.append(Span(event.worker, stopped, event.at, Mark.FROZEN))
        if event.what.upper() in Mark.__members__:
            drawn.append(Span(event.worker, event.at, event.at, Mark[event.what.upper()]))
    return drawn


def chart(result: RoundResult, workers: int, width: int, *, ascii_only: bool) -> Text:
    """Return the chart, at most `width` wide."""
    label = len(f"worker {workers} ")
    cells = max(10, width - label)
    length = max(result.ended - result.began, 0.001)
    rows = [[Mark.IDLE] * cells for _ in range(workers)]
    for span in spans(result.events, result.ended):
        first, last = (_cell(instant - result.began, length, cells) for instant in (span.start, span.end))
        row = rows[span.worker]
        row[first : last + 1] = [max(mark, span.mark) for mark in row[first : last + 1]]
    text = Text()
    for number, row in enumerate(rows, 1):
        text.append(f"worker {number} ".ljust(label))
        for mark in row:
            _append(text, mark, ascii_only=ascii_only)
        text.append("\n")
    return text + _axis(length, cells, label)


def meanings(result: RoundResult, held: str) -> dict[Mark, str]:
    """Return what the marks of a round mean; `held` is what a worker does in a hold."""
    drawn = {span.mark for span in spans(result.events, result.ended)}
    return {mark: held if mark is Mark.HELD else meaning for mark, meaning in MEANINGS.items() if mark in drawn}


def legend(meaning: dict[Mark, str], *, ascii_only: bool) -> Text:
    """Return the legend of some marks."""
    text = Text()
    for mark, words in meaning.items():
        _append(text, mark, ascii_only=ascii_only)
        text.append(f" {words}", "dim")
        text.append("   ")
    text.rstrip()
    return text


def ticks(length: float, most: float) -> list[float]:
    """Return at most about `most` instants for the labels of an axis, in seconds."""
    step = next((step for step in (0.5, 1, 2, 5, 10, 20) if length / step <= most), 60)
    return [tick * step for tick in range(int(length / step) + 1)]


def _axis(length: float, cells: int, label: int) -> Text:
    line = [" "] * cells
    for tick in ticks(length, cells / 8):
        text, start = f"{tick:g}s", _cell(tick, length, cells)
        if start + len(text) <= cells:
            line[start : start + len(text)] = text
    return Text(" " * label + "".join(line).rstrip(), "dim")


def _cell(after: float, length: float, cells: int) -> int:
    return min(cells - 1, max(0, int(after / length * cells)))


def _append(text: Text, mark: Mark, *, ascii_only: bool) -> None:
    fine, plain, style = GLYPHS[mark]
    text.append(plain if ascii_only else fine, style)
