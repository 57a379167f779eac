"""Forks, the end of the interpreter, and a missing driver."""

import subprocess
import sys

from tenure import Client
from tests.hazards.helpers import Script, eventually
from tests.hazards.test_fork import PRELUDE
from tests.servers import PostgresServer

FORK = """
client = tenure.Client(url, namespace="fork", advice=False)
lease = client.lock("name", ttl=20).acquire()
def child():
    assert client.lock("name").try_acquire() is None
    try:
        lease.release()
    except tenure.ForkedLeaseError:
        say("refused")
    with client.lock("childs", timeout=30) as own:
        own.check()
    client.close()
pid = fork(child)
say(wait(pid))
lease.check(); lease.extend()
with client.lock("parents", timeout=30): pass
say(lease.release()); client.close()
"""

WAITER = """
client = tenure.Client(url, namespace="fork", advice=False)
client.names()
out, into = os.pipe()
pid = fork(lambda: (os.close(into), os.read(out, 1)))
say(pid)
client.lock("waited for", ttl=30).acquire()
"""

ENDING = """
client = tenure.Client(url, namespace="fork", advice=False)
lease = client.lock("ending", ttl=30).acquire()
say("held")
"""

HIDDEN = """
import sys
sys.modules["psycopg"] = None
import tenure
try:
    tenure.Client("postgresql://me:s3cret@127.0.0.1/d")
except tenure.TenureError as error:
    print(error)
"""


def kill_a_waiter_with_a_child(onlooker: Client, url: str) -> None:
    """Kill a process that waits and whose child lives: its death is noticed, and the release passes over it."""
    lease = onlooker.lock("waited for", ttl=30).acquire()
    script = Script(PRELUDE + WAITER, url)
    assert int(script.hear())
    eventually(lambda: onlooker.inspect("waited for").waiters, "a waiter")
    script.send(9)
    eventually(lambda: not onlooker.inspect("waited for").waiters[0].alive, "the waiter's death")
    lease.release()
    again = onlooker.lock("waited for").try_acquire()
    assert again is not None
    again.release()
    script.kill()


def test_parent_and_child_use_sessions_of_their_own(postgres_server: PostgresServer) -> None:
    """A child of a fork excludes its parent, cannot release its leases, and leaves its sessions alone."""
    script = Script(PRELUDE + FORK, postgres_server.url)
    out, errors = script.end()
    assert not errors
    assert out.splitlines() == ["refused", "0", "Outcome.RELEASED"]


def test_a_dead_waiter_is_noticed_though_its_child_lives(postgres_server: PostgresServer) -> None:
    """The copy of a listening session that a child has inherited does not make its killed parent look alive."""
    with Client(postgres_server.url, namespace="fork") as client:
        kill_a_waiter_with_a_child(client, postgres_server.url)


def test_the_end_of_the_interpreter_releases(postgres_server: PostgresServer) -> None:
    """A process that ends without closing its client leaves no name held, no session and no message."""
    script = Script(PRELUDE + ENDING, f"{postgres_server.url}?application_name=ending")
    out, errors = script.end()
    assert (out, script.status) == ("held\n", 0), errors
    assert "Traceback" not in errors
    eventually(lambda: not postgres_server.clients("ending"), "the end of its sessions")


def test_a_missing_driver_is_named() -> None:
    """Without psycopg the error says what to install, and repeats nothing of the URL's login."""
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=True, timeout=60)
    assert "psycopg" in done.stdout
    assert "install" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
