"""Programs of made-up releases, each a process of its own, as the tests direct them."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import wait_until

TEST_TIMEOUT = 40.0
"""How long to wait for an answer, in seconds. Only a failure uses it up."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release, by the forms that it reads and writes."""

    reads: int
    writes: int


PRESENT = Release(1, 1)
"""This release."""

NEXT = Release(2, 1)
"""One that introduces a form: it reads it, and does not write it yet."""

AFTER = Release(2, 2)
"""The one after it, which writes that form."""


class Refused(Exception):
    """A program's command raised an error: its class and its text."""


class Program:
    """A running program."""

    def __init__(self, release: Release, api_form: str, url: str, source: Path | None) -> None:
        """Start it; `source` is the folder of its code, if that is not the code of the test."""
        path = [str(source)] if source else []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forms.program", str(release.reads), str(release.writes), api_form, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([*path, os.getcwd()])},  # noqa: PTH109 - where tests is
        )
        self._answers: dict[int, Future[Any]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self, command: str, *args: object) -> "Future[Any]":
        """Send a command; its answer is the result."""
        answer = Future[Any]()
        number = len(self._answers)
        self._answers[number] = answer
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([number, command, *args]) + "\n")
        self._process.stdin.flush()
        return answer

    def do(self, command: str, *args: object) -> Any:  # noqa: ANN401 - as the command says
        """Send a command, and return its answer. Raises Refused."""
        return self.begin(command, *args).result(TEST_TIMEOUT)

    def refusal(self, command: str, *args: object) -> str:
        """Return the class and the text of the error of a command, "" if it has none."""
        try:
            self.do(command, *args)
        except Refused as error:
            return str(error)
        return ""

    def end(self) -> None:
        """End the program, which may be done before."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(TEST_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(TEST_TIMEOUT)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, value, text = json.loads(line)
            if text:
                self._answers[number].set_exception(Refused(f"{value}: {text}"))
            else:
                self._answers[number].set_result(value)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Refused("the program has ended"))


class Fleet:
    """The programs of one test, all at one store."""

    def __init__(self, url: str, source: Path | None = None) -> None:
        """Begin without programs. `source` is the folder of their code."""
        self._url = url
        self._source = source
        self._programs: list[Program] = []

    def start(self, release: Release, api_form: str = "threads") -> Program:
        """Start a program."""
        program = Program(release, api_form, self._url, self._source)
        self._programs.append(program)
        return program

    def end(self) -> None:
        """End all programs."""
        for program in self._programs:
            program.end()


def wait_for_waiter(program: Program, name: str, count: int = 1) -> None:
    """Wait until so many waiters stand in a queue, as a program sees it."""
    wait_until(lambda: program.do("inspect", name)[1] >= count, "a waiter")
