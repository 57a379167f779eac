"""The metronome reports the stalls of the machine, and no other delays."""

import random

import pytest

from tenure.runtimes.clocks import steady
from tests.faults.metronome import LATE, TICK, Metronome
from tests.servers import wait_until

LONG = 0.3
"""For how many seconds all other threads are blocked, at least."""


def keep_all_from_running(least: float) -> tuple[float, float]:
    """Block all other threads for so long; return the start and the end."""
    size = 100_000
    while True:
        numbers = [random.random() for _ in range(size)]
        since = steady()
        numbers.sort()  # one instruction of the interpreter, however long it takes
        until = steady()
        if until - since >= least:
            return since, until
        size *= 2


def test_it_notices_that_nothing_could_run() -> None:
    """The metronome reports the duration of a stall, nearly."""
    with Metronome() as metronome:
        since, until = keep_all_from_running(LONG)
        wait_until(lambda: metronome.missed(since, until) >= until - since - TICK - LATE, "a beat that is late")
        assert metronome.missed(since, until) <= until - since


@pytest.mark.parametrize(
    ("begin", "end", "missed"), [(0.0, 1.0, 0.0), (0.0, 3.0, 1.0), (2.5, 2.75, 0.25), (0.0, 9.0, 3.0), (7.0, 9.0, 0.0)]
)
def test_only_what_lies_between_counts(begin: float, end: float, missed: float) -> None:
    """Ticks that were missed before or after the two instants do not count."""
    metronome = Metronome()
    metronome._late = [(2.0, 3.0), (4.0, 6.0)]
    assert metronome.missed(begin, end) == missed
