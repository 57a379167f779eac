"""Leases that real processes hand over: without a gap, and free after the ttl of an adopter that was killed."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tenure import Client, LeaseLost, LockTimeout
from tests.hazards.helpers import TEST_TIMEOUT

DETACH = """
import sys, tenure
with tenure.Client(sys.argv[1]) as client, client.lock("name", ttl=20) as lease:
    print(lease.token, lease.detach(), flush=True)
"""

NEXT = """
import sys, tenure
with tenure.Client(sys.argv[1]) as client:
    lease = client.adopt(sys.argv[2])
    print(lease.token, lease.detach(), flush=True)
"""

ADOPT = """
import sys, time, tenure
client = tenure.Client(sys.argv[1])
lease = client.adopt(sys.argv[2], 2)
print(lease.token, flush=True)
time.sleep(600)
"""

HAMMER = """
import sys, tenure
with tenure.Client(sys.argv[1]) as client:
    print("ready", flush=True)
    while True:
        lease = client.lock("name", ttl=20).try_acquire()
        if lease is not None:
            print(lease.token, flush=True)
            break
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a store that processes share."""
    return f"sqlite://{tmp_path}/locks.db"


class Processes:
    """Processes that run scripts."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, script: str, *arguments: str) -> "subprocess.Popen[str]":
        """Start a script."""
        process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process

    def run(self, script: str, *arguments: str) -> list[str]:
        """Run a script to its end, and return the words that it printed."""
        output, _ = self.start(script, *arguments).communicate(timeout=TEST_TIMEOUT)
        return output.split()


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Start processes; end them with the test."""
    with ExitStack() as stack:
        yield Processes(stack)


def words(process: "subprocess.Popen[str]") -> list[str]:
    """Return the words of the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().split()


def test_processes_hand_a_lease_over_without_a_gap(url: str, processes: Processes) -> None:
    """While a lease goes from process to process, another one asks for the name all the time, and never gets it."""
    token, handle = processes.run(DETACH, url)
    hammer = processes.start(HAMMER, url)
    assert words(hammer) == ["ready"]
    tokens = [int(token)]
    for _ in range(4):
        token, handle = processes.run(NEXT, url, handle)
        tokens.append(int(token))
    with Client(url) as client:
        lease = client.adopt(handle)
        tokens.append(lease.token)
        assert hammer.poll() is None
        lease.release()
    tokens.append(int(words(hammer)[0]))
    assert tokens == sorted(set(tokens)), "the other process was granted the name after all the others"


def test_the_lease_of_a_killed_adopter_is_free_after_its_ttl(url: str, processes: Processes) -> None:
    """A process that adopts a lease for 2 seconds and is killed keeps the name for no longer than that."""
    _, handle = processes.run(DETACH, url)
    adopter = processes.start(ADOPT, url, handle)
    (token,) = words(adopter)
    adopter.send_signal(signal.SIGKILL)
    adopter.wait(TEST_TIMEOUT)
    with Client(url) as client:
        left = client.inspect("name").holders[0].expires_in
        assert left <= 2
        lease = client.lock("name", ttl=20).acquire(timeout=TEST_TIMEOUT)
        assert lease.token > int(token)
        with pytest.raises(LeaseLost):
            client.adopt(handle)
        lease.release()


def test_a_process_takes_over_from_a_killed_adopter(url: str, processes: Processes) -> None:
    """The handle of a lease whose adopter was killed is adopted again, if that begins before the lease ends."""
    _, handle = processes.run(DETACH, url)
    adopter = processes.start(ADOPT, url, handle)
    (token,) = words(adopter)
    adopter.kill()
    with Client(url) as client:
        with suppress(LockTimeout):
            client.adopt(handle, timeout=0)
        with suppress(LeaseLost):  # this machine stood still for two seconds
            lease = client.adopt(handle)
            assert lease.token > int(token)
            lease.release()
