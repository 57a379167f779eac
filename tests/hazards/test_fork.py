"""A forked child inherits copies of leases, connections and sockets, and none of the threads that serve them."""

import os
from pathlib import Path

import pytest

from tenure import Client
from tests.hazards.helpers import Script, eventually

PRELUDE = """
import asyncio, gc, multiprocessing, os, sys, threading, time, tenure
url = sys.argv[1]
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # a line in one piece
def fork(work):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            say("child failed", repr(error))
        finally:
            os._exit(status)
    return pid
def wait(pid):
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hung"
"""


def run(tmp_path: Path, body: str) -> list[str]:
    """Run a script at a lock file of its own; return the lines that it printed."""
    script = Script(PRELUDE + body, f"sqlite://{tmp_path}/locks.db")
    out, errors = script.end()
    assert script.status == 0, errors
    assert not errors
    return out.splitlines()


def test_a_childs_lock_excludes_after_its_parent_has_closed(tmp_path: Path) -> None:
    """A child that locks after a fork shares one file with all others, whatever its parent closes meanwhile."""
    body = """
client = tenure.Client(url)
before = client.lock("before").acquire()
to_child, from_parent = os.pipe(); to_parent, from_child = os.pipe()
def child():
    first = client.lock("first", ttl=20).acquire()
    os.write(from_child, b"1"); os.read(to_child, 1)
    second = client.lock("second", ttl=20).acquire()
    os.write(from_child, b"2"); os.read(to_child, 1)
    first.check(); second.check(); first.release(); second.release()
pid = fork(child)
os.read(to_parent, 1)
before.release(); client.close()
os.write(from_parent, b"1"); os.read(to_parent, 1)
say("ready"); sys.stdin.readline()
os.write(from_parent, b"2")
say(wait(pid))
"""
    script = Script(PRELUDE + body, f"sqlite://{tmp_path}/locks.db")
    assert script.hear() == "ready"
    with Client(f"sqlite://{tmp_path}/locks.db") as third:
        assert third.lock("first").try_acquire() is None
        assert third.lock("second").try_acquire() is None
    script.say()
    assert script.end() == ("0\n", "")


def test_a_client_with_a_forked_child_can_be_closed(tmp_path: Path) -> None:
    """Closing a client does not wait for the children that have inherited copies of its sockets."""
    body = """
client = tenure.Client(url)
client.lock("name").acquire().release()
out, into = os.pipe()
pid = fork(lambda: os.read(out, 1))
client.close()
say("closed"); os.write(into, b"x"); say(wait(pid))
"""
    assert run(tmp_path, body) == ["closed", "0"]


@pytest.mark.parametrize("keep", ["client = ", ""], ids=["client kept", "client dropped"])
def test_a_lease_is_inert_in_a_child(keep: str, tmp_path: Path) -> None:
    """In a forked child an inherited lease can be neither used nor released, even if its client was dropped."""
    body = f"""
lease = ({keep.replace("= ", ":= ")} tenure.Client(url)).lock("name").acquire()
gc.collect()
def child():
    for act in (lease.check, lease.release, lease.extend):
        try:
            act()
        except tenure.ForkedLeaseError:
            say("refused")
    with lease:
        pass
    assert not lease.remaining() and lease.lost
pid = fork(child)
say(wait(pid))
lease.check(); lease.extend()
say(lease.release())
"""
    assert run(tmp_path, body) == ["refused", "refused", "refused", "0", "Outcome.RELEASED"]


def test_a_block_left_in_a_child_releases_nothing(tmp_path: Path) -> None:
    """A child that leaves its parent's `with` block, or collects its lease, does so in silence and releases nothing."""
    body = """
client = tenure.Client(url)
lock = client.lock("name", ttl=20)
def child():
    raise SystemExit
pid = -1
try:
    with lock as lease:
        pid = os.fork()
        if pid == 0:
            raise ValueError("leave the block")
        say(wait(pid)); lease.check(); say(len(client.inspect("name").holders))
        with tenure.Client(url) as other:
            assert other.lock("name").try_acquire() is None
except ValueError:
    assert pid == 0
    del lease, lock
    gc.collect()
    os._exit(0)
client.close()
"""
    assert run(tmp_path, body) == ["0", "1"]


