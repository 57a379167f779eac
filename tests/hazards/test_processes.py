"""Real processes that are killed, stopped and ended at bad moments, with one lock file."""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tenure import AsyncClient, AsyncLease, Client, Fence, LeaseLost, Outcome, StaleTokenError
from tenure.contracts.store import StoreSource
from tenure.runtimes import clocks
from tenure.stores.sqlite.store import SqliteStore
from tests import virtual
from tests.hazards.helpers import TEST_TIMEOUT, Script, eventually

HOLDER = """
import sys, tenure
from tenure.runtimes import clocks
client = tenure.Client(sys.argv[1], owner="holder")
client.names()
asked_at = clocks.steady()
lease = client.lock("name", ttl=float(sys.argv[2])).acquire()
print(lease.token, asked_at, flush=True)
sys.stdin.readline()
try:
    lease.check(); print("held", flush=True)
except tenure.LeaseLost:
    print("lost", flush=True)
print(lease.release().name, flush=True)
client.close()
"""
WAITER = """
import sys, tenure
client = tenure.Client(sys.argv[1], owner="waiter")
print("ready", flush=True)
client.lock("name", ttl=5).acquire()
print("granted", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a lock file of the test's own."""
    return f"sqlite://{tmp_path}/locks.db"


def test_a_killed_holder_is_followed_when_its_lease_ends(url: str) -> None:
    """The next waiter is granted when the lease of a killed holder ends, and no earlier."""
    with Client(url) as client:
        script = Script(HOLDER, url, "0.5")
        token, asked_at = script.hear().split()
        script.kill()
        with client.lock("name", timeout=TEST_TIMEOUT) as lease:
            assert clocks.steady() >= float(asked_at) + 0.5
            assert lease.token > int(token)


def test_the_next_waiter_is_granted_within_50_ms_of_the_end(tmp_path: Path) -> None:
    """The lease of a silent holder passes at its end from one waiter to the next, and no earlier."""
    path = tmp_path / "locks.db"
    capabilities = SqliteStore.capabilities
    source = StoreSource("sqlite", capabilities, lambda runtime: SqliteStore(runtime, path, virtual.micros))

    async def main() -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(AsyncClient(store=source)) for _ in range(4)]

            async def wait_and_be_silent(client: AsyncClient) -> None:
                leases.append(await client.lock("name", ttl=10).acquire())
                granted_at.append(clocks.steady())
                client.session().renewer.discard(leases[-1]._core)

            leases, granted_at = list[AsyncLease](), list[float]()
            began = clocks.steady()
            await asyncio.gather(*(wait_and_be_silent(client) for client in clients))
            for turn, at in enumerate(granted_at):
                assert 10 * turn <= at - began <= 10 * turn + 0.05
            outcomes = [await lease.release() for lease in leases]
            assert [outcome.kept for outcome in outcomes] == [False, False, False, True]

    virtual.run(main)


def test_a_stopped_holder_finds_out_and_is_fenced_off(url: str) -> None:
    """A holder that was stopped past its ttl is succeeded, learns of it at its next check, and a fence refuses it."""
    with Client(url) as client:
        script = Script(HOLDER, url, "0.3")
        old = int(script.hear().split()[0])
        script.send(signal.SIGSTOP)
        with client.lock("name", timeout=TEST_TIMEOUT) as lease:
            script.send(signal.SIGCONT)
            script.say()
            assert script.end()[0] == "lost\nTAKEN_OVER\n"
            fence = Fence()
            fence.touch(lease.token)
            with pytest.raises(StaleTokenError):
                fence.touch(old)


def test_dead_waiters_form_no_convoy(url: str) -> None:
    """Any number of killed waiters is skipped in the release itself."""
    with Client(url) as client:
        lease = client.lock("name", ttl=20).acquire()
        scripts = [Script(WAITER, url) for _ in range(4)]
        eventually(lambda: len(client.inspect("name").waiters) == 4, "four waiters")
        for script in scripts:
            script.kill()
        lease.release()
        with client.lock("name", timeout=0):
            pass


def test_a_stopped_waiter_is_passed_over(url: str) -> None:
    """A stopped waiter delays the others for no longer than the time after which it counts as dead."""
    with Client(url) as client:
        lease = client.lock("name", ttl=20).acquire()
        script = Script("from tenure.core import attempt; attempt.TEST_TIMEOUT = 300_000\n" + WAITER, url)
        eventually(lambda: client.inspect("name").waiters, "a waiter")
        script.send(signal.SIGSTOP)
        eventually(lambda: not client.inspect("name").waiters[0].alive, "the end of its patience")
        lease.release()
        with client.lock("name", timeout=0):
            pass
        script.kill()


def test_processes_count_exactly(url: str, tmp_path: Path) -> None:
    """Four processes that read, add one and write under the lock lose no update."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    code = """
