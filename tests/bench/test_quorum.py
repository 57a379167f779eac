"""What the benchmarks of the quorum count is counted right, and what is not installed is left out aloud."""

import sys
from collections import deque
from pathlib import Path

import pytest

from bench.contenders import clock
from bench.harness import Report
from bench.page import page
from bench.redis import apart
from bench.redis.apart import AIOREDLOCK, PINS, REDLOCK_NG
from bench.redis.nodes import able
from bench.redis.quorum_hot import Share, contend, overlaps
from bench.redis.redlocks import AWAITED, BLOCKING, KEYS, MEANINGS, SENT, THREADS, Insistent, url_of


class Grudging:
    """A lock that is had only each other time."""

    def __init__(self) -> None:
        self.answers = deque([False, True])
        self.released = 0

    def acquire(self, timeout: float) -> bool:
        """Be had or not."""
        self.answers.rotate()
        return self.answers[0]

    def release(self) -> None:
        """Count."""
        self.released += 1


def test_overlaps_are_seen() -> None:
    """A stretch that begins before any earlier one has ended is one; touching is none."""
    assert overlaps([]) == 0
    assert overlaps([(2.0, 3.0), (0.0, 1.0), (1.0, 2.0)]) == 0
    assert overlaps([(0.0, 9.0), (1.0, 2.0), (3.0, 4.0), (9.0, 10.0)]) == 2


def test_failures_are_counted_as_waits() -> None:
    """Who gave up has waited, but was not granted anything, and releases nothing."""
    grudging = Grudging()
    share = contend(grudging, 0.0, clock() + 0.02)
    assert isinstance(share, Share)
    assert share.failures > 0
    assert share.grants <= len(share.held) == grudging.released
    assert len(share.waits) == share.failures + len(share.held)


def test_a_peer_that_gives_up_is_asked_again_until_the_timeout() -> None:
    """It gets as long as all others do."""
    asked = iter([None, False, "held"])
    let_go: list[object] = []
    lock = Insistent(lambda: next(asked), let_go.append)
    assert lock.acquire(10.0)
    lock.release()
    assert let_go == ["held"]
    assert not Insistent(lambda: None, let_go.append).acquire(0.0)


def test_every_contender_is_described() -> None:
    """It has a meaning and commands, and every peer a key by which what it leaves behind is found."""
    contenders = set(BLOCKING) | set(AWAITED)
    assert contenders <= set(MEANINGS)
    assert contenders <= set(SENT)
    assert {label for label in contenders if not label.startswith("tenure")} == set(KEYS)


def test_url_of_nodes() -> None:
    """One node is a plain store, several are a quorum."""
    nodes = ["redis://127.0.0.1:1/0", "redis://127.0.0.1:2/0", "redis://127.0.0.1:3/0"]
    assert url_of(nodes[:1]) == nodes[0]
    assert url_of(nodes) == "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?guard=observed"


def test_what_is_not_installed_is_left_out_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both faces of redlock-ng go, and the report says so once; what is there is named with its client."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    apart.folder(AIOREDLOCK).mkdir(parents=True)
    labels, notes = able([THREADS, REDLOCK_NG, "redlock-ng asyncio", AIOREDLOCK])
    assert labels == [THREADS, AIOREDLOCK]
    assert notes == [apart.lacking(REDLOCK_NG)]
    assert apart.versions() == ["aioredlock 0.7.3 with aioredis 1.3.1"]


def test_a_process_that_has_imported_a_client_is_no_place_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a peer would be measured with a client that is not its own."""
    monkeypatch.setitem(sys.modules, "redis", sys)
    before = list(sys.path)
    with pytest.raises(RuntimeError, match="fresh process"):
        apart.enter(REDLOCK_NG)
    assert sys.path == before


def test_what_cannot_be_installed_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says so and goes on, and no half of it is taken for the whole."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    apart.main()
    assert not any(map(apart.is_there, PINS))


def test_notes_are_shown() -> None:
    """On the terminal, on the page and for machines."""
    report = Report("pair", "a pair", [], notes=["it rained"])
    assert str(report).splitlines()[-1] == "NOTE: it rained"
    assert page([report], "", "", quick=False).splitlines()[-3:] == ["Notes:", "", "- It rained."]
    assert report.to_json()["notes"] == ["it rained"]
