"""The cost of one uncontended pair of acquire and release in PostgreSQL and MySQL."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.contenders import Handle
from bench.harness import Bound, Report, Size, duration, ratios
from bench.sql import contenders, floor
from bench.sql.contenders import AWAITED, PEERS, ROWS, SESSIONS, one, url_of
from bench.sql.servers import MYSQL, POSTGRESQL, Place, running
from bench.timing import Measure, awaiting, blocking, measure_pairs, pair_report, placed

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
    """Compare the pairs of all contenders, with the client and the server on two cores; note the ratio on one core."""
    bare = FLOORS[kind][0]
    with running(kind, folder) as place:
        lineup = contenders.lineup(kind, place.url, (*ROWS, *SESSIONS[kind], *PEERS[kind]))
        apart = _measure(kind, place, lineup.labels, size, cores=2)
        together = _measure(kind, place, lineup.labels, size, cores=1)
    report = pair_report(f"{kind}_pair", apart, contenders.MEANINGS | floor.MEANINGS, {"over bare": bare})
    report.bounds = _bounds(kind, apart, bare)
    on_one = (
        f"{label}: {duration(statistics.median(together[label]))}, {ratios(together[label], together[bare]).median:.2f}"
        for label in (*lineup.labels, *FLOORS[kind])
        if label.startswith("tenure") or label in FLOORS[kind]
    )
    report.notes = [
        f"the server is {place.version}",
        f"client and server run on two cores; on one core, a pair and its ratio to the {bare}: {'; '.join(on_one)}",
        *lineup.notes,
    ]
    return report


def _measure(kind: str, place: Place, labels: Sequence[str], size: Size, cores: int) -> dict[str, list[float]]:
    """Measure all contenders and floors with the client and the server on so many cores."""
    with ExitStack() as stack:
        stack.enter_context(placed(place.pid, cores))
        measures = {label: _open(stack, kind, label, place.url) for label in labels}
        measures |= {label: _open_floor(stack, kind, label, place.url) for label in FLOORS[kind]}
        return measure_pairs(measures, size.pairs, size.pair_rounds)


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
