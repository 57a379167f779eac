"""A fork while a lease of an ordered store lingers or was handed off, at real servers."""

import pytest

from tests.hazards.helpers import Script
from tests.servers import EtcdServer, ZooKeeperServer

BODY = """
import os, sys, threading, time, tenure

def within(condition, seconds=20):
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)

def hand_off(lock, lease):
    taken = []
    thread = threading.Thread(target=lambda: taken.append(lock.acquire(timeout=20)))
    thread.start()
    within(lambda: client.inspect(lock.name).waiters)
    lease.release()
    thread.join()
    return taken[0]

def child(lease):
    try:
        lease.check()
    except tenure.ForkedLeaseError:
        print("inert", flush=True)
    try:
        lease.guard()
    except tenure.ForkedLeaseError:
        print("no guard", flush=True)
    print(kept.try_acquire(), handed.try_acquire(), flush=True)

client = tenure.Client(sys.argv[1])
kept = client.lock("kept", linger=60)
first = kept.acquire()
first.release()
handed = client.lock("handed", linger=60)
leading = handed.acquire()
lease = hand_off(handed, leading)
pid = os.fork()
if pid == 0:
    child(lease)
    client.close()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
lease.check()
print(lease.token - leading.token, flush=True)
within(lambda: not client.inspect("kept").holders)  # the child's try ends the linger
again = kept.acquire()
print(again.token // 1024 > first.token // 1024, flush=True)
client.close()
"""


@pytest.fixture(params=["zookeeper", "etcd"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a server of either kind."""
    server = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(server, ZooKeeperServer | EtcdServer)
    return f"{server.url}/forked"


def test_a_fork_leaves_hand_offs_to_the_parent(url: str) -> None:
    """In the child the lease is inert and nothing is taken up; the parent goes on, and hears of the child's try."""
    script = Script(BODY, url)
    out, errors = script.end()
    assert (out.splitlines(), errors) == (["inert", "no guard", "None None", "7", "1", "True"], "")
