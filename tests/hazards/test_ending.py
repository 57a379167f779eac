"""A process that ends releases its leases: waiters need not wait for the ttl."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import Client
from tests.hazards.helpers import Script

TTL = 1000.0
"""Longer than any test: what is free again was given back."""

PRELUDE = """
import multiprocessing, os, signal, sys, threading, tenure
client = tenure.Client(sys.argv[1])
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # a line in one piece
def hold(name):
    say(client.lock(name, ttl=1000).acquire().token > 0)
    return client
"""

WAIT = """
say("ready")
threading.Event().wait()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a lock file."""
    return f"sqlite://{tmp_path}/locks.db"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """Return the holders of the same file, seen from this process."""
    with Client(url) as client:
        yield client


def ended(url: str, body: str, send: int | None = None) -> tuple[Script, str]:
    """Run a script until a signal ends it; return what it printed after it was ready."""
    script = Script(PRELUDE + body, url)
    if send is not None:
        while script.hear() != "ready":
            assert script.status is None
        script.send(send)
    out, errors = script.end()
    assert "Traceback" not in errors, errors
    return script, out


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_child_of_multiprocessing_releases_its_leases(client: Client, url: str, tmp_path: Path, method: str) -> None:
    """Such a child skips the functions of atexit; its leases are released all the same."""
    script = tmp_path / "program.py"
    script.write_text(
        "import multiprocessing, sys, tenure\n"
        "kept = []\n"
        "def hold(url):\n"
        "    kept.append(tenure.Client(url))\n"
        "    kept.append(kept[0].lock('it', ttl=1000).acquire())\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context(sys.argv[2]).Process(target=hold, args=(sys.argv[1],))\n"
        "    child.start()\n"
        "    child.join()\n"
        "    print(child.exitcode)\n"
    )
    out, errors = (
        runner := Script(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", url, method)
    ).end()
    assert (runner.status, out.strip()) == (0, "0"), errors
    lease = client.lock("it", ttl=TTL).try_acquire()
    assert lease is not None
    assert lease.release()


def test_sigterm_releases_all_leases(client: Client, url: str) -> None:
    """The process ends as by sys.exit(143), and its names are free."""
    script, _ = ended(
        url, "tenure.release_on_sigterm()\nkept = client.lock('it', ttl=1000).acquire()" + WAIT, signal.SIGTERM
    )
    assert script.status == 128 + signal.SIGTERM
    assert client.inspect("it").holders == []


def test_sigterm_leaves_the_with_blocks_of_the_main_thread(client: Client, url: str) -> None:
    """A body ends before the name is free: no other process holds it while the body runs."""
    body = """
tenure.release_on_sigterm()
with client.lock("it", ttl=1000):
    try:
        say("ready")
        threading.Event().wait()
    finally:
        say([view.token > 0 for view in client.inspect("it").holders])
"""
    _, out = ended(url, body, signal.SIGTERM)
    assert out.strip() == "[True]"
    assert client.inspect("it").holders == []


def test_an_existing_handler_is_called_and_decides(client: Client, url: str) -> None:
    """A program with its own SIGTERM handler ends by it, and holds its lock until then."""
    body = """
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
tenure.release_on_sigterm()
with client.lock("it", ttl=1000) as lease:
    say("ready")
    stopping.wait()
    lease.check()
    say("ended by itself")
"""
    script, out = ended(url, body, signal.SIGTERM)
    assert (script.status, out.strip()) == (0, "ended by itself")
    assert client.inspect("it").holders == []


def test_a_signal_that_is_ignored_stays_ignored(client: Client, url: str) -> None:
    """A process that ignores SIGTERM keeps its leases."""
    body = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
tenure.release_on_sigterm()
with client.lock("it", ttl=1000) as lease:
    signal.raise_signal(signal.SIGTERM)
    lease.check()
    say("held")
"""
    script, out = ended(url, body)
    assert (script.status, out.strip()) == (0, "held")


def test_another_thread_is_refused(url: str) -> None:
    """Only the main thread may set handlers, and the error says so."""
    body = """
def call():
    try:
        tenure.release_on_sigterm()
    except tenure.UsageError as error:
        say(error)
thread = threading.Thread(target=call)
thread.start()
thread.join()
"""
    assert "main thread" in ended(url, body)[1]


