"""When leases are renewed: early enough for a second attempt, again soon after a failure, and at once after a gap."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from tenure import AsyncClient, LeaseLost, StoreUnavailable
from tenure.contracts.messages import Notification, NotificationKind
from tenure.core.lease import CoreLease
from tenure.core.notifications import GAP_SPREAD, Notifications
from tenure.core.renewals import Renewals
from tenure.core.renewer import Renewer
from tenure.core.session import ASKED_AGAIN_FOR
from tenure.runtimes import clocks
from tests import virtual
from tests.hazards.helpers import disturbed

TTL = 30.0


def renewals(after: float, *, fails: bool = False, gap: bool = False) -> list[float]:
    """Return when a lease was renewed, in seconds after its grant, or after a gap that began `after` that many."""
    seen: list[float] = []
    since = 0.0

    async def hook(operation: str, done: bool) -> None:
        if operation == "renew" and not done:
            seen.append(clocks.steady() - since)
            if fails:
                raise StoreUnavailable("not now")

    async def main() -> None:
        nonlocal since
        async with AsyncClient(store=disturbed(virtual.source(), hook)) as client:
            lease = await client.lock("name", ttl=TTL).acquire()
            since = clocks.steady()
            await asyncio.sleep(after)
            if gap:
                since = clocks.steady()
                client.session().deliver(Notification("", NotificationKind.GAP, ""))
                await asyncio.sleep(1.0)
            await lease.release()

    virtual.run(main)
    return seen


def comes_early() -> None:
    """Check that the first renewal leaves more than half of the lease for further attempts."""
    assert 0 < renewals(0.6 * TTL)[0] < 0.4 * TTL


def comes_again() -> None:
    """Check that a failed renewal is repeated at least every 1.5 s, to the end of the lease."""
    tried = renewals(TTL, fails=True)
    assert len(tried) > 0.4 * TTL / 1.5
    assert max(later - earlier for earlier, later in pairwise(tried)) <= 1.5 + 0.01
    assert TTL * 0.99 - tried[-1] < 1.5 + 0.01


def comes_after_a_gap() -> None:
    """Check that a store that may have forgotten the lease gets a renewal within a moment."""
    assert 0 <= renewals(1.0, gap=True)[0] <= GAP_SPREAD + 0.01


PROMISES = [comes_early, comes_again, comes_after_a_gap]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_renewals_are_early_enough(promise: Callable[[], None]) -> None:
    """A renewal that fails or is forgotten costs no lease."""
    promise()


def nothing(*_: object) -> None:
    """Do nothing."""


def late(self: CoreLease, spread: float) -> float:
    """Renew when little is left."""
    wait = (self.valid_until - self.runtime.now()) * (0.9 + 0.06 * spread)
    self.due_at = self.runtime.now() + wait
    return wait


def once_more(self: Renewals, leases: Sequence[CoreLease], error: Exception) -> None:
    """Try again once only, shortly before the end."""
    for lease in leases:
        lease.last_error = error
        lease.due_at = lease.valid_until - 0.1 if lease.due_at < lease.valid_until - 1 else lease.valid_until


def without_a_look(self: Renewer, within: float) -> None:
    """Give leases new deadlines, and wake nobody to look at them."""
    for lease in self.kept():
        lease.due_at = self._runtime.now()


PLANTED: list[tuple[Callable[[], None], type, str, Callable[..., object]]] = [
    (comes_early, CoreLease, "schedule", late),
    (comes_again, Renewals, "_failed", once_more),
    (comes_after_a_gap, Renewer, "hurry", nothing),
    (comes_after_a_gap, Renewer, "hurry", without_a_look),
    (comes_after_a_gap, Notifications, "_retry_all", nothing),
]


@pytest.mark.parametrize(("promise", "owner", "name", "bug"), PLANTED)
def test_a_planted_bug_is_found(
    promise: Callable[[], None], owner: type, name: str, bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted bugs: a renewal that is late, is not repeated in time, or does not come early after a gap."""
    assert hasattr(owner, name)
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises((AssertionError, IndexError)):
        promise()


@pytest.mark.parametrize("failures", [1, 2])
def test_an_extension_survives_a_connection_that_was_just_closed(failures: int) -> None:
    """A request that fails at once is sent again, and the deadline counts from the first one."""
    left = failures

    async def hook(operation: str, done: bool) -> None:
        nonlocal left
        if operation == "renew" and not done and left:
            left -= 1
            raise StoreUnavailable("the server closed the connection")

    async def main() -> None:
        async with AsyncClient(store=disturbed(virtual.source(), hook)) as client:
            lease = await client.lock("name", ttl=TTL).acquire()
            assert await lease.extend(2 * TTL) > 1.9 * TTL
            assert left == 0

    virtual.run(main)


def test_an_extension_that_nobody_answers_ends_soon() -> None:
    """It is not repeated for longer than a moment, and nothing has changed."""

    async def hook(operation: str, done: bool) -> None:
        if operation == "renew" and not done:
            raise StoreUnavailable("nobody listens")

    async def main() -> None:
        async with AsyncClient(store=disturbed(virtual.source(), hook)) as client:
            lease = await client.lock("name", ttl=TTL).acquire()
            began = clocks.steady()
            with pytest.raises(StoreUnavailable, match="nobody listens"):
                await lease.extend(2 * TTL)
            assert clocks.steady() - began <= ASKED_AGAIN_FOR
            assert lease.remaining() <= TTL

    virtual.run(main)


@pytest.mark.parametrize("stall", [0.0, 0.05])
def test_no_extension_is_sent_after_the_lease_must_end(stall: float) -> None:
    """It is not sent again after `max_hold`, not even by a process that stalls before it would be."""
    sent: list[float] = []

    async def hook(operation: str, done: bool) -> None:
        if operation == "renew" and not done:
            sent.append(clocks.steady())
            asyncio.get_running_loop().call_later(0.001, virtual.stand_still, stall)
            raise StoreUnavailable("the connection broke")

    async def main() -> None:
        async with AsyncClient(store=disturbed(virtual.source(), hook)) as client:
            for _ in range(10):
                lease = await client.lock("name", ttl=TTL, max_hold=1.0).acquire()
                ends_at = clocks.steady() + lease.remaining()
                await asyncio.sleep(lease.remaining() - 0.04)
                with pytest.raises((StoreUnavailable, LeaseLost)):
                    await lease.extend(TTL)
                assert sent
                assert max(sent) <= ends_at
                sent.clear()
                await asyncio.sleep(1.0)  # the lease runs out

    virtual.run(main)
