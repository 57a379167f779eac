"""The harness: it measures contenders in turns, computes ratios within rounds, compares bounds, and lays out tables."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

R = TypeVar("R")

Round = Mapping[str, Any]
"""The figures of one contender in one round: numbers, and lists of durations (`waits`)."""


@dataclass(slots=True, frozen=True)
class Size:
    """The durations (in seconds) and sizes of a run."""

    rounds: int = 3
    """The number of rounds, in which all contenders are measured in turns."""
    pair_rounds: int = 60
    """The number of rounds of pairs: many, because they are short and their ratios have bounds."""
    pairs: int = 20
    passes: int = 40
    threads: int = 32
    tasks: int = 256
    processes: int = 8
    seconds: float = 1.5
    """One timed period of one contender."""
    kills: int = 9
    ttl: float = 1.0
    hot: Sequence[int] = (2, 8, 32)
    """The numbers of processes that contend for one hot lock."""
    hot_rounds: int = 3
    window: float = 3.0
    """How long these processes contend."""
    leases: int = 100_000
    """The number of leases that one client renews."""
    leases_ttl: float = 30.0
    tasks_waiting: int = 2000
    threads_waiting: int = 200
    queue: int = 50
    """The number of clients that wait in one queue."""
    drains: int = 9
    """How often the whole queue is granted."""
    waiters: Sequence[int] = (10, 600)
    """The lengths of the queues in which a step is measured."""
    crowds: int = 32
    """The number of contending processes with several threads."""
    ensembles: bool = True
    """Whether ensembles are measured, besides single servers."""
    buyers: int = 64
    """The number of processes that buy from one stock."""
    units: int = 10_000
    """How many units the stock has."""
    settle: float = 0.5
    """How long to wait for events without a signal."""


FULL = Size()
QUICK = replace(
    FULL, rounds=2, pair_rounds=15, passes=8, seconds=0.4, kills=3, hot_rounds=1, window=1.0, leases=10_000,
    leases_ttl=6.0, drains=3,
)  # fmt: skip


@dataclass(slots=True, frozen=True)
class Case:
    """One row: a contender at one place under one load. Rows are compared with those that have the same prefix."""

    label: str
    prefix: str = ""
    place: str = ""
    processes: int = 1
    members: int = 1
    """The threads or tasks of each process."""
    hold: float = 0.0

    def __str__(self) -> str:
        return self.prefix + self.label


Found = Mapping[Case, Sequence[Round]]


@dataclass(slots=True)
class Spread:
    """The median of some values, their limits and their 10th percentile."""

    median: float
    low: float
    high: float
    tenth: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}..{self.high:.2f})"


@dataclass(slots=True)
class Bound:
    """The bound of a figure."""

    text: str
    value: float
    limit: float
    unit: str = ""
    at_least: bool = False
    """Whether the limit is a minimum instead of a maximum."""
    why: str = ""
    """The reason if the bound is missed: a sentence without its full stop."""
    tenth: float | None = None
    """The 10th percentile of the ratios within the rounds, of which `value` is the median."""

    @property
    def kept(self) -> bool:
        """Whether the figure keeps the bound. NaN never does."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def verdict(self) -> str:
        """Whether the figure keeps the bound, in a word."""
        return "OK" if self.kept else "MISSED"

    @property
    def measured(self) -> str:
        """The figure, with its unit."""
        return f"{self.value:.4g}{self.unit}"

    @property
    def p10(self) -> str:
        """The 10th percentile, if the figure is a ratio."""
        return "" if self.tenth is None else f"{self.tenth:.4g}"

    @property
    def demand(self) -> str:
        """The limit, with its unit."""
        return f"at {'least' if self.at_least else 'most'} {self.limit:g}{self.unit}"

    def __str__(self) -> str:
        p10 = f", p10 {self.p10}" if self.p10 else ""
        return f"{self.verdict}: {self.text}: {self.measured}{p10} (bound: {self.demand})"


