"""Renewals of several leases at once lock their rows in the order of the names, so that no two clients deadlock."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tenure.contracts.deadlines import micros
from tenure.contracts.messages import RenewRequest
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.urls import store_source
from tenure_testing.conformance.kit import RawClient
from tests.hazards.helpers import eventually
from tests.servers import PostgresServer

NAMES = ("b", "a")
"""The order in which the leases are acquired and renewed, which is not that of the names."""

LOCK = "SELECT FROM {}names WHERE name = '{}' FOR UPDATE NOWAIT"


def opened(server: PostgresServer, prefix: str) -> RawClient:
    """Open the store without the protocol of a client."""
    runtime = ThreadsRuntime()
    raw = RawClient(runtime, store_source(f"{server.url}?prefix={prefix}").make(runtime), "")
    drive(raw.open())
    return raw


@pytest.mark.parametrize("contended", [False, True])
def test_rows_are_locked_in_the_order_of_the_names(postgres_server: PostgresServer, contended: bool) -> None:
    """A renewal that waits for the row of the first name keeps that of the second from nobody."""
    prefix = f"order_{int(contended)}_"
    holder, waiter = opened(postgres_server, prefix), opened(postgres_server, prefix)
    renewals: list[RenewRequest] = []
    for name in NAMES:
        request = holder.request(name)
        token = drive(holder.acquire_free(request))
        renewals.append(RenewRequest(request.name, request.request_id, token, micros(30.0)))
        if contended:  # then the rows are not plain, and are renewed by a step
            drive(waiter.acquire(waiter.request(name)))
    try:
        with postgres_server.connect() as other, ThreadPoolExecutor(1) as pool:
            with other.transaction():
                other.execute(LOCK.format(prefix, "a").encode())
                renewing = pool.submit(lambda: drive(holder.store.renew(renewals, holder.runtime.now() + 30.0)))
                blocked = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
                eventually(lambda: postgres_server.execute(blocked, other.info.backend_pid), "a renewal that waits")
                try:
                    other.execute(LOCK.format(prefix, "b").encode())
                except psycopg.errors.LockNotAvailable:
                    pytest.fail("the renewal has locked the second row before the first one")
            assert renewing.result(30.0) == [None, None]
        for name in NAMES:
            assert [each.ttl for each in drive(holder.inspect(name)).holders] == [30.0]
    finally:
        drive(holder.close())
        drive(waiter.close())
