"""What a release inside the database looks at before it hands the name over: whether the first waiter is alive."""

import pytest

from holdfast.runtimes.threads import ThreadsRuntime, drive
from holdfast.stores.postgresql import schema
from holdfast.stores.urls import store_source
from holdfast.testing.conformance.kit import RawClient
from tests.hazards.helpers import eventually
from tests.servers import PostgresServer

WRONG = {
    "a waiter that fell silent": ("            AND (waiter ->> 1)::bigint >= at\n", ""),
    "a waiter without a listener": (
        "            AND NOT pg_try_advisory_xact_lock_shared(hashtextextended(waiter ->> 3, 0))\n",
        "",
    ),
}
"""Bugs to plant: each hands the name over to nobody."""


def opened(server: PostgresServer, prefix: str) -> RawClient:
    """Open the store without the protocol of a client."""
    runtime = ThreadsRuntime()
    raw = RawClient(runtime, store_source(f"{server.url}?prefix={prefix}").make(runtime), "")
    drive(raw.open())
    return raw


def passes_over(server: PostgresServer, prefix: str, *, closes: bool) -> bool:
    """Have a holder release while the first of two waiters is dead; tell whether the second one is granted the name."""
    holder, dead, alive = (opened(server, prefix) for _ in range(3))
    try:
        lease = holder.request("name")
        token = drive(holder.acquire_free(lease))
        first, second = dead.request("name", waiter_ttl=10.0 if closes else 0.05), alive.request("name")
        drive(dead.acquire(first))
        drive(alive.acquire(second))
        if closes:
            drive(dead.close())
        eventually(lambda: not drive(holder.inspect("name")).waiters[0].alive, "a dead waiter")
        drive(holder.release(lease, token))
        (granted,) = drive(holder.inspect("name")).holders
        return drive(alive.renew(second, granted.token, 20.0)) is None
    finally:
        for each in (holder, dead, alive):
            drive(each.close())


@pytest.mark.parametrize("closes", [False, True])
def test_a_dead_waiter_is_passed_over(postgres_server: PostgresServer, closes: bool) -> None:
    """The release grants the name to the next waiter: the first fell silent, or nobody listens for it."""
    assert passes_over(postgres_server, f"over_{int(closes)}_", closes=closes)


@pytest.mark.parametrize("closes", [False, True])
def test_a_hand_over_to_nobody_is_noticed(
    postgres_server: PostgresServer, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one of the two conditions, the test above fails."""
    before, after = list(WRONG.values())[closes]
    assert before in schema.SCHEMA
    monkeypatch.setattr(schema, "SCHEMA", schema.SCHEMA.replace(before, after))
    assert not passes_over(postgres_server, f"wrong_{int(closes)}_", closes=closes)
