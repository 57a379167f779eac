"""The cost of one uncontended pair of acquire and release in PostgreSQL and MySQL."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.contenders import Handle
from bench.harness import Bound, Report, Size, ratios
from bench.sql import contenders, floor
from bench.sql.contenders import AWAITED, PEERS, ROWS, SESSIONS, one, url_of
from bench.sql.servers import MYSQL, POSTGRESQL, running
from bench.timing import Measure, awaiting, blocking, measure_pairs, pair_report

Bench = Callable[[Size, Path], Report]

ROWS_OVER_BARE = 3.0
SESSIONS_OVER_BARE = 1.5
"""The bounds in PostgreSQL. In MySQL there is none: GET_LOCK does nothing but take a mutex, and writes no row."""

FLOORS = {POSTGRESQL: (floor.ADVISORY, floor.CALLS, floor.TRIPS), MYSQL: (floor.GET_LOCK,)}


def postgresql(size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders in PostgreSQL."""
    return run(POSTGRESQL, size, folder)


def mysql(size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders in MySQL."""
    return run(MYSQL, size, folder)


def run(kind: str, size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders."""
    with ExitStack() as stack:
        place = stack.enter_context(running(kind, folder))
        labels = (*ROWS, *SESSIONS[kind], *PEERS[kind])
        lineup = contenders.lineup(kind, place.url, labels)
        measures = {label: _open(stack, kind, label, place.url) for label in lineup.labels}
        measures |= {label: _open_floor(stack, kind, label, place.url) for label in FLOORS[kind]}
        medians = measure_pairs(measures, size.pairs, size.pair_rounds)
    bare = FLOORS[kind][0]
    report = pair_report(f"{kind}_pair", medians, contenders.MEANINGS | floor.MEANINGS, {"over bare": bare})
    report.bounds = _bounds(kind, medians, bare)
    report.notes = [f"the server is {place.version}", *lineup.notes]
    return report


def _open(stack: ExitStack, kind: str, label: str, url: str) -> Measure:
    if label in AWAITED:
        return stack.enter_context(awaiting(url_of(label, url)))
    return handled(stack.enter_context(one(kind, label, url)))


def handled(handle: Handle) -> Measure:
    """Measure a pair of a handle, which also reads the clock twice."""

    def pair() -> None:
        handle.acquire()
        handle.release()

    return blocking(pair)


def _open_floor(stack: ExitStack, kind: str, label: str, url: str) -> Measure:
    if label == floor.CALLS:
        return blocking(floor.calls_pair(stack.enter_context(floor.libpq(url))))
    if label == floor.TRIPS:
        return blocking(floor.trips_pair(stack.enter_context(floor.libpq(url))))
    return handled(stack.enter_context(one(kind, label, url)))


def _bounds(kind: str, medians: Mapping[str, Sequence[float]], bare: str) -> list[Bound]:
    if kind != POSTGRESQL:
        return []
    limits = dict.fromkeys(ROWS, ROWS_OVER_BARE) | dict.fromkeys(SESSIONS[kind], SESSIONS_OVER_BARE)
    return [
        Bound(f"{label} / {bare}", ratios(medians[label], medians[bare]).median, limit, why=_why(label, medians, bare))
        for label, limit in limits.items()
        if label in medians
    ]


def _why(label: str, medians: Mapping[str, Sequence[float]], bare: str) -> str:
    if label not in ROWS or floor.CALLS not in medians:
        return f"the best peer takes {best_peer(medians, bare)}"
    calls = ratios(medians[floor.CALLS], medians[bare]).median
    return f"the two statements alone take {calls:.2f} of it; the rest is the client's work, in Python"


def best_peer(medians: Mapping[str, Sequence[float]], bare: str) -> str:
    """Return how long the pair of the fastest peer takes, compared with a floor."""
    peers = {
        label: ratios(medians[label], medians[bare]).median
        for each in PEERS.values()
        for label in each
        if label in medians
    }
    label = min(peers, key=lambda each: peers[each])
    return f"{peers[label]:.2f} of it ({label})"
