"""The counts of a log. One process and many use the same code, so that only the sharing can make a difference."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from demo.logs import parse


@dataclass(slots=True)
class Day:
    """The counts of one day."""

    hits: int = 0
    bytes: int = 0
    status: dict[str, int] = field(default_factory=dict[str, int])
    visitors: set[str] = field(default_factory=set[str])

    def summary(self) -> dict[str, Any]:
        """Return the counts, with the number of visitors."""
        return {
            "hits": self.hits,
            "bytes": self.bytes,
            "status": dict(sorted(self.status.items())),
            "visitors": len(self.visitors),
        }


@dataclass(slots=True)
class Tally:
    """The counts of a log, and the batches that they include."""

    days: dict[str, Day] = field(default_factory=dict[str, Day])
    malformed: int = 0
    batches: set[int] = field(default_factory=set[int])

    def add(self, lines: Iterable[bytes]) -> None:
        """Add lines to the counts."""
        for line in lines:
            hit = parse(line)
            if hit is None:
                self.malformed += 1
                continue
            day = self.days.setdefault(hit.day, Day())
            day.hits += 1
            day.bytes += hit.size
            day.status[hit.status] = day.status.get(hit.status, 0) + 1
            day.visitors.add(hit.visitor)

    def hits(self) -> int:
        """Return the total hits of all days."""
        return sum(day.hits for day in self.days.values())

    def dump(self) -> str:
        """Return the tally as JSON."""
        days = {
            name: {"hits": day.hits, "bytes": day.bytes, "status": day.status, "visitors": sorted(day.visitors)}
            for name, day in sorted(self.days.items())
        }
        return json.dumps({"days": days, "malformed": self.malformed, "batches": sorted(self.batches)})


def load(text: str) -> Tally:
    """Return the tally of a text that `Tally.dump` made."""
    data = json.loads(text)
    days = {
        name: Day(day["hits"], day["bytes"], day["status"], set(day["visitors"])) for name, day in data["days"].items()
    }
    return Tally(days, data["malformed"], set(data["batches"]))


def wrong_counts(truth: Tally, found: Tally) -> list[str]:
    """Return a message for every count that differs from the truth, with both values."""
    wrong: list[str] = []
    for name in sorted(truth.days.keys() | found.days.keys()):
        right, other = truth.days.get(name, Day()), found.days.get(name, Day())
        for what, count in right.summary().items():
            if (got := other.summary()[what]) != count:
                wrong.append(f"{name}: {what} {got}, but in truth {count}")
        if right.visitors != other.visitors and len(right.visitors) == len(other.visitors):
            wrong.append(f"{name}: as many visitors as in truth, but other ones")
    if truth.malformed != found.malformed:
        wrong.append(f"malformed lines {found.malformed}, but in truth {truth.malformed}")
    return wrong
