"""The programs of peers in other languages: a benchmark builds them in its own folder, and leaves out what it can't.

A program is started with the address of a server and the number of its contenders, which share one client. It warms up,
and prints `ready`. Then it replies with a line of numbers to each line that it reads, until the end of its input:

| line | reply |
|---|---|
| `pair COUNT` | the seconds and the processor seconds of one uncontended pair of acquire and release |
| `hot SECONDS` | the overlaps, then the grants of each contender: all want one lock, and hold it for no time |
"""

import os
import shutil
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.ensembles.servers import ETCD, ZOOKEEPER, Address

SOURCES = Path(__file__).parent
BUILDING = 300.0
"""How long a build may take, in seconds: the first one downloads what the program needs."""

CURATOR = "Curator InterProcessMutex"
GO = "Go concurrency.Mutex"

Command = tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Recipe:
    """How the program of a peer is built and started in a copy of its sources."""

    label: str
    meaning: str
    sources: str
    tools: Sequence[str]
    """The programs that must be on this machine."""
    build: Command
    start: Command
    environment: Mapping[str, str]


RECIPES = {
    ZOOKEEPER: Recipe(
        CURATOR,
        "InterProcessMutex of Apache Curator 5.9.0 for Java, one for each thread",
        "curator",
        ("mvn", "java"),
        ("mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DincludeScope=runtime"),
        ("java", "-cp", "target/classes:target/dependency/*", "Peer"),
        {},
    ),
    ETCD: Recipe(
        GO,
        "concurrency.Mutex of etcd's client 3.5.35 for Go, with a session for each goroutine",
        "etcd",
        ("go",),
        ("go", "build", "-o", "peer", "."),
        ("./peer",),
        {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false"},
    ),
}


@dataclass(slots=True, frozen=True)
class Built:
    """The program of a peer, or a note that tells why there is none."""

    label: str
    meaning: str
    folder: Path
    command: Command = ()
    notes: Sequence[str] = ()

    @property
    def labels(self) -> list[str]:
        """The label of the peer if it can be measured."""
        return [self.label] if self.command else []


def build(kind: str, folder: Path) -> Built:
    """Build the peer of a kind of servers in a folder."""
    recipe = RECIPES[kind]
    there = folder / recipe.sources
    if missing := [tool for tool in recipe.tools if shutil.which(tool) is None]:
        return _left_out(recipe, there, f"it needs {' and '.join(missing)}, which this machine lacks")
    shutil.copytree(SOURCES / recipe.sources, there)
    try:
        done = subprocess.run(
            recipe.build,
            cwd=there,
            env={**os.environ, **recipe.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILDING,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _left_out(recipe, there, f"its build took more than {BUILDING:g} s")
    if done.returncode:
        return _left_out(recipe, there, f"`{recipe.tools[0]}` cannot build it here: {_reason(done)}")
    return Built(recipe.label, recipe.meaning, there, recipe.start)


def _left_out(recipe: Recipe, folder: Path, why: str) -> Built:
    return Built(recipe.label, recipe.meaning, folder, notes=[f"{recipe.label} is left out: {why}"])


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return the first line in which a tool says why it failed."""
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return next(
        (line for line in lines if "error" in line.lower()), lines[0] if lines else f"exit code {done.returncode}"
    )


class Program:
    """A running program. It ends at the end of its input, also if this process is killed."""

    def __init__(self, process: "subprocess.Popen[str]", replies: IO[str], orders: IO[str]) -> None:
        """Wait until the program is ready."""
        self._process, self._replies, self._orders = process, replies, orders
        self._line()

    def pair(self, count: int) -> tuple[float, float]:
        """Return the seconds and the processor seconds of one uncontended pair."""
        taken, worked = map(float, self._reply(f"pair {count}"))
        return taken, worked

    def hot(self, seconds: float) -> tuple[int, list[int]]:
        """Return the overlaps and the grants of each contender in a period."""
        overlaps, *grants = map(int, self._reply(f"hot {seconds}"))
        return overlaps, grants

    def _reply(self, order: str) -> list[str]:
        print(order, file=self._orders, flush=True)
        return self._line().split()

    def _line(self) -> str:
        line = self._replies.readline()
        if not line:
            message = f"{self._process.args!r} ended with exit code {self._process.wait()}"
            raise RuntimeError(message)
        return line


@contextmanager
def started(built: Built, address: Address, contenders: int) -> Generator[Program]:
    """Start a program with so many contenders, and end it."""
    words = [*built.command, f"{address[0]}:{address[1]}", str(contenders)]
    with subprocess.Popen(words, cwd=built.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        try:
            yield Program(process, process.stdout, process.stdin)
        finally:
            process.kill()
