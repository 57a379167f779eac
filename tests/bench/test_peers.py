"""Peers in Java and Go: a benchmark talks to their programs, and leaves out those that this machine cannot build."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.contenders import PEER_PROGRAMS
from bench.peers import programs
from bench.peers.programs import (
    CURATOR,
    GO,
    RECIPES,
    Built,
    build,
    build_all,
    started,
)
from bench.servers import REDIS
from tests.servers import EtcdServer, RedisServer

PROGRAM = """
import sys
address, contenders = sys.argv[1:]
print("ready", flush=True)
for line in sys.stdin:
    word, amount = line.split()
    if address == "127.0.0.1:0":
        sys.exit(3)
    if address == "127.0.0.1:2":
        continue
    print("0.5 0.25" if word == "pair" else "1 " + " ".join(amount for _ in range(int(contenders))), flush=True)
"""


def program(folder: Path) -> Built:
    """Return a program that says what the test expects."""
    return Built("peer", "a program", folder, (sys.executable, "-c", PROGRAM))


def test_a_program_is_asked_line_by_line(tmp_path: Path) -> None:
    """It gets its address and its number of contenders, and replies with numbers."""
    with started(program(tmp_path), ("127.0.0.1", 1), 3) as running:
        assert running.pair(10) == (0.5, 0.25)
        assert running.hot(2) == (1, [2, 2, 2])
        process = running._process
        assert process.poll() is None
    assert process.poll() is not None


def test_a_program_that_ends_is_told(tmp_path: Path) -> None:
    """With its exit code."""
    with (
        started(program(tmp_path), ("127.0.0.1", 0), 1) as running,
        pytest.raises(RuntimeError, match="exit code 3"),
    ):
        running.pair(10)


def test_a_program_that_does_not_reply_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for without an end, and is killed."""
    with started(program(tmp_path), ("127.0.0.1", 2), 1) as running:
        monkeypatch.setattr(programs, "REPLYING", 0.05)
        with pytest.raises(TimeoutError, match="no reply within"):
            running.pair(10)


@pytest.mark.parametrize("label", RECIPES)
def test_a_peer_without_its_tools_is_left_out(label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, which names the tools; nothing is built."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (built,) = build_all([label], tmp_path / "peers")
    tools = " and ".join(RECIPES[label].tools)
    assert (built.labels, built.notes) == ([], [f"{label} is left out: it needs {tools}, which this machine lacks"])


def test_a_peer_that_cannot_be_built_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first error that its tool tells."""
    fails = (sys.executable, "-c", "import sys; print('Reading'); sys.exit('[ERROR] no network')")
    broken = replace(RECIPES[CURATOR], tools=(sys.executable,), build=fails)
    monkeypatch.setattr(programs, "RECIPES", {CURATOR: broken})
    built = build(CURATOR, tmp_path / "peer")
    assert built.labels == []
    assert [note.removesuffix("[ERROR] no network") for note in built.notes] == [
        f"{CURATOR} is left out: `{sys.executable}` cannot build it here: "
    ]


def test_the_mutex_of_go_is_measured(etcd_server: EtcdServer, tmp_path: Path) -> None:
    """Its contenders are sessions of one client, and no two hold the mutex; without Go, a note says so."""
    measure(GO, etcd_server.address, tmp_path)


@pytest.mark.parametrize("label", PEER_PROGRAMS[REDIS])
def test_locks_of_redis_in_other_languages_are_measured(label: str, redis_server: RedisServer, tmp_path: Path) -> None:
    """Their contenders share one client, and no two hold the lock; without Go or Maven, a note says so."""
    measure(label, redis_server.address, tmp_path)


def measure(label: str, address: tuple[str, int], folder: Path) -> None:
    """Build a peer, and let it count."""
    built = build(label, folder / "peer")
    if not built.labels:
        assert "is left out" in built.notes[0]
        return
    with started(built, address, 3) as running:
        seconds, client = running.pair(5)
        assert seconds > 0
        assert client >= 0
        overlaps, grants = running.hot(0.5)
        assert overlaps == 0
        assert len(grants) == 3
