"""Real processes that want several names, and leaders that are killed or stopped."""

import signal
from itertools import takewhile
from pathlib import Path

import pytest

from tenure import AsyncClient, Client, Leader
from tenure.runtimes import clocks
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, Script, eventually

COUNT = """
import pathlib, random, sys, tenure
url, folder, names, seed = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3].split(), int(sys.argv[4])
chance = random.Random(seed)
with tenure.Client(url) as client:
    for _ in range(40):
        mine = chance.sample(names, chance.randint(1, len(names)))
        with client.multilock(mine, ttl=20, timeout=60):
            read = {name: int((folder / name).read_text()) for name in mine}
            for name in mine:
                (folder / name).write_text(str(read[name] + 1))
                print(name)
"""

LEAD = """
import sys, tenure
client = tenure.Client(sys.argv[1], owner=sys.argv[3])
election = client.election("boss", ttl=float(sys.argv[2]))
term = election.campaign(sys.argv[3])
print(term.token, flush=True)
sys.stdin.readline()
print("leads" if election.is_leader else "does not lead", flush=True)
print(election.resign().name, flush=True)
client.close()
"""

TAKE = """
import sys, tenure
client = tenure.Client(sys.argv[1])
lease = client.multilock(["a", "b", "c"], ttl=float(sys.argv[2])).acquire()
print("held", flush=True)
sys.stdin.readline()
print("lost" if lease.lost.is_set() else "held", flush=True)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a lock file of the test's own."""
    return f"sqlite://{tmp_path}/locks.db"


def test_processes_that_want_overlapping_names_count_exactly(url: str, tmp_path: Path) -> None:
    """Processes that name overlapping names in opposite orders never deadlock, and lose no update of any of them."""
    names = ["a", "b", "c", "d"]
    for name in names:
        (tmp_path / name).write_text("0")
    orders = (names, names[::-1], ["b", "d", "a"])
    scripts = [Script(COUNT, url, str(tmp_path), " ".join(order), str(seed)) for seed, order in enumerate(orders)]
    said = [script.end() for script in scripts]
    assert [errors for _, errors in said] == [""] * len(scripts)
    done = "".join(out for out, _ in said).split()
    assert len(done) > 120
    assert {name: int((tmp_path / name).read_text()) for name in names} == {name: done.count(name) for name in names}


def test_a_killed_holder_of_several_names_gives_all_of_them_back(url: str) -> None:
    """When a process is killed that held several names, all of them are free when its leases end."""
    with Client(url) as client:
        script = Script(TAKE, url, "0.5")
        assert script.hear() == "held"
        script.kill()
        with client.multilock(["c", "b", "a"], timeout=TEST_TIMEOUT) as lease:
            lease.check()


def test_a_killed_waiter_for_several_names_gives_back_what_it_held(url: str) -> None:
    """A process that is killed while it waits for one name frees those that it held already, within their ttl."""
    with Client(url) as client:
        held = client.lock("b", ttl=20).acquire()
        script = Script(TAKE, url, "3")  # which a starved process can keep
        eventually(lambda: client.inspect("b").waiters and client.inspect("a").holders, "waiting")
        script.kill()
        with client.lock("a", timeout=TEST_TIMEOUT):
            held.check()
        held.release()
        with client.multilock(["a", "b", "c"], timeout=0):
            pass


def test_a_killed_leader_is_followed(url: str) -> None:
    """The next candidate leads when the lease of a killed leader has ended; observers see it."""
    with Client(url) as client:
        seen = client.election("boss").observe(TEST_TIMEOUT, interval=0.02)
        assert next(seen) is None
        leader = Script(LEAD, url, "0.5", "first")
        first = int(leader.hear())
        leader.kill()
        follower = Script(LEAD, url, "20", "second")
        second = int(follower.hear())
        assert second > first
        changes = list(takewhile(lambda change: change != Leader("second", "second", second), seen))
        assert all(change in {None, Leader("first", "first", first)} for change in changes)
        follower.say()
        assert follower.end()[0] == "leads\nRELEASED\n"


def test_a_silent_leader_is_followed_within_50_ms_of_its_end() -> None:
    """The next candidate leads when the lease of a silent leader ends, and no earlier; observers see both."""

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source) as client, AsyncClient(store=source) as other:
            seen = other.election("boss").observe(TEST_TIMEOUT, interval=0.02)
            assert await anext(seen) is None
            first, led_at = await client.election("boss", ttl=20).campaign("first"), clocks.steady()
            client.session().renewer.discard(first._core)  # from now on it is silent
            assert await anext(seen) == Leader(client.session().owner, "first", first.token)
            second = await other.election("boss").campaign("second")
            assert 20 <= clocks.steady() - led_at <= 20.05
            assert await anext(seen) == Leader(other.session().owner, "second", second.token)
            assert not (await first.release()).kept
            await second.release()

    virtual.run(main)


def test_a_stopped_leader_finds_out_that_it_does_not_lead(url: str) -> None:
    """A leader that was stopped past its ttl is followed, and does not lead from the moment that it runs again."""
    with Client(url) as client:
        leader = Script(LEAD, url, "0.3", "stopped")
        old = int(leader.hear())
        leader.send(signal.SIGSTOP)
        with client.election("boss", ttl=20).campaign("new", timeout=TEST_TIMEOUT) as term:
            leader.send(signal.SIGCONT)
            leader.say()
            assert leader.end()[0] == "does not lead\nTAKEN_OVER\n"
            assert term.token > old
