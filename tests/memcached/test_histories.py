"""In any history without evictions and restarts, memcached keeps what a lock promises, and the judge notices flaws."""

import dataclasses
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tenure.contracts.messages import AcquireRequest, Busy, RenewReply, RenewRequest, Reply, WithdrawRequest
from tenure.stores.memcached import acquiring, inspecting, items, releasing, renewing
from tenure.stores.memcached.acquiring import MemcachedAcquirer
from tenure.stores.memcached.items import SeenItem
from tenure.stores.memcached.protocol import MemcachedRequest
from tenure.stores.memcached.records import RETENTION, LockRecord, whole_seconds
from tenure.stores.memcached.releasing import MemcachedReleaser
from tenure.stores.memcached.renewing import MemcachedRenewals
from tests.memcached.machine import MemcachedMachine
from tests.properties import hunt, thorough

Plant = Callable[[pytest.MonkeyPatch], None]


def test_every_history_keeps_the_promises() -> None:
    """At most one client believes in a lease, tokens grow, and nothing is left of what is over."""
    run_state_machine_as_test(MemcachedMachine, settings=thorough(200, 40))


# -- planted flaws ---------------------------------------------------------------------------------------------


def swap_without_comparing(patch: pytest.MonkeyPatch) -> None:
    """Store without looking at the CAS value."""

    def pack(key: bytes, data: bytes, seconds: int, _cas: bytes) -> bytes:
        return b"ms %b %d T%d c\r\n%b\r\n" % (key, len(data), seconds, data)

    patch.setattr(items, "pack_swap", pack)


def release_without_owner(patch: pytest.MonkeyPatch) -> None:
    """Release whoever holds the name."""

    def is_held(seen: SeenItem, _request_id: str, _token: int) -> bool:
        return seen.lease_left() > 0

    patch.setattr(releasing, "is_held_by", is_held)


def renew_by_touch(patch: pytest.MonkeyPatch) -> None:
    """Prolong whatever item is there."""

    async def renew(self: MemcachedRenewals, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        for each in renewals:
            key, address, _ = self._items.place(each.name)
            touch = b"mg %b c t T%d\r\n" % (key, whole_seconds(each.ttl) + RETENTION)
            await self._items._link.exchange(address, MemcachedRequest(touch), until)
        return [None] * len(renewals)

    patch.setattr(MemcachedRenewals, "renew", renew)


def repeat_tokens(patch: pytest.MonkeyPatch) -> None:
    """Take the proposal of the client as the token."""

    def proposed(_last: int, proposal: int) -> int:
        return proposal

    patch.setattr(acquiring, "next_token", proposed)


def forget_the_granularity(patch: pytest.MonkeyPatch) -> None:
    """Store an item for its ttl, of which the server may keep it for two seconds less."""

    def just_rounded(micros: int) -> int:
        return math.ceil(micros / 1_000_000)

    for module in (acquiring, renewing):
        patch.setattr(module, "whole_seconds", just_rounded)


def trust_the_timer(patch: pytest.MonkeyPatch) -> None:
    """Store an item for a second longer than its ttl: enough for a server that counts each second."""

    def a_second_more(micros: int) -> int:
        return math.ceil(micros / 1_000_000) + 1

    for module in (acquiring, renewing):
        patch.setattr(module, "whole_seconds", a_second_more)


def repeated_acquire_is_busy(patch: pytest.MonkeyPatch) -> None:
    """Do not recognise an own request."""
    refusal = MemcachedAcquirer._refusal

    def forgetful(
        self: MemcachedAcquirer, request: AcquireRequest, record: LockRecord, seen: SeenItem, now: float
    ) -> Reply | None:
        reply = refusal(self, request, record, seen, now)
        return Busy(1) if seen.is_of(request.request_id) else reply

    patch.setattr(MemcachedAcquirer, "_refusal", forgetful)


def no_tombstones(patch: pytest.MonkeyPatch) -> None:
    """Leave nothing behind for a late copy of a withdrawn request."""
    forestall = MemcachedReleaser._forestall

    def careless(
        self: MemcachedReleaser, withdraw: WithdrawRequest, seen: SeenItem, until: float
    ) -> Coroutine[Any, Any, bool]:
        return forestall(self, dataclasses.replace(withdraw, unsure=False), seen, until)

    patch.setattr(MemcachedReleaser, "_forestall", careless)


def withdraw_keeps_a_grant(patch: pytest.MonkeyPatch) -> None:
    """Do not look whether a withdrawn request was granted."""

    async def nothing(_self: MemcachedReleaser, _withdraw: WithdrawRequest, _seen: SeenItem, _until: float) -> bool:
        return True

    patch.setattr(MemcachedReleaser, "_forestall", nothing)


def take_before_the_end(patch: pytest.MonkeyPatch) -> None:
    """Take a name in the last second of its lease."""
    blocked_for = SeenItem.blocked_for

    def shorter(self: SeenItem) -> int:
        return blocked_for(self) - 1

    patch.setattr(SeenItem, "blocked_for", shorter)


def revocations_are_forgotten_by_the_next_holder(patch: pytest.MonkeyPatch) -> None:
    """Carry no doubt from the record of a revocation into that of the next lease."""
    refusal = MemcachedAcquirer._refusal

    def forgetful(
        self: MemcachedAcquirer, request: AcquireRequest, record: LockRecord, seen: SeenItem, now: float
    ) -> Reply | None:
        reply = refusal(self, request, record, seen, now)
        record.doubted = 0
        return reply

    patch.setattr(MemcachedAcquirer, "_refusal", forgetful)


def revocations_are_not_noted(patch: pytest.MonkeyPatch) -> None:
    """Doubt nothing after a revocation."""
    revoked = inspecting._revoked

    def trusting(record: LockRecord) -> tuple[LockRecord, int]:
        after, lifetime = revoked(record)
        return dataclasses.replace(after, doubted=record.doubted), lifetime

    patch.setattr(inspecting, "_revoked", trusting)


PLANTED = [
    swap_without_comparing,
    release_without_owner,
    renew_by_touch,
    repeat_tokens,
    forget_the_granularity,
    trust_the_timer,
    repeated_acquire_is_busy,
    no_tombstones,
    withdraw_keeps_a_grant,
    take_before_the_end,
    revocations_are_forgotten_by_the_next_holder,
    revocations_are_not_noted,
]


@pytest.mark.parametrize("plant", PLANTED, ids=[plant.__name__ for plant in PLANTED])
def test_a_planted_flaw_is_noticed(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with one flaw does not keep the promises."""
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        hunt(MemcachedMachine, 5_000, 40, plant.__name__)
