"""An app on several real workers of uvicorn, which are killed: what shall run on one of them does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

import tenure
from tests.faults.metronome import Metronome
from tests.frameworks.workers import TTL
from tests.hazards.helpers import TEST_TIMEOUT, eventually
from tests.servers.ports import reserve

TICKS = 60
STARTED = 120.0
"""Within how many seconds the workers have started: most of it is for imports, on a busy machine."""
SLACK = 1.0
"""Within how many seconds after the ttl another worker leads."""


@dataclass
class Note:
    """One line of a worker."""

    what: str
    pid: int
    at: float


class Site:
    """An app that runs, and what its workers have noted."""

    def __init__(self, process: subprocess.Popen[bytes], notes: Path, address: str) -> None:
        self.process, self.address = process, address
        self._notes = notes

    def notes(self, what: str) -> list[Note]:
        """Return the notes of a kind, in their order."""
        lines = self._notes.read_text("utf-8").splitlines() if self._notes.exists() else []
        found = [Note(word, int(pid), float(at)) for word, pid, at in map(str.split, lines)]
        return sorted((each for each in found if each.what == what), key=lambda each: each.at)

    def leader(self) -> int:
        """Return the process that has noted last that it leads."""
        return self.notes("leads")[-1].pid


@contextmanager
def serving(url: str, space: str, folder: Path, workers: int) -> Generator[Site]:
    """Run the app."""
    port, notes = reserve(), folder / "notes"
    command = [sys.executable, "-m", "uvicorn", "tests.frameworks.workers:app", f"--port={port.port}"]
    environment = os.environ | {"TENURE_URL": url, "SPACE": space, "NOTES": str(notes)}
    with (folder / "log").open("wb") as log:
        command += [f"--workers={workers}"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        site = Site(process, notes, f"http://127.0.0.1:{port.port}")
        eventually(lambda: bool(site.notes("leads")), "a leader", STARTED)
        yield site
        process.terminate()
        assert process.wait(TEST_TIMEOUT) in {0, -signal.SIGTERM}, (folder / "log").read_text("utf-8")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its workers
        process.wait()
        port.give_up()


def test_a_second_request_right_after_the_response_is_granted(tmp_path: Path) -> None:
    """A caller that pays the same order again, as soon as it has the answer, does not find it busy."""
    with serving(f"sqlite://{tmp_path}/locks.db", "orders", tmp_path, 1) as site, httpx.Client() as browser:
        answers = [browser.post(f"{site.address}/orders/7") for _ in range(30)]
    assert [each.status_code for each in answers] == [200] * 30


def kill_leader(site: Site) -> None:
    """Kill the leader in the middle of a second, when no tick runs, and wait for the next one."""
    time.sleep((1.6 - time.time() % 1) % 1)
    killed = site.leader()
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: site.leader() != killed, "another leader")


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_workers_that_are_killed_are_followed_and_no_tick_is_missed_or_doubled(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, space: str, metronome: Metronome
) -> None:
    """Of four workers: one leads at a time, another one within the ttl and a second, and each tick runs once."""
    sqlite = f"sqlite://{tmp_path}/locks.db"
    url = sqlite if store == "sqlite" else f"{request.getfixturevalue('redis_server').url}?guard=off"
    ticks: dict[int, float] = {}
    with tenure.Client(url, namespace=space) as client:

        def look() -> None:
            runs = [run for job in client.jobs() if job.name == "tick" for run in job.runs]
            ticks.update((int(run.at.timestamp()), run.took) for run in runs)
            assert len({int(run.at.timestamp()) for run in runs}) == len(runs), "a tick ran twice in its window"

        with serving(url, space, tmp_path, 4) as site:
            kills = 0
            while len(ticks) <= TICKS:
                if len(ticks) > 15 * (kills + 1):
                    kill_leader(site)
                    kills += 1
                time.sleep(0.5)
                look()
            leads = site.notes("leads")
        look()
    ticked = site.notes("ticks")
    changes = [(one, other) for one, other in pairwise(leads) if one.pid != other.pid]
    assert len(changes) == kills == 3, "two workers lead at a time, or a worker lost its lease"
    for one, other in changes:
        assert other.at - one.at - metronome.missed(one.at, other.at) < TTL + SLACK
    windows = range(min(ticks), max(ticks) + 1)
    missed = set(windows) - set(ticks)
    assert not missed or metronome.missed(ticked[0].at, ticked[-1].at) > 0.5, missed
    assert len(ticked) == len(ticks), "a tick was noted twice, or not at all"
    assert len({each.pid for each in ticked}) > 1
