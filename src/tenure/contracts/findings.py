"""What is known of the settings of a store, and what is wrong with them for locks: facts, findings, reports.

A store gathers facts, and rules (`tenure.doctor`) make findings of them. The rules are pure functions. A fact that was
not seen is None: then the rules say nothing, and the report says that it was not looked at.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar


class Severity(StrEnum):
    """How much a finding weighs."""

    ERROR = "error"
    """Two holders may work at the same time, or no lock can be taken."""
    WARNING = "warning"
    """Locks wait or fail where they need not, or one more failure does harm."""
    NOTE = "note"
    """Worth knowing. It does not fail a check."""


HEAVIEST_FIRST = tuple(Severity)


@dataclass(slots=True, frozen=True)
class Finding:
    """One thing that is wrongly set for locks."""

    id: str
    """The name of the rule, as `redis-eviction`. It stays the same from release to release."""
    severity: Severity
    place: str
    """The server or the file, without secrets."""
    what: str
    """What is set, in a sentence."""
    why: str
    """Why it matters for locks."""
    change: str
    """A command or a line of a configuration to paste, or a part of the store's URL."""

    def text(self) -> str:
        """Return the finding in a line, for a log."""
        return f"{self.place}: {self.what} {self.why} To change it: {self.change}"


@dataclass(slots=True, frozen=True)
class Unseen:
    """Something that could not be looked at. That is no finding."""

    place: str
    what: str
    why: str


@dataclass(slots=True)
class Facts:
    """What is known of a server. Each kind of store has its own; a field made by `fact` may be unknown."""

    place: str
    """The server or the file, without secrets."""
    unseen: dict[str, str] = field(default_factory=dict[str, str])
    """Why a fact is unknown, by the name of its field."""

    def unknown(self) -> list[Unseen]:
        """Return the facts that were not seen."""
        return [
            Unseen(self.place, each.metadata["label"], self.unseen.get(each.name, "the server does not tell"))
            for each in fields(self)
            if "label" in each.metadata and getattr(self, each.name) is None
        ]


def fact(label: str) -> Any:  # noqa: ANN401 - as `field` of dataclasses
    """Return a field of facts that is unknown at first. The label says what it is, for people to read."""
    return field(default=None, metadata={"label": label})


F = TypeVar("F", bound=Facts)

Rule = Callable[[F], Finding | None]
"""Makes a finding of facts, or None if there is nothing to find, or a fact is unknown."""


def judge(facts: F, rules: Iterable[Rule[F]]) -> list[Finding]:
    """Return what the rules find, the heaviest first."""
    return heaviest_first(found for rule in rules if (found := rule(facts)) is not None)


def heaviest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order of their severity."""
    return sorted(findings, key=lambda each: HEAVIEST_FIRST.index(each.severity))


def ignore_findings(_findings: Sequence[Finding]) -> None:
    """Ignore findings, while no client has asked for them."""


@dataclass(slots=True)
class Report:
    """What was found at a store."""

    store: str
    """The store, without secrets."""
    findings: list[Finding] = field(default_factory=list[Finding])
    """What is wrongly set, the heaviest first."""
    unseen: list[Unseen] = field(default_factory=list[Unseen])
    """What could not be looked at, and why."""
    facts: list[Facts] = field(default_factory=list[Facts], repr=False)
    """What was seen of each server."""

    @property
    def sound(self) -> bool:
        """Whether nothing of weight was found: no error and no warning."""
        return all(each.severity is Severity.NOTE for each in self.findings)

    def add(self, facts: F, rules: Sequence[Rule[F]]) -> None:
        """Add what the rules find in the facts of a server, and what was not seen there."""
        self.findings = heaviest_first([*self.findings, *judge(facts, rules)])
        self.unseen += facts.unknown()
        self.facts.append(facts)

    def merge(self, other: "Report") -> None:
        """Add another report."""
        self.findings = heaviest_first([*self.findings, *other.findings])
        self.unseen += other.unseen
        self.facts += other.facts


def clock_ahead(server: float, before: float, after: float, grain: float = 0.0) -> float:
    """Return by how many seconds a server's clock is certainly ahead of ours; below 0: behind.

    `server` is what it said between our instants `before` and `after`, rounded down to a multiple of `grain`.
    """
    if server > after:
        return server - after
    return min(0.0, server + grain - before)
