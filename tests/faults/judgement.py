"""The judgement of leases during faults of their store, by the records of their holders."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.faults.workers import Tenure

HANDED_OFF = 0.1
"""Within how many seconds a second lease of one process may be a local hand-off, which is one lease for the nodes."""


@dataclass(slots=True)
class Overlap:
    """Two leases of one name that were valid at once, each by its own holder's clock."""

    first: Tenure
    second: Tenure
    seconds: float
    excused: bool
    """Whether a live node's clock was set forward since the request for the first lease."""


def overlaps(tenures: Sequence[Tenure], forward: Sequence[float]) -> list[Overlap]:
    """Return all pairs of leases that overlap."""
    began = _first_requests(tenures)
    found: list[Overlap] = []
    valid: list[Tenure] = []
    for tenure in sorted(tenures, key=lambda each: each.since):
        valid = [each for each in valid if each.until > tenure.since]
        for each in valid:
            if each.name == tenure.name:
                excused = any(began[id(each)] <= step <= tenure.since for step in forward)
                seconds = min(each.until, tenure.until) - tenure.since
                if seconds > 0:
                    found.append(Overlap(each, tenure, seconds, excused))
        valid.append(tenure)
    return found


def _first_requests(tenures: Sequence[Tenure]) -> dict[int, float]:
    """Return for each tenure the time since which its votes may exist: that of the first of several local hand-offs."""
    began: dict[int, float] = {}
    last: dict[tuple[str, int], Tenure] = {}
    for tenure in sorted(tenures, key=lambda each: each.since):
        key = tenure.name, tenure.process
        before = last.get(key)
        handed_off = before is not None and tenure.since - before.until < HANDED_OFF
        began[id(tenure)] = began[id(before)] if handed_off else tenure.asked
        last[key] = tenure
    return began


def disorder(tenures: Sequence[Tenure]) -> list[tuple[Tenure, Tenure]]:
    """Return pairs whose tokens do not increase: of a lease and one requested after its grant, or with equal tokens."""
    found: list[tuple[Tenure, Tenure]] = []
    for name in {each.name for each in tenures}:
        by_asked = sorted((each for each in tenures if each.name == name), key=lambda each: each.asked)
        arriving = sorted(by_asked, key=lambda each: each.since, reverse=True)
        greatest: Tenure | None = None
        for tenure in by_asked:
            while arriving[-1].since < tenure.asked:
                arrived = arriving.pop()
                greatest = arrived if greatest is None or arrived.token > greatest.token else greatest
            if greatest is not None and tenure.token <= greatest.token:
                found.append((greatest, tenure))
        by_token = sorted(by_asked, key=lambda each: each.token)
        found += [(one, other) for one, other in pairwise(by_token) if one.token == other.token]
    return found


def voting(sure: Sequence[Sequence[tuple[float, float]]], quorum: int) -> Iterator[tuple[float, float]]:
    """Yield the periods in which at least a quorum certainly voted, given the periods of each node."""
    changes = sorted(change for spans in sure for a, b in spans for change in ((a, 1), (b, -1)))
    count, since = 0, 0.0
    for instant, change in changes:
        before, count = count, count + change
        if before < quorum <= count:
            since = instant
        elif count < quorum <= before and instant > since:
            yield since, instant


def stalls(instants: Sequence[float], spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the duration and the start of each period without an event in these spans, the longest first."""
    found: list[tuple[float, float]] = []
    for begin, end in spans:
        marks = [begin, *sorted(each for each in instants if begin < each < end), end]
        found += [(after - before, before) for before, after in pairwise(marks)]
    return sorted(found, reverse=True)
