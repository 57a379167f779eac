"""One entry of the table of workloads, and what the functions that carry them out share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypedDict

from bench.contenders import CONTENDERS, able
from bench.harness import Case, Column, Found, Limit, Report, Size, reported
from bench.peers import programs
from bench.servers import running

Limits = Sequence[Limit] | Callable[[Size], Sequence[Limit]]


class Options(TypedDict, total=False):
    """The options of the functions that measure. Durations are in seconds."""

    cores: int
    """On how many cores client and server run; with 2, a note tells the ratio on one."""
    busy: bool
    """Whether another process keeps each core busy."""
    delay: float
    """How long each message is delayed."""
    delays: Sequence[float]
    times: int
    """How many times longer a batch of pairs is."""
    part: int
    """By how much a round has fewer pairs."""
    ours_only: Sequence[str]
    """The places where no peer is measured."""
    hold: tuple[float, float]
    """The limits of the random hold time: the whole pause of a peer between two polls, so that no contender's polls
    fall into step with the releases."""
    cases: Callable[[Size, Sequence[str]], list[Case]]
    """Returns the cases of a size and the names of places."""
    window: str
    """The field of a Size with the length of a window."""
    rounds: str
    """The field of a Size with the number of rounds."""
    share: float
    """The least length of a window for each process: many turns, and time for a late start."""
    timeout: float
    """The timeout of an attempt."""
    warm: bool
    """Whether the servers are slow at first."""
    holders: Mapping[str, str]
    """By waiter: the contender that holds the lock meanwhile, if it is not the waiter's own."""
    stores: Sequence[str]
    counts: Callable[[Size], Sequence[int]]
    """Returns how many wait."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A benchmark: a function that measures, on one store, some contenders, and what they are compared with."""

    name: str
    run: Callable[["Workload", Size, Path], Report]
    title: str
    """With the fields of a Size in braces."""
    store: str = ""
    labels: Sequence[str] = ()
    limits: Limits = ()
    columns: Sequence[Column] = ()
    options: Options = field(default_factory=Options)

    def report(
        self, size: Size, found: Found, meanings: Mapping[str, str] | None = None, notes: Iterable[str] = ()
    ) -> Report:
        """Return the report on what was measured."""
        limits = self.limits(size) if callable(self.limits) else self.limits
        known = {label: each.meaning for label, each in CONTENDERS.get(self.store, {}).items()}
        title = self.title.format(**asdict(size))
        return reported(self.name, title, found, self.columns, meanings or known, limits, notes)


class Bench:
    """The servers, the contenders that can be measured on them, and the programs of those in other languages."""

    def __init__(self, stack: ExitStack, workload: Workload, size: Size, folder: Path) -> None:
        """Build and start what is needed."""
        self.store, self.stack, self.size = workload.store, stack, size
        self.contenders = CONTENDERS[self.store]
        self.labels, self.notes = able(self.store, workload.labels)
        self.peers = programs.build_all([each for each in self.labels if each in programs.RECIPES], folder / "peers")
        self.labels = [
            each for each in self.labels if each not in {peer.label for peer in self.peers if not peer.command}
        ]
        self.notes += [note for peer in self.peers for note in peer.notes]
        self.places = stack.enter_context(running(self.store, folder, ensembles=size.ensembles))
        if version := next(iter(self.places.values())).version:
            self.notes.insert(0, f"the server is {version}")
        self._programs: dict[tuple[str, str], programs.Program] = {}

    def program(self, case: Case) -> programs.Program | None:
        """Return the program of a contender in another language, started at a place."""
        built = next((peer for peer in self.peers if peer.label == case.label), None)
        if built is None:
            return None
        key = (case.place, case.label)
        if key not in self._programs:
            host, _, port = self.places[case.place].url.partition("://")[2].partition("/")[0].rpartition(":")
            start = programs.started(built, (host, int(port)), case.members)
            self._programs[key] = self.stack.enter_context(start)
        return self._programs[key]
