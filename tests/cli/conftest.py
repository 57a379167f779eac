"""What the tests of the command share: a store of their own, and the command as a process."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tenure
from tenure.cli import run_app

TEST_TIMEOUT = 60.0
"""The longest that a test waits for anything, in seconds."""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, asking often; fail if it does not come true."""
    give_up_at = time.monotonic() + TEST_TIMEOUT
    while not condition():
        assert time.monotonic() < give_up_at, f"waited in vain until {what}"
        time.sleep(0.01)


class Command:
    """The tenure command on one store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `tenure ARGUMENTS`."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TENURE_URL": self.url},
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `tenure ARGUMENTS` to its end."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=TEST_TIMEOUT)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def clean_up(self) -> None:
        """End what a failed test left running."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait(TEST_TIMEOUT)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@dataclass
class Done:
    """The status and the output of a command that has ended."""

    status: int
    output: str
    errors: str


@pytest.fixture
def here(
    command: Command, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Done]]:
    """Yield `tenure ARGUMENTS` in this process: most of a short run is the start of an interpreter."""
    monkeypatch.setenv("TENURE_URL", command.url)
    log = logging.getLogger("tenure")
    handlers, propagate = list(log.handlers), log.propagate

    def run(*arguments: str) -> Done:
        capfd.readouterr()
        status = run_app(list(arguments))
        captured = capfd.readouterr()
        return Done(status, captured.out, captured.err)

    yield run
    log.handlers[:], log.propagate = handlers, propagate


def first_line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """Yield the command on a fresh lock file."""
    made = Command(f"sqlite://{tmp_path}/locks.db")
    yield made
    made.clean_up()


@pytest.fixture
def client(command: Command) -> Iterator[tenure.Client]:
    """Yield a client of the same store."""
    with tenure.Client(command.url, owner="the test") as made:
        yield made
