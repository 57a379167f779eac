"""The account of a story: its rounds and its verdict, for the terminal, the page and the JSON."""

from dataclasses import dataclass, field
from typing import Any

from demo.plan import What
from demo.rounds import RoundResult


@dataclass(slots=True)
class Figure:
    """A cell of a table."""

    text: str
    wrong: bool = False


def figure(count: int, right: int) -> Figure:
    """Return a count for a table, and whether it differs from the right one."""
    return Figure(f"{count:,}", count != right)


@dataclass(slots=True)
class Chapter:
    """One round: what is said of it, and the timeline that shows it."""

    title: str
    sentences: list[str]
    result: RoundResult = field(default_factory=RoundResult)
    held: str = "holds the lock"
    tale: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """The faults that the demo caused and their consequences, each with its instant. A terminal shows the timeline of
    a round that has some."""

    def seconds(self) -> str:
        """Return the title, with the duration of the round."""
        return f"{self.title} ({self.result.ended - self.result.began:.1f} s)"


@dataclass(slots=True)
class Account:
    """The account of one story."""

    workers: int
    chapters: list[Chapter]
    exact: str
    """The verdict if nothing is wrong."""
    wrong: list[str]
    facts: dict[str, Any]
    """The figures, for a program."""
    introduction: list[str] = field(default_factory=list[str])
    caption: str = ""
    headings: tuple[str, ...] = ()
    rows: list[list[Figure]] = field(default_factory=list[list[Figure]])
    sums: list[Figure] = field(default_factory=list[Figure])
    files: dict[str, str] = field(default_factory=dict[str, str])
    """Files to write for the user: their names and contents."""


def numbers(result: RoundResult, what: What) -> list[int]:
    """Return the workers, counted from 1, of all events of a kind."""
    return [event.worker + 1 for event in result.all_of(what)]
