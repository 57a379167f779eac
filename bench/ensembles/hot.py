"""Sixteen threads of one process contend for one lock in ZooKeeper or etcd, and hold it for no time.

The peers are Curator's and Go's locks, with as many threads or goroutines in one process. The floor is what one client
does alone at the same server: it adds a node or a key and removes it, one after the other.
"""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.contenders import NAME, LeaseHandle, clock
from bench.ensembles.contenders import BLOCKING, BUSY, FLOORS, MEANINGS, PROGRAMS, TTL
from bench.ensembles.servers import ETCD, ZOOKEEPER, Address, Case, Place, running, url_of
from bench.harness import Bound, Report, Row, Size, interleave, ratios, spread
from bench.peers import programs
from bench.peers.programs import Built
from bench.threads32 import contend
from bench.timing import BATCH
from bench.workers import Worker
from tenure import Client

CROWD = 16
"""The number of threads."""

LINGER = 5.0
"""How long a lease lingers, in seconds: longer than the thread that uses it again takes."""

FASTER = 10.0
"""The least ratio to the peer's speed."""

HOT = f"tenure {CROWD} threads"
AGAIN = "tenure 1 thread, linger"
WHAT = {HOT: "tenure.Client, one for all threads", AGAIN: "tenure.Client, a lease that lingers"}

COLUMNS = ("acquired/s", "min..max of rounds", "over floor", "requests", "least/most", "overlaps")


@dataclass(slots=True)
class Round:
    """One period of one contender."""

    rate: float
    """The acquisitions a second."""
    fairness: float
    """The fewest grants of a thread over the most."""
    overlaps: int
    requests: float = 0.0
    """The requests for each acquisition."""


def zookeeper(size: Size, folder: Path) -> Report:
    """Let threads contend in ZooKeeper."""
    return run(ZOOKEEPER, size, folder)


def etcd(size: Size, folder: Path) -> Report:
    """Let threads contend in etcd."""
    return run(ETCD, size, folder)


def run(kind: str, size: Size, folder: Path) -> Report:
    """Let the threads contend, and measure the floor, in turns."""
    peer = programs.build(PROGRAMS[kind], folder / "peer")
    labels = [HOT, AGAIN, *peer.labels, FLOORS[kind]]
    with ExitStack() as stack:
        places = stack.enter_context(running(kind, folder, ensembles=size.ensembles))
        cases = [Case(label, name) for name in places for label in labels]
        workers = {
            case: stack.enter_context(Worker(serve, kind, case.label, places[case.place].one, peer)) for case in cases
        }
        for worker in workers.values():
            worker.answer()
        measures = {str(case): partial(_round, workers[case], places[case.place], size.seconds) for case in cases}
        interleave(measures, 1)  # warm up: the servers are slow at first
        rounds = interleave(measures, size.rounds)
        found = {case: rounds[str(case)] for case in cases}
        version = next(iter(places.values())).meters.version
    title = f"threads of one process on one name, which they hold for no time: {CROWD} or 1"
    report = Report(f"{kind}_hot", title, COLUMNS, notes=[_note(version), *peer.notes])
    meanings = {**MEANINGS, **WHAT, peer.label: peer.meaning}
    report.rows = [_row(kind, case, found, meanings[case.label]) for case in cases]
    report.bounds = [bound(place, label, found) for place in places for label in peer.labels]
    return report


def _note(version: str) -> str:
    return f"the servers are {version}; they do not wait for the disk"


def _round(worker: Worker, place: Place, seconds: float) -> Round:
    before = place.meters.requests()
    worker.order(seconds)
    found: Round = worker.answer()
    found.requests = (place.meters.requests() - before) / max(1.0, found.rate * seconds)
    return found


def bound(place: str, peer: str, found: Mapping[Case, Sequence[Round]]) -> Bound:
    """Compare the threads with a peer on some servers."""
    ours, theirs = (_rates(found[Case(label, place)]) for label in (HOT, peer))
    text = f"{Case(HOT, place)} / {peer}, median of the rounds' ratios"
    return Bound(text, ratios(ours, theirs).median, FASTER, at_least=True)


def _row(kind: str, case: Case, found: Mapping[Case, Sequence[Round]], meaning: str) -> Row:
    rounds = found[case]
    rates, floor = _rates(rounds), _rates(found[Case(FLOORS[kind], case.place)])
    middle, over = spread(rates), ratios(rates, floor)
    requests = statistics.median(each.requests for each in rounds)
    fairness, overlaps = statistics.median(each.fairness for each in rounds), sum(each.overlaps for each in rounds)
    cells = [
        f"{middle.median:,.0f}",
        f"{middle.low:,.0f}..{middle.high:,.0f}",
        str(over),
        f"{requests:.3f}",
        f"{fairness:.2f}",
        str(overlaps),
    ]
    figures = {
        "rates": rates,
        "over_floor": over.median,
        "requests": requests,
        "fairness": fairness,
        "overlaps": overlaps,
    }
    return Row(str(case), cells, meaning, figures)


def _rates(rounds: Sequence[Round]) -> list[float]:
    return [each.rate for each in rounds]


# -- the process of one contender -------------------------------------------------------------------------------


def serve(line: Connection, kind: str, label: str, address: Address, peer: Built) -> None:
    """Run the process of one contender."""
    if label == peer.label:
        _serve_peer(line, peer, address)
    elif label in BLOCKING:
        _serve_floor(line, label, address)
    else:
        _serve_threads(line, url_of(kind, address), *((CROWD, 0.0) if label == HOT else (1, LINGER)))


def _serve_threads(line: Connection, url: str, threads: int, linger: float) -> None:
    with Client(url, operation_timeout=BUSY) as client:
        client.inspect(NAME)  # connects, which is not measured
        lock = client.lock(f"{NAME}-{threads}", TTL, linger=linger)
        line.send("ready")
        while True:
            seconds = line.recv()
            crowd = contend([LeaseHandle(lock) for _ in range(threads)], seconds)
            line.send(Round(crowd.rate(), crowd.fairness(), crowd.overlaps))


def _serve_floor(line: Connection, label: str, address: Address) -> None:
    with BLOCKING[label](address) as measure:
        measure(BATCH)
        line.send("ready")
        while True:
            seconds: float = line.recv()
            until, taken = clock() + seconds, list[float]()
            while not taken or clock() < until:
                taken.append(measure(BATCH))
            line.send(Round(1.0 / statistics.median(taken), 1.0, 0))


def _serve_peer(line: Connection, peer: Built, address: Address) -> None:
    with programs.started(peer, address, CROWD) as program:
        line.send("ready")
        while True:
            seconds: float = line.recv()
            overlaps, grants = program.hot(seconds)
            line.send(Round(sum(grants) / seconds, min(grants) / max(1, *grants), overlaps))
