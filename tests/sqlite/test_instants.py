"""A step on a lock file takes place at an instant inside its transaction: none that is written later is older."""

# ruff: noqa: ANN401 - each bug replaces a method of any type
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tenure.contracts.messages import AcquireRequest, Granted, ReleaseRequest, Reply
from tenure.stores.sqlite.database import Database
from tenure.stores.sqlite.errors import LockedError
from tenure.table.step import Step

TTL, PAUSE = 3_000_000, 2_000_000


class Two:
    """Two processes at one file. One of them is paused after it has read its clock, and the other acts meanwhile."""

    def __init__(self, path: Path, read: int) -> None:
        """Pause the one after it has read its clock so many times in its turn."""
        self.now = 10**12
        self._reads = read
        self.granted: list[Granted] = []
        """What the other one was granted meanwhile."""
        self._meanwhile: Callable[[], None] | None = None
        self.paused = Database(path, self._paused_clock, self._clock, lambda channel: True)
        self.other = Database(path, self._clock, self._clock, lambda channel: True)
        for database in (self.paused, self.other):
            database.open()

    def close(self) -> None:
        """Close both."""
        for database in (self.paused, self.other):
            database.close()

    def _clock(self) -> int:
        self.now += 1
        return self.now

    def _paused_clock(self) -> int:
        """Read the clock, and be paused."""
        read = self._clock()
        if self._meanwhile is not None:
            self._reads -= 1
        if self._meanwhile is not None and self._reads <= 0:
            self.now += PAUSE
            try:
                self._meanwhile()
            except LockedError:
                pass  # it is our transaction
            else:
                self._meanwhile = None
        return read

    def the_other_acquires_meanwhile(self) -> None:
        """Have the other one get the name as soon as the first has read its clock, and is not in a transaction."""

        def acquire() -> None:
            reply = self.other.step("name", lambda step: step.acquire(ask("other")))[0]
            assert isinstance(reply, Granted)
            self.granted.append(reply)

        self._meanwhile = acquire

    def check(self) -> None:
        """Look whether the lease of the other one, if it was not locked out, is kept for as long as it was granted."""
        [holder] = self.other.look("name").state.holders
        assert [holder.token] == [granted.token for granted in self.granted] or holder.request_id == "paused"
        assert holder.expires_at >= holder.granted_at + TTL, "a lease was cut short by a step older than its grant"


def ask(request_id: str) -> AcquireRequest:
    """Ask, without a place in the queue."""
    return AcquireRequest("name", request_id, "", request_id, TTL, TTL // 8, TTL, wait=False)


def acquire(two: Two) -> None:
    """Ask for a name that nobody has used."""
    two.the_other_acquires_meanwhile()
    two.paused.step("name", lambda step: step.acquire(ask("paused")))


def acquire_again(two: Two) -> None:
    """Ask for a name whose state is known from before, and is not what it was."""

    def turn(operation: Callable[[Step], object]) -> Any:
        return two.paused.step("name", operation)[0]

    reply: Reply = turn(lambda step: step.acquire(ask("first")))
    assert isinstance(reply, Granted)
    turn(lambda step: step.release(ReleaseRequest("name", "first", reply.token)))
    two.the_other_acquires_meanwhile()
    turn(lambda step: step.acquire(ask("paused")))


def acquire_among_others(two: Two) -> None:
    """Ask for a name in a turn that may be about several."""
    two.the_other_acquires_meanwhile()
    two.paused.steps(lambda steps: steps.on("name").acquire(ask("paused")))


TURNS = [acquire, acquire_again, acquire_among_others]


def play(folder: Path, turn: Callable[[Two], None], read: int) -> None:
    """Have a process be paused in its turn."""
    two = Two(folder / "locks.db", read)
    try:
        turn(two)
        two.check()
    finally:
        two.close()


@pytest.mark.parametrize("read", [1, 2])
@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.__name__)
def test_a_process_that_is_paused_after_it_read_its_clock_cuts_no_lease_short(
    turn: Callable[[Two], None], read: int, tmp_path: Path
) -> None:
    """Its step is taken at an instant that it reads when nobody else can write any more."""
    play(tmp_path, turn, read)


@contextmanager
def reading_before(method: str) -> Generator[None]:
    """Plant a method that reads the clock once, before its transaction."""
    original = getattr(Database, method)

    def changed(self: Database, *args: Any) -> Any:
        read = self._clock()
        with patch.object(self, "_clock", lambda: read):
            return original(self, *args)

    with patch.object(Database, method, changed):
        yield


@pytest.mark.parametrize(
    ("method", "turn", "read"),
    [
        ("step", acquire, 1),
        ("step", acquire_again, 1),
        ("steps", acquire_among_others, 1),
        ("_step_slowly", acquire, 2),
        ("_transact", acquire_among_others, 2),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_clock_that_is_read_too_early_is_noticed(
    method: str, turn: Callable[[Two], None], read: int, tmp_path: Path
) -> None:
    """Read before the transaction, it is older than what others wrote since."""
    with reading_before(method), pytest.raises(AssertionError, match="cut short"):
        play(tmp_path, turn, read)
