"""The programs of peers in other languages: a benchmark builds them in its own folder, and leaves out what it can't.

A program is started with the address of a server and the number of its contenders, which share one client. It warms up,
and prints `ready`. Then it replies with a line of numbers to each line that it reads, until the end of its input:

| line | reply |
|---|---|
| `pair COUNT` | the seconds and the processor seconds of one uncontended pair of acquire and release |
| `hot SECONDS` | the overlaps, then the grants of each contender: all want one lock, and hold it for no time |

`go` and `java` each have a part that does so for every peer, and a small program for each, which opens its locks.
"""

import os
import select
import shutil
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SOURCES = Path(__file__).parent
BUILDING = 300.0
"""How long a build may take, in seconds: the first one downloads what the program needs."""
REPLYING = 60.0
"""How long a program may take to start or to reply, in seconds."""

CURATOR = "Curator InterProcessMutex"
GO = "Go concurrency.Mutex"
RUEIDISLOCK = "rueidislock"
REDISSON = "Redisson RLock"

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


def _by_maven(label: str, peer: str, meaning: str) -> Recipe:
    """Return the recipe of a class in Java, which is also the name of its profile in pom.xml."""
    build = ("mvn", "-q", "-B", f"-Dpeer={peer}", "compile", "dependency:copy-dependencies", "-DincludeScope=runtime")
    start = ("java", "-cp", "target/classes:target/dependency/*", peer)
    return Recipe(label, meaning, "java", ("mvn", "java"), build, start, {})


def _by_go(label: str, peer: str, meaning: str) -> Recipe:
    """Return the recipe of a package in Go."""
    environment = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    return Recipe(label, meaning, "go", ("go",), ("go", "build", "-o", "peer", f"./{peer}"), ("./peer",), environment)


RECIPES = {
    recipe.label: recipe
    for recipe in (
        _by_maven(CURATOR, "Curator", "InterProcessMutex of Apache Curator 5.9.0 for Java, one for each thread"),
        _by_go(GO, "etcd", "concurrency.Mutex of etcd's client 3.5.35 for Go, with a session for each goroutine"),
        _by_go(RUEIDISLOCK, "rueidislock", "Locker of rueidis 1.0.79 for Go, one for all goroutines, one key"),
        _by_maven(REDISSON, "Redisson", "RLock of Redisson 4.7.0 for Java, one for all threads"),
    )
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


def build(label: str, folder: Path) -> Built:
    """Build a peer in a new folder."""
    recipe = RECIPES[label]
    if missing := [tool for tool in recipe.tools if shutil.which(tool) is None]:
        return _left_out(recipe, folder, f"it needs {' and '.join(missing)}, which this machine lacks")
    shutil.copytree(SOURCES / recipe.sources, folder)
    try:
        done = subprocess.run(
            recipe.build,
            cwd=folder,
            env={**os.environ, **recipe.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILDING,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _left_out(recipe, folder, f"its build took more than {BUILDING:g} s")
    if done.returncode:
        return _left_out(recipe, folder, f"`{recipe.tools[0]}` cannot build it here: {_reason(done)}")
    return Built(recipe.label, recipe.meaning, folder, recipe.start)


def build_all(labels: Sequence[str], folder: Path) -> list[Built]:
    """Build several peers, each in a folder of its own."""
    return [build(label, folder / str(number)) for number, label in enumerate(labels)]


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
        if not select.select([self._replies], [], [], REPLYING)[0]:
            message = f"{self._process.args!r} gave no reply within {REPLYING:g} s"
            raise TimeoutError(message)
        line = self._replies.readline()
        if not line:
            message = f"{self._process.args!r} ended with exit code {self._process.wait()}"
            raise RuntimeError(message)
        return line


@contextmanager
def started(built: Built, address: tuple[str, int], contenders: int) -> Generator[Program]:
    """Start a program with so many contenders, and end it."""
    words = [*built.command, f"{address[0]}:{address[1]}", str(contenders)]
    with subprocess.Popen(words, cwd=built.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101
        try:
            yield Program(process, process.stdout, process.stdin)
        finally:
            process.kill()
