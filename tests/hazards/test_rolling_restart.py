"""A rolling restart under load: four workers are replaced by SIGTERM, one by one, while all work under one lock."""

import mmap
import os
import signal
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

import tenure
from tenure.runtimes.clocks import steady
from tests.faults.metronome import Metronome
from tests.hazards.helpers import TEST_TIMEOUT, Script, eventually

WORKERS = 4

ALLOWED = 0.1
"""How much longer than without a restart a waiter may wait for a free name because of one, in seconds."""

BOARD = struct.Struct("=qqq")
"""Who is at work, jobs done, jobs begun."""

ASKED = struct.Struct("=q")
"""Behind it: the process whose next job shall be a long one; that job takes it back."""

WORKER = """
import mmap, os, struct, sys, threading, time, tenure
from tenure.runtimes.clocks import steady
url, path = sys.argv[1:3]
with open(path, "r+b") as file:
    board = mmap.mmap(file.fileno(), 0)
form, asked = struct.Struct("=qqq"), struct.Struct("=q")
log = os.open(path + ".log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
client = tenure.Client(url)
{release}

def work():
    try:
        while True:
            with client.lock("job", ttl=60) as lease:
                began = steady()
                holder, done, begun = form.unpack_from(board)
                assert holder == 0, f"{{holder}} is at work as well"
                form.pack_into(board, 0, os.getpid(), done, begun + 1)
                long = asked.unpack_from(board, form.size) == (os.getpid(),)
                if long:
                    asked.pack_into(board, form.size, 0)
                time.sleep(0.5 if long else 0.003)
                lease.check()
                form.pack_into(board, 0, 0, done + 1, begun + 1)
                os.write(log, f"{{began}} {{steady()}}\\n".encode())
    except tenure.Stopped:
        pass

workers = [threading.Thread(target=work) for _ in range(2)]
for each in workers:
    each.start()
print("ready", flush=True)
for each in workers:
    each.join()
time.sleep(60)  # SIGTERM ends the main thread, once the client is drained
"""

GOOD = "tenure.release_on_sigterm(client, timeout=30)"
BUGS = {
    "it is killed by the signal": "",
    "its holder is not waited for": "tenure.release_on_sigterm(client, timeout=0)",
}


class Board:
    """What the workers share: they write here only while they hold the lock."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        path.write_bytes(bytes(BOARD.size + ASKED.size))
        self._log = path.with_name(path.name + ".log")
        file = stack.enter_context(path.open("r+b"))
        self._board = stack.enter_context(mmap.mmap(file.fileno(), 0))
        self.patience = TEST_TIMEOUT

    def read(self) -> tuple[int, int, int]:
        """Return who is at work, and how many jobs are done and begun."""
        return BOARD.unpack_from(self._board)

    def await_long_job(self, pid: int) -> None:
        """Wait until a process is at the beginning of a long job."""
        ASKED.pack_into(self._board, BOARD.size, pid)
        eventually(lambda: ASKED.unpack_from(self._board, BOARD.size) == (0,), "a long job")

    def waits(self) -> list[tuple[float, float]]:
        """Return from when to when the name was free, though there were waiters: between two jobs."""
        lines = self._log.read_text().splitlines()
        jobs = sorted((float(began), float(ended)) for began, _, ended in (each.partition(" ") for each in lines))
        return [(ended, began) for (_, ended), (began, _) in pairwise(jobs)]

    def work_on(self, jobs: int = 60) -> None:
        """Wait until so many more jobs are done."""
        before = self.read()[1]
        eventually(lambda: self.read()[1] >= before + jobs, "some work", self.patience)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    """Make a board."""
    with ExitStack() as stack:
        yield Board(tmp_path / "board", stack)


def start(release: str, url: str, tmp_path: Path) -> Script:
    """Start a worker, and wait until it works."""
    script = Script(WORKER.format(release=release), url, str(tmp_path / "board"))
    assert script.hear() == "ready"
    return script


Restart = tuple[float, float, int | None, str]
"""When SIGTERM was sent to a worker, when it had ended, its status, and what it said."""


def restart(board: Board, tmp_path: Path, release: str = GOOD) -> list[Restart]:
    """Replace all workers one by one, each in the middle of a job; return how the old ones have ended."""
    url = f"sqlite://{tmp_path}/locks.db"
    with ExitStack() as stack:
        workers = [start(release, url, tmp_path) for _ in range(WORKERS)]
        for each in workers:
            stack.callback(each.kill)
        board.work_on()
        ended: list[Restart] = []
        for old in list(workers):
            new = start(GOOD, url, tmp_path)
            stack.callback(new.kill)
            workers.append(new)
            workers.remove(old)
            board.work_on(20)
            board.await_long_job(old.pid)
            sent = steady()
            os.kill(old.pid, signal.SIGTERM)
            said = "".join(old.end())
            ended.append((sent, steady(), old.status, said))
            board.work_on(20)
        for each in workers:
            os.kill(each.pid, signal.SIGTERM)
        for each in workers:
            each.end()
        with tenure.Client(url) as client:
            assert not client.names()
        return ended


def in_order(ended: list[Restart]) -> bool:
    """Return whether each worker has ended by the signal, without a word."""
    return [(status, said) for _, _, status, said in ended] == [(128 + signal.SIGTERM, "")] * WORKERS


def test_no_waiter_waits_for_a_worker_that_is_restarted(board: Board, tmp_path: Path, metronome: Metronome) -> None:
    """Two never work at once, no job that was begun is lost, and the restart is no reason to wait.

    The wait is measured where one waits: from the end of a job to the beginning of the next one, by the clock of the
    machine. For so long the name was free, and there was always a waiter. The longest wait while a worker ends is
    compared with the longest at other times, when the machine is as busy. Without the drain it is a minute, the ttl.
    """
    ended = restart(board, tmp_path)
    holder, done, begun = board.read()
    assert (holder, done) == (0, begun), "every job that was begun is done"
    assert in_order(ended), ended
    meanwhile, otherwise = [0.0], [0.0]
    for since, until in board.waits():
        because = any(since < at and until > sent for sent, at, _, _ in ended)
        (meanwhile if because else otherwise).append(until - since - metronome.missed(since, until))
    assert max(meanwhile) <= max(otherwise) + ALLOWED


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_other_ends_are_found(bug: str, board: Board, tmp_path: Path) -> None:
    """A worker that ends in another way leaves its job undone, and the others wait for its lease."""
    board.patience = 10
    with pytest.raises(AssertionError, match="some work"):
        restart(board, tmp_path, BUGS[bug])
    holder, done, begun = board.read()
    assert holder != 0
    assert done == begun - 1
