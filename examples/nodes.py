"""The helpers of the scenarios: a Node is a process, and a Shelf has the commands from which people write locks.

A scenario is one program. Started with `--node`, the same program is one of its nodes.
"""

import argparse
import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

PATIENCE = 60.0
"""For how many seconds a scenario waits for its nodes at most."""


class Node:
    """A process of a scenario."""

    def __init__(self, facts: dict[str, Any]) -> None:
        """Start it."""
        self._process = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, sys.argv[0], "--node", json.dumps(facts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hears(self, word: str) -> None:
        """Wait until the node prints a line."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        for line in self._process.stdout:
            if line.strip() == word:
                return
        raise SystemExit(f"a node ended before it said {word!r}")

    def begin(self) -> None:
        """Let it begin its work: see `wait_for_the_others`."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill it, as the power failing does."""
        self._process.kill()

    def stop(self) -> None:
        """Let it stand still, as a long pause of its machine does."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def ends(self) -> None:
        """Wait until it has ended."""
        self._process.communicate(timeout=PATIENCE)


def wait_for_the_others() -> None:
    """In a node: wait until the scenario lets it begin."""
    say("ready")
    sys.stdin.readline()


def say(word: str) -> None:
    """Print a line for the scenario to hear."""
    print(word, flush=True)


class Shelf:
    """The commands SETNX, EXPIRE, GET and DEL of a cache, in a file, for the locks that people write by hand."""

    def __init__(self, path: Path) -> None:
        """Open the file."""
        self._data = sqlite3.connect(path, isolation_level=None, timeout=30.0)
        self._data.execute("CREATE TABLE IF NOT EXISTS shelf (name TEXT PRIMARY KEY, value TEXT, ends REAL)")

    def setnx(self, name: str, value: str, ttl: float | None = None) -> bool:
        """Set a key unless it is there; return whether it was set."""
        self._data.execute("DELETE FROM shelf WHERE name = ? AND ends < ?", (name, time.time()))
        ends = None if ttl is None else time.time() + ttl
        return self._data.execute("INSERT OR IGNORE INTO shelf VALUES (?, ?, ?)", (name, value, ends)).rowcount == 1

    def expire(self, name: str, ttl: float) -> None:
        """Have a key vanish after so many seconds."""
        self._data.execute("UPDATE shelf SET ends = ? WHERE name = ?", (time.time() + ttl, name))

    def delete(self, name: str) -> None:
        """Delete a key, whoever has set it."""
        self._data.execute("DELETE FROM shelf WHERE name = ?", (name,))

    def close(self) -> None:
        """Close the file."""
        self._data.close()


@contextmanager
def database(folder: Path) -> Generator[sqlite3.Connection]:
    """Open the scenario's own data; each statement is a transaction, unless one is begun."""
    data = sqlite3.connect(folder / "data.db", isolation_level=None, timeout=30.0)
    try:
        yield data
    finally:
        data.close()


def play(node: Callable[..., None], scene: Callable[[Path, str, str], bool]) -> None:
    """Run a scenario in a new folder, or one of its nodes; exit with 1 if the right version has lost something."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--url", default="", help="the store of the locks; default: a lock file in a new folder")
    parser.add_argument("--node", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        wait_for_the_others()
        node(**json.loads(options.node))
        return
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite://{folder}/locks.db"
        kept = scene(Path(folder), url, f"example-{uuid4().hex[:8]}")
    sys.exit(0 if kept else 1)


@contextmanager
def nodes_of(facts: Sequence[dict[str, Any]], *, together: bool = True) -> Generator[list[Node]]:
    """Start nodes, which begin together or when the scenario says so, and end those that still run at the end."""
    nodes = [Node(each) for each in facts]
    try:
        for each in nodes:
            each.hears("ready")
        for each in nodes if together else ():
            each.begin()
        yield nodes
    finally:
        for each in nodes:
            with suppress(ProcessLookupError):
                each.go_on()
            each.kill()
            each.ends()
