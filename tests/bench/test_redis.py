"""The bounds of the benchmarks of Redis: each compares what it says, and a figure beyond it is a missed bound."""

import pytest

from bench.contest import Share
from bench.harness import Case
from bench.peers.programs import RUEIDISLOCK
from bench.redis import handoff, hot, pair
from bench.redis.contenders import PROGRAMS, REDIS_LOCK, REDIS_PY, THREADS
from bench.redis.floor import MINIMAL, OWN


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [
        (1.0, {OWN: True, MINIMAL: True, RUEIDISLOCK: True, REDIS_PY: True}),
        (1.1, {OWN: True, MINIMAL: True, RUEIDISLOCK: False, REDIS_PY: False}),
        (1.45, {OWN: False, MINIMAL: True, RUEIDISLOCK: False, REDIS_PY: False}),
        (1.6, {OWN: False, MINIMAL: False, RUEIDISLOCK: False, REDIS_PY: False}),
    ],
)
def test_a_pair_is_compared_with_floors_and_peers(seconds: float, kept: dict[str, bool]) -> None:
    """Within a round: the second one is ten times as slow for all."""
    times = {THREADS: seconds, OWN: 1.0, MINIMAL: 1.0, RUEIDISLOCK: 1.0, REDIS_PY: 3.0}
    found = pair.bounds({label: [each, 10 * each] for label, each in times.items()})
    named = {f"{THREADS} / {label}": each for label, each in kept.items()}
    named[f"{REDIS_PY} / {THREADS}"] = named.pop(f"{THREADS} / {REDIS_PY}")
    assert {bound.text: bound.kept for bound in found} == named


def test_a_pair_has_no_bound_with_a_peer_that_was_left_out() -> None:
    """The others stay."""
    times = {label: [1.0] for label in (THREADS, OWN, MINIMAL, REDIS_PY)}
    assert len(pair.bounds(times)) == 3


@pytest.mark.parametrize(
    ("grants", "kept"), [(18, (True, True, True)), (17, (True, False, True)), (14, (False, False, True))]
)
def test_contending_processes_are_compared_with_two_peers(grants: int, kept: tuple[bool, ...]) -> None:
    """With the fair one and with the unfair one, and among themselves."""
    each = {THREADS: grants, OWN: 20, REDIS_PY: 10, REDIS_LOCK: 5}
    found = {Case(label, 2, 0.0): [contest(count, count)] for label, count in each.items()}
    lock, unfair, _, fair = hot.bounds(found, 2)
    assert (lock.kept, unfair.kept, fair.kept) == kept


@pytest.mark.parametrize(("fewest", "kept"), [(8, True), (7, False)])
def test_no_process_may_be_granted_much_less_than_another(fewest: int, *, kept: bool) -> None:
    """The fewest grants over the most."""
    found = {Case(label, 2, 0.0): [contest(fewest, 10)] for label in (THREADS, OWN, REDIS_PY, REDIS_LOCK)}
    assert hot.bounds(found, 2)[-1].kept is kept


def contest(*grants: int) -> hot.Contest:
    """Return a window in which processes were granted the lock so often."""
    return hot.Contest([Share(each, [0.1]) for each in grants], 1.0, 2.0, 0.0)


@pytest.mark.parametrize(("seconds", "kept"), [(0.4, True), (0.41, False)])
def test_a_hand_off_is_compared_with_that_of_a_peer(seconds: float, *, kept: bool) -> None:
    """By the medians of the rounds."""
    rounds = {THREADS: [[seconds, seconds, 9.0]], REDIS_LOCK: [[1.0, 1.0, 1.0]], handoff.PING: [[0.1]]}
    assert handoff.bound(rounds).kept is kept


def test_commands_of_every_contender_are_counted() -> None:
    """Also of those in other languages: Tenure's commands are counted for a contender without its own."""
    assert {*PROGRAMS, *hot.PEERS} <= set(hot.SENT)
