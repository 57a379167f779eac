"""The cost of one uncontended pair of acquire and release in ZooKeeper or etcd, on one server and on an ensemble."""

import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.ensembles.contenders import ASYNCIO, FLOORS, MEANINGS, PAIRS, PEERS, PROGRAMS, THREADS, measuring
from bench.ensembles.servers import ETCD, ZOOKEEPER, Address, Case, Place, running
from bench.harness import Bound, Report, Row, Size, duration, interleave, ratios, spread
from bench.peers import programs
from bench.peers.programs import Built
from bench.timing import BATCH, Measure
from bench.workers import Worker

OVER_PEER = 1.0
"""The greatest ratio to the time of the best peer in Python."""

OVER_FLOOR = {ZOOKEEPER: 1.2, ETCD: 1.5}
"""The greatest ratio to the time of two bare requests."""

MORE = {
    ZOOKEEPER: "a pair has a third request, because a new node does not tell which nodes were there before",
    ETCD: "the requests of a pair also compare keys and list the name",
}
"""Why a pair is more work than its floor."""

SHARE = 4
"""By how much the pairs of a round are fewer than in Redis, where they are faster."""

COLUMNS = ("median", "min..max of rounds", "over floor", "over peer", "requests", "client each")


@dataclass(slots=True)
class Round:
    """The cost of a pair for one contender in one round."""

    seconds: float
    """The median duration of the batches."""
    client: float
    """The processor time of the client, in seconds."""
    requests: float


def zookeeper(size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders in ZooKeeper."""
    return run(ZOOKEEPER, size, folder)


def etcd(size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders in etcd."""
    return run(ETCD, size, folder)


def run(kind: str, size: Size, folder: Path) -> Report:
    """Compare the pairs of all contenders."""
    peer = programs.build(PROGRAMS[kind], folder / "peer")
    labels = [*PAIRS[kind], *peer.labels]
    with ExitStack() as stack:
        places = stack.enter_context(running(kind, folder, ensembles=size.ensembles))
        asked = {name: place.one for name, place in places.items()}
        workers = {label: stack.enter_context(Worker(serve, kind, label, asked, peer)) for label in labels}
        for worker in workers.values():
            worker.answer()
        cases = [Case(label, place) for place in places for label in labels]
        measures = {
            str(case): partial(_round, workers[case.label], places[case.place], case.place, size.pairs // SHARE)
            for case in cases
        }
        interleave(measures, 1)  # warm up: the servers are slow at first
        rounds = interleave(measures, size.pair_rounds)
        found = {case: rounds[str(case)] for case in cases}
        version = next(iter(places.values())).meters.version
    report = Report(f"{kind}_pair", "an uncontended acquire + release", COLUMNS, notes=[_note(version), *peer.notes])
    meanings = {**MEANINGS, peer.label: peer.meaning}
    report.rows = [_row(kind, case, found, meanings[case.label]) for case in found]
    ours = [Case(label, place) for place in places for label in (THREADS, ASYNCIO)]
    report.bounds = [make(kind, case, found) for case in ours for make in (over_floor, over_peer)]
    return report


def _note(version: str) -> str:
    return (
        f"the servers are {version}; they do not wait for the disk, and all clients of the ensemble use the same "
        "follower; peer is the faster of the recipes in Python"
    )


def _round(worker: Worker, place: Place, name: str, pairs: int) -> Round:
    before = place.meters.requests()
    batches: list[tuple[float, float]] = []
    for _ in range(max(1, pairs // BATCH)):
        worker.order(name)
        batches.append(worker.answer())
    requests = place.meters.requests() - before
    seconds, client = (statistics.median(values) for values in zip(*batches, strict=True))
    return Round(seconds, client, requests / (len(batches) * BATCH))


def serve(line: Connection, kind: str, label: str, asked: Mapping[str, Address], peer: Built) -> None:
    """Run the process of one contender."""
    with ExitStack() as stack:
        batches = {name: stack.enter_context(_batches(kind, label, each, peer)) for name, each in asked.items()}
        for batch in batches.values():
            batch()  # connects
        line.send("ready")
        while True:
            line.send(batches[line.recv()]())


Batch = Callable[[], tuple[float, float]]
"""Measures a batch of pairs, and returns the seconds and the client's processor seconds of one pair."""


@contextmanager
def _batches(kind: str, label: str, address: Address, peer: Built) -> Generator[Batch]:
    if label == peer.label:
        with programs.started(peer, address, 1) as program:
            yield partial(program.pair, BATCH)
    else:
        with measuring(kind, label, address) as measure:
            yield partial(_time, measure)


def _time(measure: Measure) -> tuple[float, float]:
    before = time.process_time()
    seconds = measure(BATCH)
    return seconds, (time.process_time() - before) / BATCH


def _row(kind: str, case: Case, found: Mapping[Case, Sequence[Round]], meaning: str) -> Row:
    rounds = found[case]
    middle = spread(_seconds(rounds))
    floor, peer = Case(FLOORS[kind], case.place), best_peer(kind, case.place, found)
    over_floor, over_peer = (ratios(_seconds(rounds), _seconds(found[each])) for each in (floor, peer))
    requests, client = (
        statistics.median(values) for values in zip(*((r.requests, r.client) for r in rounds), strict=True)
    )
    cells = [
        duration(middle.median),
        f"{duration(middle.low)}..{duration(middle.high)}",
        str(over_floor),
        str(over_peer),
        f"{requests:.2f}",
        duration(client),
    ]
    figures = {
        "seconds": _seconds(rounds),
        "over_floor": over_floor.median,
        "over_peer": over_peer.median,
        "requests": requests,
        "client_seconds": client,
    }
    return Row(str(case), cells, meaning, figures)


def _seconds(rounds: Sequence[Round]) -> list[float]:
    return [each.seconds for each in rounds]


def best_peer(kind: str, place: str, found: Mapping[Case, Sequence[Round]]) -> Case:
    """Return the fastest peer on some servers."""
    cases = [Case(label, place) for label in PEERS[kind]]
    return min(cases, key=lambda case: statistics.median(_seconds(found[case])))


def over_floor(kind: str, case: Case, found: Mapping[Case, Sequence[Round]]) -> Bound:
    """Compare a contender with two bare requests."""
    floor = Case(FLOORS[kind], case.place)
    text = f"{case} / {floor.label}, median of the rounds' ratios"
    client, least = _client(case, found), _client(floor, found)
    why = f"{MORE[kind]}; of a pair the client works for {client}, of the floor for {least}"
    return Bound(text, _ratio(case, floor, found), OVER_FLOOR[kind], why=why)


def over_peer(kind: str, case: Case, found: Mapping[Case, Sequence[Round]]) -> Bound:
    """Compare a contender with the fastest peer in Python."""
    peer, floor = best_peer(kind, case.place, found), Case(FLOORS[kind], case.place)
    floor_is, client = _ratio(floor, peer, found), _client(case, found)
    why = f"the floor takes {floor_is:.2f} of that peer's time; of a pair the client works for {client}"
    text = f"{case} / {peer.label}, median of the rounds' ratios"
    return Bound(text, _ratio(case, peer, found), OVER_PEER, why=why)


def _ratio(over: Case, under: Case, found: Mapping[Case, Sequence[Round]]) -> float:
    return ratios(_seconds(found[over]), _seconds(found[under])).median


def _client(case: Case, found: Mapping[Case, Sequence[Round]]) -> str:
    return duration(statistics.median(each.client for each in found[case]))
