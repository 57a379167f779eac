"""A lease in etcd guards transactions of the user's own."""

import json
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest

import tenure
from tenure.core.lease import CoreLease
from tenure.stores.etcd import directory
from tests.servers import EtcdServer
from tests.servers.waiting import wait_until
from tests.simulated.mutants import replaced


def transact(server: EtcdServer, guard: tenure.Guard, value: str) -> bool:
    """Write `value` if the lease is still held, over the gateway alone; return whether it was."""
    host, port = server.address
    put = {"request_put": {"key": b64encode(b"balance").decode(), "value": b64encode(value.encode()).decode()}}
    body = json.dumps({"compare": [guard.compare()], "success": [put]}).encode()
    with urllib.request.urlopen(f"http://{host}:{port}/v3/kv/txn", body, timeout=5) as answer:
        said: dict[str, Any] = json.load(answer)
    return bool(said.get("succeeded"))


def test_a_transaction_is_carried_out_only_while_the_lease_lasts(etcd_server: EtcdServer) -> None:
    """Once it is released, taken by force or followed by another, what compares its guard does nothing."""
    with tenure.Client(etcd_server.url) as client, tenure.Client(etcd_server.url) as judge:
        with client.lock("guarded") as lease:
            guard = lease.guard()
            assert guard.create_revision == lease.token // 1024
            assert transact(etcd_server, guard, "1")
            lease.extend(20.0)
            assert transact(etcd_server, guard, "2"), "a lease that was extended is the same"
        assert not transact(etcd_server, guard, "3")
        taken = client.lock("guarded").acquire()
        guard = taken.guard()
        judge.revoke("guarded", force=True)
        assert not transact(etcd_server, guard, "4"), "at once, whatever its holder knows"
        with suppress(tenure.LeaseLost):  # if that was heard by now
            assert not transact(etcd_server, taken.guard(), "5")
        assert taken.lost.wait(10)
        with pytest.raises(tenure.LeaseLost):
            taken.guard()
        taken.release()


def hand_off(client: tenure.Client, lock: tenure.Lock, lease: tenure.Lease) -> tenure.Lease:
    """Release a lease while another thread of its client waits, and return what that thread acquires."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock.acquire, timeout=20)
        wait_until(lambda: len(client.inspect(lock.name).waiters) == 1, "a local waiter")
        assert lease.release() is tenure.Outcome.RELEASED
        return waiting.result()


def guards_follow_hand_offs(server: EtcdServer, name: str) -> None:
    """Check the guards of leases that were taken up, handed off and released."""
    with tenure.Client(server.url) as client:
        lock = client.lock(name, linger=60.0)
        first = lock.acquire()
        first.release()
        taken_up = lock.acquire()
        assert taken_up.token == first.token + 1, "the lease lingered"
        handed_off = hand_off(client, lock, taken_up)
        assert handed_off.token == first.token + 2, "the lease was handed off"
        guard = handed_off.guard()
        assert guard.create_revision == first.token // 1024, "the entry in etcd is that of the first holder"
        assert transact(server, guard, "1")
        following = hand_off(client, lock, handed_off)
        assert not transact(server, guard, "2"), "the lease of the guard is over, though its client has the name again"
        assert following.token // 1024 > handed_off.token // 1024
        again = following.guard()
        assert transact(server, again, "3")
        following.release()
        assert not transact(server, again, "4"), "a lease with a guard does not linger"


def test_a_guard_is_true_for_its_own_lease_alone(etcd_server: EtcdServer) -> None:
    """It is right for a lease that came by a local hand-off, and no later holder of the process makes it true."""
    guards_follow_hand_offs(etcd_server, "handed-off")


def the_whole_token(token: int) -> int:
    """Take the token for the position."""
    return token


@pytest.mark.parametrize(
    "plant",
    [
        replaced(directory, "position_of", the_whole_token),
        replaced(CoreLease, "begin_guard", CoreLease.check),
    ],
    ids=["the guard compares the whole token", "a lease with a guard is handed on"],
)
def test_a_wrong_guard_is_found(
    etcd_server: EtcdServer, name: str, plant: Callable[[], AbstractContextManager[Any]]
) -> None:
    """The test above finds each of these planted bugs."""
    with plant(), pytest.raises(AssertionError):
        guards_follow_hand_offs(etcd_server, name)


@pytest.mark.parametrize("linger", [0.0, 60.0])
def test_a_released_lease_has_no_guard(etcd_server: EtcdServer, linger: float) -> None:
    """Not even while it lingers, when its entry is there."""
    with tenure.Client(etcd_server.url) as client:
        lease = client.lock(f"released-{linger}", linger=linger).acquire()
        lease.release()
        with pytest.raises(tenure.LeaseLost):
            lease.guard()


def test_other_stores_say_what_to_do_instead() -> None:
    """A guard that nothing could compare is refused."""
    with (
        tenure.Client("memory://") as client,
        client.lock("name") as lease,
        pytest.raises(tenure.UsageError, match="token"),
    ):
        lease.guard()