@dataclass(slots=True, frozen=True)
class Limit:
    """A bound as the table of workloads states it: of a figure of a row, or of its ratio to another row."""

    row: str | Sequence[str]
    """The row, or several: then the best of them."""
    limit: float
    over: str | Sequence[str] = ""
    """The row that it is compared with within each round, or several: then the best of them."""
    figure: str = "seconds"
    at_least: bool = False
    unit: str = ""
    scale: float = 1.0
    pick: Callable[[Sequence[float]], float] = statistics.median
    """How the figures of all rounds become one, unless they are ratios."""
    floor: str = ""
    """The row that shows how much could be reached in place of Tenure's."""
    why: str = ""

    def bound(self, found: Mapping[str, Sequence[Round]]) -> Bound | None:
        """Return the bound, or None if it compares with a peer that was left out. NaN: Tenure's row is missing."""
        row, over = (each if isinstance(each, str) else self._best(each, found) for each in (self.row, self.over))
        missing = [each for each in (row, over) if each not in found and (each or self.over)]
        text = " / ".join(filter(None, (row, over)))
        if self.figure != "seconds" or not over:
            text += f": {NAMES.get(self.figure, self.figure)}"
        if missing:
            nothing = Bound(text, math.nan, self.limit, self.unit, self.at_least, f"{missing[0]} was not measured")
            return nothing if "tenure" in missing[0] else None
        if not over:
            value = self.pick(figures(found[row], self.figure)) * self.scale
            return Bound(text, value, self.limit, self.unit, self.at_least, self._reason(found, row, over))
        ratio = ratios(figures(found[row], self.figure), figures(found[over], self.figure))
        reason = self._reason(found, row, over)
        return Bound(text, ratio.median, self.limit, self.unit, self.at_least, reason, ratio.tenth)

    def _best(self, rows: Sequence[str], found: Mapping[str, Sequence[Round]]) -> str:
        """Return the fastest of some rows by its median, not by its luckiest round."""
        medians = {row: statistics.median(figures(found[row], self.figure)) for row in rows if row in found}
        pick = min if self.figure in {"seconds", "wait"} else max
        return pick(medians, key=lambda row: medians[row]) if medians else rows[0]

    def _reason(self, found: Mapping[str, Sequence[Round]], row: str, over: str) -> str:
        """Return why the bound is missed: the given reason, what the floor reaches, and the client's work."""
        reasons = [self.why] if self.why else []
        ours = next((each for each in (row, over) if "tenure" in each), row)
        if self.floor in found and over:
            pair = [figures(found[self.floor if each == ours else each], self.figure) for each in (row, over)]
            reasons.append(f"the floor ({self.floor}) itself has {ratios(*pair).median:.2f}")
        if client := figures(found[ours], "client"):
            reasons.append(f"of a pair the client works for {duration(statistics.median(client))}")
        return "; ".join(reasons)


NAMES = {
    "seconds": "duration", "since_end": "after the last renewal + ttl", "wrong": "units sold too many or too few",
    "beyond": "beyond bare Python", "longest": "longest wait", "wait": "hand-off", "events": "events a release",
    "each": "processor time of a request", "step": "a step", "lost": "lost or not served", "rate": "a second",
    "fairness": "fewest/most", "even": "fewest/most of processes", "requests": "commands each",
    "servers": "processor time of the server", "client": "processor time of the client",
    "worst": "longest wait / mean", "farthest": "farthest of a process from the mean",
}  # fmt: skip
"""The figures in words, where they differ."""


@dataclass(slots=True, frozen=True)
class Column:
    """A column: how the figures of all rounds become a cell, or the ratios to those of another row."""

    head: str
    figure: str
    cell: Callable[[Any], str]
    """Takes the figures, or the Spread of the ratios."""
    over: str = ""


def middle(form: str | Callable[[float], str]) -> Callable[[list[float]], str]:
    """Return what shows the median of the rounds."""
    shown: Callable[[float], str] = form if callable(form) else lambda value: format(value, form)
    return lambda values: shown(statistics.median(values))


def limits(form: str | Callable[[float], str]) -> Callable[[list[float]], str]:
    """Return what shows the least and the greatest of the rounds."""
    shown: Callable[[float], str] = form if callable(form) else lambda value: format(value, form)
    return lambda values: f"{shown(min(values))}..{shown(max(values))}"


def total(values: Iterable[float]) -> str:
    """Show the sum of the rounds."""
    return f"{sum(values):g}"


def waited(share: float) -> Callable[[list[Sequence[float]]], str]:
    """Return what shows a percentile of the durations of all rounds."""
    return lambda rounds: duration(percentile((each for one in rounds for each in one), share))


@dataclass(slots=True)
class Row:
    """The row of one contender: its cells, its title, and its figures for machines."""

    label: str
    cells: Sequence[str]
    meaning: str
    figures: Mapping[str, Any]


