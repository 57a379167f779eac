"""Functions of PostgreSQL that change a queue: a release grants the first live waiter; asking again keeps one alive."""

import json
from dataclasses import replace

import pytest

from tenure.contracts.messages import Queued
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.postgresql import schema
from tenure.stores.sql.shared_steps import SharedSteps
from tenure.stores.urls import store_source
from tenure_testing.conformance.kit import RawClient
from tests.hazards.helpers import eventually
from tests.servers import PostgresServer

WRONG = {
    "a waiter that fell silent": ("            AND first.fresh_until >= at\n", ""),
    "a waiter without a listener": (
        "            AND NOT pg_try_advisory_xact_lock_shared(hashtextextended(first.channel, 0))\n",
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


def test_a_waiter_that_may_be_passed_is_granted_the_name(postgres_server: PostgresServer) -> None:
    """The release itself grants it: with `fair=False` nobody waits for a waiter to be woken, and nothing costs more."""
    holder, there = (opened(postgres_server, "barging_") for _ in range(2))
    try:
        lease, waiter = (replace(each.request("name"), fair_after=100_000) for each in (holder, there))
        token = drive(holder.acquire_free(lease))
        drive(there.acquire(waiter))
        drive(holder.release(lease, token))
        (granted,) = drive(there.inspect("name")).holders
        assert drive(there.renew(waiter, granted.token, 20.0)) is None
    finally:
        for each in (holder, there):
            drive(each.close())


def test_a_waiter_that_asks_again_costs_one_statement(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no step, whatever it is called: else each waiter would read and write the whole queue every second."""
    holder, there = (opened(postgres_server, "again_") for _ in range(2))
    try:
        lease = replace(holder.request("name"), owner="a\0b")
        token = drive(holder.acquire_free(lease))
        requests = [there.request("name", waiter_ttl=10.0 + place) for place in range(12)]
        odd = [
            f',"{requests[3].request_id}"',
            requests[4].request_id,
            "]],[[",
            "\\",
            "\N{SNOWMAN}\0\\\0\n",
            json.dumps(["x"]),
        ]
        requests[5:11] = [replace(each, owner=owner) for each, owner in zip(requests[5:11], odd, strict=True)]
        for request in requests:
            drive(there.acquire(request))

        async def take(self: SharedSteps, *rest: object) -> object:
            raise AssertionError("a step")

        monkeypatch.setattr(SharedSteps, "take", take)
        before = drive(there.inspect("name"))
        for place, request in reversed([*enumerate(requests)]):
            reply = drive(there.acquire(request))
            assert isinstance(reply, Queued)
            assert reply.place == place
        assert [each.owner for each in drive(there.inspect("name")).waiters] == [each.owner for each in before.waiters]
        drive(holder.release(lease, token))
        assert [each.owner for each in drive(there.inspect("name")).holders] == [requests[0].owner]
    finally:
        for each in (holder, there):
            drive(each.close())