def test_sigterm_drains_a_client(client: Client, url: str) -> None:
    """Threads that hold a lease end their work, threads that wait are stopped, and then the process ends."""
    body = """
tenure.release_on_sigterm(client, timeout=60)
asked = threading.Event()

def wait():
    try:
        client.lock("it", ttl=1000).acquire()
    except tenure.Stopped:
        say("stopped")

def hold():
    with client.lock("it", ttl=1000, on_revoke=lambda _: asked.set()) as lease:
        holding.set()
        asked.wait()
        waiter.join()
        lease.check()
        say("held to the end")

holding = threading.Event()
holder, waiter = threading.Thread(target=hold), threading.Thread(target=wait)
holder.start()
holding.wait()
waiter.start()
"""
    script, out = ended(url, body + WAIT, signal.SIGTERM)
    assert (script.status, out.split("\n")[:2]) == (128 + signal.SIGTERM, ["stopped", "held to the end"])
    assert client.inspect("it").holders == []


def test_a_handler_before_a_drain_is_called_at_once(client: Client, url: str) -> None:
    """A program with its own handler hears of SIGTERM while its client is drained, and ends by itself."""
    body = """
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
tenure.release_on_sigterm(client, timeout=60)
with client.lock("it", ttl=1000) as lease:
    say("ready")
    stopping.wait()
    lease.check()
    say("ended by itself")
"""
    script, out = ended(url, body, signal.SIGTERM)
    assert (script.status, out.strip()) == (0, "ended by itself")
    assert client.inspect("it").holders == []


def test_a_second_sigterm_ends_at_once(client: Client, url: str) -> None:
    """Whoever does not want to wait for the holders sends the signal again.

    The program looks up now and then: a signal that comes just before a thread blocks wakes nobody in Python.
    """
    body = """
tenure.release_on_sigterm(client, timeout=1000)
with client.lock("it", ttl=1000, on_revoke=lambda _: os.kill(os.getpid(), signal.SIGTERM)):
    say("ready")
    while True:
        threading.Event().wait(0.1)
"""
    script, _ = ended(url, body, signal.SIGTERM)
    assert script.status == 128 + signal.SIGTERM
    assert client.inspect("it").holders == []


def test_sigterm_drains_an_async_client(client: Client, url: str) -> None:
    """The body of a leader is cancelled, other bodies end, and then the process does."""
    body = """
import asyncio

async def lead(client):
    try:
        async with client.election("leader", ttl=1000).campaign():
            await asyncio.sleep(1000)
    except tenure.LeaseLost:
        say("another may lead")

async def main():
    async with tenure.AsyncClient(sys.argv[1]) as client:
        tenure.release_on_sigterm(client, timeout=60)
        leading = asyncio.create_task(lead(client))
        asked = asyncio.Event()
        async with client.lock("it", ttl=1000, on_revoke=lambda _: asked.set()):
            while not (await client.inspect("leader")).holders:
                await asyncio.sleep(0.01)
            say("ready")
            await asked.wait()
            await leading
            say("ended its work")
        await asyncio.sleep(1000)

asyncio.run(main())
"""
    script, out = ended(url, body, signal.SIGTERM)
    assert (script.status, out.strip()) == (128 + signal.SIGTERM, "another may lead\nended its work")
    assert client.inspect("it").holders == client.inspect("leader").holders == []


def test_a_forked_child_ends_by_sigterm(client: Client, url: str) -> None:
    """The thread that drains is not in a child, so the signal ends the child as without clients."""
    body = """
tenure.release_on_sigterm(client, timeout=1000)
with client.lock("it", ttl=1000):
    child = os.fork()
    if not child:
        signal.raise_signal(signal.SIGTERM)
        os._exit(1)
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    script, out = ended(url, body)
    assert (script.status, out.strip()) == (0, str(128 + signal.SIGTERM))


def test_an_async_client_without_a_loop_is_refused(url: str) -> None:
    """It is drained in its event loop, so there must be one."""
    body = """
try:
    tenure.release_on_sigterm(tenure.AsyncClient(sys.argv[1]))
except tenure.UsageError as error:
    say(error)
"""
    assert "event loop" in ended(url, body)[1]


def test_sigterm_in_the_middle_of_any_call_drains(client: Client, url: str) -> None:
    """Signals that come while the main thread acquires and releases all the time lose nothing and block nothing."""
    body = """
tenure.release_on_sigterm(client, timeout=60)
with client.lock("it"):  # opens the store: Python warns of files that are open if it is ended in the middle of that
    say("ready")
try:
    while True:
        with client.lock("it", ttl=1000) as lease:
            lease.check()
except tenure.Stopped:
    say("stopped")
threading.Event().wait()
"""
    for _ in range(5):
        script, out = ended(url, body, signal.SIGTERM)
        assert script.status == 128 + signal.SIGTERM
        assert out.strip() in {"stopped", ""}
        assert client.inspect("it").holders == []
