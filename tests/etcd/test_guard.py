"""A lease in etcd guards transactions of the user's own."""

import json
import urllib.request
from base64 import b64encode
from contextlib import suppress
from typing import Any

import pytest

import holdfast
from tests.servers import EtcdServer


def transact(server: EtcdServer, guard: holdfast.Guard, value: str) -> bool:
    """Write `value` if the lease is still held, over the gateway alone; return whether it was."""
    host, port = server.address
    put = {"request_put": {"key": b64encode(b"balance").decode(), "value": b64encode(value.encode()).decode()}}
    body = json.dumps({"compare": [guard.compare()], "success": [put]}).encode()
    with urllib.request.urlopen(f"http://{host}:{port}/v3/kv/txn", body, timeout=5) as answer:
        said: dict[str, Any] = json.load(answer)
    return bool(said.get("succeeded"))


def test_a_transaction_is_carried_out_only_while_the_lease_lasts(etcd_server: EtcdServer) -> None:
    """Once it is released, taken by force or followed by another, what compares its guard does nothing."""
    with holdfast.Client(etcd_server.url) as client, holdfast.Client(etcd_server.url) as judge:
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
        with suppress(holdfast.LeaseLost):  # if that was heard by now
            assert not transact(etcd_server, taken.guard(), "5")
        assert taken.lost.wait(10)
        with pytest.raises(holdfast.LeaseLost):
            taken.guard()
        taken.release()


def test_other_stores_say_what_to_do_instead() -> None:
    """A guard that nothing could compare is refused."""
    with (
        holdfast.Client("memory://") as client,
        client.lock("name") as lease,
        pytest.raises(holdfast.UsageError, match="token"),
    ):
        lease.guard()