def test_parent_and_child_exclude_each_other_on_one_client(tmp_path: Path) -> None:
    """The same client object works in the child: there and in the parent, it excludes the other process."""
    body = """
client = tenure.Client(url)
lease = client.lock("parents").acquire()
def child():
    assert client.lock("parents").try_acquire() is None
    mine = client.lock("childs", ttl=20).acquire()
    say("have"); sys.stdin.readline(); mine.release()
    waited = client.lock("parents", timeout=30).acquire()
    say("handed over"); waited.release(); client.close()
pid = fork(child)
while not client.inspect("childs").holders: time.sleep(0.005)
assert client.lock("childs").try_acquire() is None
until = lease._core.valid_until
client.session().renewer.hurry(0.0)
while lease._core.valid_until == until: time.sleep(0.005)  # the parent's renewals go on
say("renewed")
while not client.inspect("parents").waiters: time.sleep(0.005)
lease.release(); say(wait(pid)); client.close()
"""
    script = Script(PRELUDE + body, f"sqlite://{tmp_path}/locks.db")
    assert {script.hear(), script.hear()} == {"have", "renewed"}
    script.say()
    assert script.end() == ("handed over\n0\n", "")


def test_a_fork_while_other_threads_work_leaves_a_child_that_works(tmp_path: Path) -> None:
    """A child can lock although other threads were acquiring and connecting at the fork."""
    body = """
client = tenure.Client(url)
stop = False
def busy(number):
    while not stop:
        with client.lock(f"busy {number}"):
            pass
        if number == 0:
            with tenure.Client(url) as fresh, fresh.lock("fresh"):
                pass
threads = [threading.Thread(target=busy, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
def child():
    with client.lock("childs", timeout=30):
        pass
    with tenure.Client(url) as fresh, fresh.lock("childs too", timeout=30):
        pass
say([wait(fork(child)) for _ in range(15)])
stop = True
for thread in threads: thread.join()
client.close()
"""
    assert run(tmp_path, body) == [str([0] * 15)]


def test_an_asyncio_client_starts_anew_in_a_child(tmp_path: Path) -> None:
    """An AsyncClient of the parent serves a new loop in the child, and its old leases are inert there."""
    body = """
client = tenure.AsyncClient(url)
async def child_main(lease):
    async with client.lock("childs", timeout=30):
        assert await client.lock("name").try_acquire() is None
    try:
        await lease.release()
    except tenure.ForkedLeaseError:
        say("refused")
    await client.close()
async def main():
    lease = await client.lock("name").acquire()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=lambda: (asyncio.set_event_loop(None), asyncio.run(child_main(lease))))
    process.start()
    await asyncio.to_thread(process.join, 30)
    say(process.exitcode); lease.check()
    say(await lease.release()); await client.close()
import warnings; warnings.simplefilter("ignore", DeprecationWarning)
asyncio.run(main())
"""
    assert run(tmp_path, body) == ["refused", "0", "Outcome.RELEASED"]


def test_a_dead_waiter_is_noticed_though_its_child_lives(tmp_path: Path) -> None:
    """A killed waiter is skipped in the release itself, although a child of it has survived."""
    body = """
from tenure.core import attempt
attempt.TEST_TIMEOUT = 3_600_000_000  # one that is only silent counts as alive for long
client = tenure.Client(url, owner="waiter")
client.names()
out, into = os.pipe()
pid = fork(lambda: (os.close(into), os.read(out, 1)))
say(pid)
client.lock("name").acquire()
"""
    with Client(f"sqlite://{tmp_path}/locks.db") as client:
        lease = client.lock("name", ttl=20).acquire()
        script = Script(PRELUDE + body, f"sqlite://{tmp_path}/locks.db")
        child = int(script.hear())
        eventually(lambda: client.inspect("name").waiters, "a waiter")
        os.kill(script.pid, 9)
        eventually(lambda: not client.inspect("name").waiters[0].alive, "the waiter's death")
        lease.release()
        again = client.lock("name").try_acquire()
        assert again is not None
        again.release()
        assert child
        script.kill()


def test_a_child_waits_for_no_missing_thread(tmp_path: Path) -> None:
    """A lease that was lost before the fork, or that is to linger, is refused in the child, whatever threads did."""
    body = """
import logging
logging.getLogger("tenure").disabled = True  # it tells of the loss
client = tenure.Client(url)
lost = client.lock("lost").acquire()
client.revoke("lost", force=True)
give_up_at = time.monotonic() + 10
while not lost.lost and time.monotonic() < give_up_at: time.sleep(0.005)
lingering = client.lock("lingering", linger=60)
kept = lingering.acquire()
released = client.lock("released").acquire()
released.release()
def child():
    for lease in (lost, kept):
        try:
            lease.release()
        except tenure.ForkedLeaseError:
            say("refused")
    say(released.release().value)
    say(lingering.try_acquire() is None)
    os._exit(0)
held, let_go = threading.Event(), threading.Event()
def hold():
    with client.session().mutex:
        held.set()
        let_go.wait(60)
holder = threading.Thread(target=hold)
holder.start()
held.wait(60)
pid = fork(child)
let_go.set()
holder.join()
say(wait(pid))
kept.release()
with lingering as lease: lease.check()
client.close()
"""
    assert run(tmp_path, body) == ["refused", "refused", "released", "True", "0"]
