"""The harness: it measures contenders in turns, computes ratios within rounds, and lays out tables."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

R = TypeVar("R")


@dataclass(slots=True, frozen=True)
class Size:
    """The durations and sizes of a run. `seconds` is one timed period of one contender."""

    rounds: int
    """The number of rounds, in which all contenders are measured in turns."""
    pair_rounds: int
    """The number of rounds of `pair`: many, because they are short and their ratio has a bound."""
    pairs: int
    passes: int
    threads: int
    tasks: int
    processes: int
    seconds: float
    kills: int
    ttl: float
    hot: tuple[int, ...]
    """The number of processes that contend for one hot lock."""
    hot_rounds: int
    window: float
    """How long these processes contend, in seconds."""
    leases: int
    """The number of leases that one client renews."""
    leases_ttl: float
    tasks_waiting: int
    threads_waiting: int
    queue: int
    """The number of waiters in one queue."""
    drains: int
    """How often the whole queue is granted."""
    crowds: int
    """The number of contending processes with several threads."""
    ensembles: bool
    """Whether ensembles are measured, besides single servers."""
    buyers: int
    """The number of processes that buy from one stock."""
    units: int
    """How many units the stock has."""
    settle: float
    """How long to wait, in seconds, for events without a signal."""


FULL = Size(
    rounds=3,
    pair_rounds=15,
    pairs=400,
    passes=40,
    threads=32,
    tasks=256,
    processes=8,
    seconds=1.5,
    kills=9,
    ttl=1.0,
    hot=(2, 8, 32),
    hot_rounds=3,
    window=3.0,
    leases=100_000,
    leases_ttl=30.0,
    tasks_waiting=2000,
    threads_waiting=200,
    queue=50,
    drains=9,
    crowds=32,
    ensembles=True,
    buyers=64,
    units=10_000,
    settle=0.5,
)
QUICK = Size(
    rounds=2,
    pair_rounds=7,
    pairs=200,
    passes=8,
    threads=32,
    tasks=256,
    processes=8,
    seconds=0.4,
    kills=3,
    ttl=1.0,
    hot=(2, 8, 32),
    hot_rounds=1,
    window=1.0,
    leases=10_000,
    leases_ttl=6.0,
    tasks_waiting=2000,
    threads_waiting=200,
    queue=50,
    drains=3,
    crowds=32,
    ensembles=True,
    buyers=64,
    units=10_000,
    settle=0.5,
)


@dataclass(slots=True, frozen=True)
class Case:
    """One contender under one load."""

    label: str
    processes: int
    hold: float

    def __str__(self) -> str:
        return f"{self.processes} x {self.hold * 1000:g} ms, {self.label}"


@dataclass(slots=True)
class Spread:
    """The median of some values, and their limits."""

    median: float
    low: float
    high: float

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
    def demand(self) -> str:
        """The limit, with its unit."""
        return f"at {'least' if self.at_least else 'most'} {self.limit:g}{self.unit}"

    def __str__(self) -> str:
        return f"{self.verdict}: {self.text}: {self.measured} (bound: {self.demand})"


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


def interleave(contenders: Mapping[str, Callable[[], R]], rounds: int) -> dict[str, list[R]]:
    """Call each contender once a round, A B C A B C ..., and return the results of each, round by round."""
    results: dict[str, list[R]] = {label: [] for label in contenders}
    for _ in range(rounds):
        for label, measure in contenders.items():
            results[label].append(measure())
    return results


def spread(values: Iterable[float]) -> Spread:
    """Return the median, the least and the greatest of some values."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found))


def ratios(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Return the spread of the ratios of two contenders, each within one round.

    It is nan if the second contender got nothing done in a round.
    """
    if not all(under):
        return Spread(math.nan, math.nan, math.nan)
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