import pathlib, sys, tenure
counter = pathlib.Path(sys.argv[2])
with tenure.Client(sys.argv[1]) as client:
    for _ in range(50):
        with client.lock("counter"):
            counter.write_text(str(int(counter.read_text()) + 1))
"""
    scripts = [Script(code, url, str(counter)) for _ in range(4)]
    assert [script.end() for script in scripts] == [("", "")] * 4
    assert counter.read_text() == "200"


EXITS = {
    "end of the script": "",
    "sys.exit": "sys.exit(0)",
    "sys.exit in a block": """
with client.lock("other"): sys.exit(0)""",
    "a daemon thread that waits": """
threading.Thread(target=tenure.Client(sys.argv[1]).lock("held").acquire, daemon=True).start()
while not client.inspect("held").waiters: pass""",
    "a daemon thread that works": """
def work():
    while True:
        with client.lock("busy"): pass
threading.Thread(target=work, daemon=True).start()""",
}


@pytest.mark.parametrize("way", EXITS)
def test_a_process_releases_at_its_end(url: str, way: str) -> None:
    """A process that ends in an orderly way, however it does, releases its leases, and does not hang."""
    code = "import sys, threading, tenure\nclient = tenure.Client(sys.argv[1])\n"
    code += "lease = client.lock('name', ttl=60).acquire()\n" + EXITS[way]
    with Client(url) as client, client.lock("held", ttl=60):
        script = Script(code, url)
        _, errors = script.end()
        assert script.status == 0, errors
        assert not client.inspect("name").holders
        assert not client.inspect("held").waiters


def test_an_interrupted_waiter_leaves_the_queue(url: str) -> None:
    """A process that is interrupted during its wait leaves no place in the queue."""
    with Client(url) as client, client.lock("name", ttl=60):
        script = Script(WAITER, url)
        eventually(lambda: client.inspect("name").waiters, "a waiter")
        script.send(signal.SIGINT)
        script.end()
        assert not client.inspect("name").waiters


def test_a_suspended_machine_loses_the_lease_at_once(url: str, tmp_path: Path) -> None:
    """A holder whose clock jumps an hour in a suspend finds the end of its lease at its very next check."""
    control = tmp_path / "jump"
    control.write_bytes((0).to_bytes(8, "little"))
    shim = build_shim(tmp_path)
    if shim is None:  # no compiler here: the same with an injected clock is tested below
        return
    code = "import os, sys\nos.environ.pop('LD_PRELOAD', None)\n" + HOLDER
    previous = os.environ.get("LD_PRELOAD")
    os.environ["LD_PRELOAD"], os.environ["TENURE_TEST_CLOCK"] = str(shim), str(control)
    try:
        script = Script(code, url, "60")
    finally:
        del os.environ["LD_PRELOAD"], os.environ["TENURE_TEST_CLOCK"]
        if previous is not None:
            os.environ["LD_PRELOAD"] = previous
    script.hear()
    control.write_bytes((3_600_000_000_000).to_bytes(8, "little"))
    script.say()
    out, errors = script.end()
    assert out.splitlines()[0] == "lost", errors


def build_shim(folder: Path) -> Path | None:
    """Compile the clock shim, if there is a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    shim = folder / "clockshim.so"
    source = Path(__file__).with_name("clockshim.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(shim), str(source)], check=True)
    return shim


def test_a_clock_that_jumps_loses_the_lease_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with an injected clock: the loss is found without the renewer."""
    client = Client("memory://suspended")
    lease = client.lock("name", ttl=30).acquire()
    lease.check()
    runtime = lease._session.runtime
    monkeypatch.setattr(runtime, "now", lambda: clocks.steady() + 3600)
    with pytest.raises(LeaseLost):
        lease.check()
    assert lease.release() in (Outcome.RELEASED, Outcome.EXPIRED)
    client.close()


def test_the_renewer_works_on_after_a_stop(url: str) -> None:
    """A holder that was stopped for less than its ttl goes on renewing when it continues."""
    with Client(url) as client:
        soon_due = """
lease._core.due_at = clocks.steady() + 0.3
client.session().renewer.moved(lease._core)
client.session().renewer._wake()
print("due", flush=True)
sys.stdin.readline()
"""
        script = Script(HOLDER.replace("sys.stdin.readline()\n", soon_due), url, "20")
        script.hear()
        assert script.hear() == "due"
        script.send(signal.SIGSTOP)
        time.sleep(0.4)  # the pause is the hazard: the renewal falls due in it
        script.send(signal.SIGCONT)

        def renewed() -> bool:
            (holder,) = client.inspect("name").holders
            return holder.held_for + holder.expires_in > 20.1

        eventually(renewed, "a renewal")
        script.say()
        assert script.end() == ("held\nRELEASED\n", "")
