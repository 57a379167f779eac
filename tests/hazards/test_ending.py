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
    lease = client.lock("it", TTL).try_acquire()
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