@dataclass(slots=True)
class Report:
    """The results of one benchmark."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Row] = field(default_factory=list[Row])
    bounds: list[Bound] = field(default_factory=list[Bound])
    notes: list[str] = field(default_factory=list[str])
    """Remarks for the reader: sentences without their full stop."""

    @property
    def heads(self) -> list[str]:
        """The heads of all columns. The first column contains the contenders."""
        return ["", *self.columns, "what it is"]

    @property
    def lines(self) -> list[list[str]]:
        """The rows of the table, below the heads."""
        return [[row.label, *row.cells, row.meaning] for row in self.rows]

    def __str__(self) -> str:
        bounds = ["", *map(str, self.bounds)] if self.bounds else []
        notes = ["", *(f"NOTE: {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"{self.name}: {self.title}", "", *table(self.heads, self.lines), *bounds, *notes])

    def to_json(self) -> dict[str, Any]:
        """Return the figures and bounds, for machines."""
        return {
            "title": self.title,
            "figures": {row.label: dict(row.figures) for row in self.rows},
            "bounds": [{**asdict(bound), "kept": bound.kept} for bound in self.bounds],
            "notes": list(self.notes),
        }


def reported(  # noqa: PLR0917
    name: str,
    title: str,
    found: Found,
    columns: Sequence[Column],
    meanings: Mapping[str, str],
    demands: Iterable[Limit] = (),
    notes: Iterable[str] = (),
) -> Report:
    """Return the report on some rows; a column for which no row has a figure is left out."""
    shown = [column for column in columns if any(figures(rounds, column.figure) for rounds in found.values())]
    report = Report(name, title, [column.head for column in shown], notes=list(notes))
    for case, rounds in found.items():
        cells = [_cell(column, case, found) for column in shown]
        report.rows.append(Row(str(case), cells, meanings[case.label], _for_machines(rounds)))
    by_row = {str(case): rounds for case, rounds in found.items()}
    report.bounds = [bound for each in demands if (bound := each.bound(by_row))]
    return report


def _cell(column: Column, case: Case, found: Found) -> str:
    own = figures(found[case], column.figure)
    if not column.over:
        return column.cell(own) if own else ""
    rows = (case.prefix + column.over, column.over)
    base = next((rounds for each, rounds in found.items() if str(each) in rows), None)
    return column.cell(ratios(own, figures(base, column.figure))) if base and own else ""


def _for_machines(rounds: Sequence[Round]) -> dict[str, Any]:
    names = dict.fromkeys(name for each in rounds for name in each)
    shown: dict[str, Any] = {}
    for name in names:
        values = figures(rounds, name)
        if isinstance(values[0], Sequence):
            waits = [each for one in values for each in one]
            shown |= {f"{name}_p{share:g}": percentile(waits, share / 100) for share in (50, 95, 99, 100)}
        else:
            shown[name] = values
    return shown


def figures(rounds: Sequence[Round], name: str) -> list[Any]:
    """Return a figure of each round that has it."""
    return [each[name] for each in rounds if name in each]


def interleave(contenders: Mapping[Any, Callable[[], R]], rounds: int) -> dict[Any, list[R]]:
    """Call each contender once a round, A B C A B C ..., and return the results of each, round by round."""
    results: dict[Any, list[R]] = {label: [] for label in contenders}
    for _ in range(rounds):
        for label, measure in contenders.items():
            results[label].append(measure())
    return results


def spread(values: Iterable[float]) -> Spread:
    """Return the median, the limits and the 10th percentile of some values."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found), percentile(found, 0.1))


def ratios(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Return the spread of the ratios of two contenders, each within one round.

    It is nan if the second contender got nothing done in a round.
    """
    if not all(under):
        return Spread(math.nan, math.nan, math.nan, math.nan)
    return spread(one / other for one, other in zip(over, under, strict=True))


def percentile(values: Iterable[float], share: float) -> float:
    """Return the least value that at least `share` (0..1) of the values do not exceed; NaN if there are none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def duration(seconds: float) -> str:
    """Return a duration for people to read, with three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        scaled = seconds * scale
        if abs(scaled) >= 1:
            return f"{scaled:.{max(0, 2 - int(math.log10(abs(scaled))))}f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out a table: the first and the last column to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    last = len(heads) - 1

    def line(cells: Sequence[str]) -> str:
        places = zip(cells, widths, strict=True)
        laid = [cell.ljust(width) if at in (0, last) else cell.rjust(width) for at, (cell, width) in enumerate(places)]
        return ("  " + "  ".join(laid)).rstrip()

    return [line(heads), *map(line, rows)]
