"""Leases that are detached and adopted: what is refused, what is cancelled, and planted bugs that checks find."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import tenure.client.base
import tenure.lease
from tenure import (
    AsyncClient,
    AsyncLease,
    Client,
    LeaseLost,
    LeaseState,
    Outcome,
    Stopped,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from tenure.contracts.handles import Handle, read_handle
from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Granted,
    Notification,
    ReleaseRequest,
    RenewReplies,
    RenewReply,
    RenewRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core import handover
from tenure.core.lease import CoreLease, Grant
from tenure.errors import OutcomeUnknown
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tenure.table.state import NameState
from tenure.table.step import Step
from tenure_testing.conformance import CHECKS, run_check
from tenure_testing.conformance.wire import FaultyWire
from tests import virtual
from tests.hazards.helpers import disturbed, soon
from tests.planting import module_with, planted

HANDLE = Handle("space:name", "abc-1", 1795796007737373, 5_000_000, 2, 3, 7)


def run(
    work: Callable[[AsyncClient, AsyncClient], Coroutine[Any, Any, None]], source: StoreSource | None = None
) -> None:
    """Run a coroutine in virtual time with two clients of one store."""

    async def main() -> None:
        shared = source or virtual.source()
        async with AsyncClient(store=shared) as here, AsyncClient(store=shared) as there:
            await work(here, there)

    virtual.run(main)


async def is_free(client: AsyncClient) -> bool:
    """Tell whether a client is granted the name."""
    lease = await client.lock("name", ttl=5).try_acquire()
    return lease is not None and await lease.release() is Outcome.RELEASED


class HeldUpStore(MemoryStore):
    """A store whose adjustments wait for an event, before or after they are carried out, or lose all their replies.

    Its renewals wait for an event before they are carried out.
    """

    before: asyncio.Event | None = None
    after: asyncio.Event | None = None
    renewing: asyncio.Event | None = None
    renewals = 0
    loses = False
    sent = 0

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Adjust, and wait."""
        type(self).sent += 1
        if self.before is not None:
            await self.before.wait()
        reply = await super().adjust(adjust, until)
        if self.after is not None:
            await self.after.wait()
        if self.loses:
            raise OutcomeUnknown("lost by the test")
        return reply

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Wait, and renew."""
        type(self).renewals += 1
        if self.renewing is not None:
            await self.renewing.wait()
        return await super().renew(renewals, until)

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Release, and lose the reply if all are lost."""
        outcome = await super().release(release, until)
        if self.loses:
            raise OutcomeUnknown("lost by the test")
        return outcome


def held_up() -> tuple[StoreSource, type[HeldUpStore]]:
    """Return the source of such stores, and their class, whose attributes a test sets."""
    table = MemoryTable()

    class Store(HeldUpStore):
        pass

    def make(runtime: Runtime) -> MemoryStore:
        return Store(runtime, table)

    return StoreSource("held up", MemoryStore.capabilities, make), Store


# -- handles -----------------------------------------------------------------------------------------------


def test_a_handle_is_a_line_of_printable_text() -> None:
    """What a handle says is read from its text, with blanks around it."""
    text = HANDLE.text()
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert read_handle(f"  {text}\n") == HANDLE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "tenure-1-",
        "tenure-2-" + HANDLE.text().removeprefix("tenure-1-"),
        HANDLE.text()[:-2],
        HANDLE.text() + "é",
        "tenure-1-" + "A" * 5000,
        "tenure-1-bnVsbA",
        replace(HANDLE, token=0).text(),
        replace(HANDLE, token=True).text(),
        replace(HANDLE, ttl=0).text(),
        replace(HANDLE, weight=4).text(),
        replace(HANDLE, capacity=2**21).text(),
        replace(HANDLE, lock_delay=-1).text(),
        replace(HANDLE, name="").text(),
        replace(HANDLE, name="n" * 2000).text(),
        replace(HANDLE, request_id="").text(),
        17,
    ],
)
def test_other_text_is_no_handle(text: object) -> None:
    """Whatever is no handle raises UsageError, which does not repeat it."""
    with pytest.raises(UsageError, match="handle") as refused:
        read_handle(text)
    assert len(str(refused.value)) < 300


def test_a_handle_has_no_secrets_of_the_url() -> None:
    """A handle consists of the name, an id, numbers, and nothing else."""
    with Client("memory://", owner="me", namespace="space") as client, client.lock("name", ttl=5).acquire() as lease:
        handle = read_handle(lease.detach(reason="why"))
        assert handle == Handle("space:name", handle.request_id, lease.token + 1, 5_000_000)


# -- what is refused ---------------------------------------------------------------------------------------


def test_leases_that_cannot_be_handed_over_are_refused() -> None:
    """Reentrant leases, those of multilocks and elections, and those with an end of their own stay where they are."""
    with Client(store=memory_source(MemoryTable())) as client:
        kinds: list[Any] = [
            client.lock("name", reentrant=True).acquire(),
            client.multilock(["one", "two"]).acquire(),
            client.election("term").campaign(),
            client.lock("long", max_hold=60).acquire(),
            client.lock("short", min_hold=10).acquire(),
        ]
        for lease in kinds:
            with pytest.raises(UsageError):
                lease.detach()
            lease.check()
            assert lease.release() is Outcome.RELEASED


def test_a_store_that_binds_leases_refuses() -> None:
    """A lease of a store whose leases end with a session is not detached, and no handle is adopted there."""
    able = replace(MemoryStore.capabilities, hands_over=False)
    table = MemoryTable()

    def make(runtime: Runtime) -> MemoryStore:
        store = MemoryStore(runtime, table)
        store.capabilities = able
        return store

    with Client(store=StoreSource("bound", able, make)) as client, client.lock("name") as lease:
        with pytest.raises(UsageError, match="connection or session"):
            lease.detach()
        with pytest.raises(UsageError, match="connection or session"):
            client.adopt(replace(HANDLE, name="name").text())
        lease.check()


def test_wrong_arguments_change_nothing() -> None:
    """A wrong ttl, reason, namespace or handle raises UsageError, and the lease stays as it is."""
    source = memory_source(MemoryTable())
    with Client(store=source) as client, Client(store=source, namespace="other") as other:
        lease = client.lock("name").acquire()
        wrongs: tuple[dict[str, Any], ...] = ({"ttl": -1}, {"reason": "x" * 2000}, {"reason": 3})
        for wrong in wrongs:
            with pytest.raises(UsageError):
                lease.detach(**wrong)
        lease.check()
        handle = lease.detach()
        with pytest.raises(UsageError, match="namespace"):
            other.adopt(handle)
        with pytest.raises(UsageError):
            client.adopt(handle, timeout=-1)
        client.adopt(handle, timeout=0).release()


def test_a_lease_that_is_over_is_not_detached() -> None:
    """A lost or released lease raises LeaseLost, and a detached one says that it was detached."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lease = await here.lock("name").acquire()
        await there.revoke("name", force=True)
        with pytest.raises(LeaseLost):
            await lease.detach()
        lease = await here.lock("name").acquire()
        await lease.release()
        with pytest.raises(LeaseLost, match="released"):
            await lease.detach()
        lease = await here.lock("name").acquire()
        handle = await lease.detach()
        with pytest.raises(LeaseLost, match="detached"):
            await lease.detach()
        with pytest.raises(LeaseLost, match="detached"):
            await lease.extend()
        assert repr(lease).endswith("detached>")
        await (await there.adopt(handle)).release()

    run(work)


# -- time --------------------------------------------------------------------------------------------------


def test_an_adopted_lease_is_renewed_and_a_detached_one_is_not() -> None:
    """A detached lease lasts for the ttl of its handle and no longer; an adopted one for as long as its client."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        handle = await (await here.lock("name", ttl=10).acquire()).detach(60)
        await asyncio.sleep(55)
        assert not await is_free(here)
        lease = await there.adopt(handle, 10)
        await asyncio.sleep(100)
        lease.check()
        handle = await lease.detach()
        await asyncio.sleep(11)
        assert await is_free(here)
        other = await here.lock("name").acquire()
        with pytest.raises(LeaseLost, match="holds the name by another lease"):
            await there.adopt(handle)
        await other.release()

    run(work)


def test_a_handle_renews_and_releases_until_it_is_adopted() -> None:
    """`renew` and `release` of a handle act on a detached lease, and on no adopted one."""

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        text = await (await here.lock("name", ttl=10).acquire()).detach()
        handle, session = read_handle(text), there.session()
        await asyncio.sleep(9)
        assert (await handover.renew(session, handle, "name", 40)).ttl == 40_000_000
        await asyncio.sleep(39)
        adopted = await here.adopt(text, 10)
        with pytest.raises(LeaseLost, match="adopted"):
            await handover.renew(session, handle, "name", 40)
        assert await handover.release(session, handle) is Outcome.TAKEN_OVER
        adopted.check()
        again = read_handle(await adopted.detach())
        assert await handover.release(session, again) is Outcome.RELEASED
        assert await is_free(here)

    run(work)


@pytest.mark.parametrize("ending", ["close", "drain"])
def test_an_adoption_that_a_close_overtakes_leaves_no_lease(ending: str) -> None:
    """The client was closed, or drained, before it had the lease: nobody would renew it, and it is released."""

    async def main() -> None:
        source = virtual.source()
        ends: list[asyncio.Task[None]] = []

        async def end_meanwhile(operation: str, done: bool) -> None:
            if operation == "renew" and done and not ends:
                ends.append(asyncio.create_task(getattr(client, ending)()))
                await asyncio.sleep(0.5)

        client = AsyncClient(store=disturbed(source, end_meanwhile))
        async with AsyncClient(store=source) as other:
            handle = await (await other.lock("name", ttl=30).acquire()).detach()
            with pytest.raises((Stopped, UsageError), match=r"drained|closed"):
                await client.adopt(handle)
            await ends[0]
            assert await is_free(other)

    virtual.run(main)


def test_an_adoption_outlasts_a_renewal_without_a_reply() -> None:
    """The lease lasts for longer than a request may take, and its holder counts from the one that was answered."""

    async def main() -> None:
        source = virtual.source()
        renewals: list[float] = []

        async def lose_the_first(operation: str, done: bool) -> None:
            if operation == "renew" and not done:
                renewals.append(there.session().runtime.now())
                if len(renewals) == 1:
                    await asyncio.sleep(0.2)
                    raise StoreUnavailable("lost by the test")

        async with (
            AsyncClient(store=source) as here,
            AsyncClient(store=disturbed(source, lose_the_first, local=False)) as there,
        ):
            handle = await (await here.lock("name", ttl=30).acquire()).detach()
            lease = await there.adopt(handle, 1.0)
            assert 0.95 < lease.remaining() <= 1.0 - (there.session().runtime.now() - renewals[1])

    virtual.run(main)


def test_an_adopter_that_dies_while_it_waits_frees_no_lease_of_another() -> None:
    """While an earlier adopter may take the lease for its own, nobody is granted the name, be the next one dead."""
    wire = FaultyWire()
    wire.unaware = True
    source = virtual.source()

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        async with AsyncClient(store=wire.tap(source)) as first:
            handle = await (await here.lock("name", ttl=60).acquire()).detach()
            early = await first.adopt(handle)
            wire.cut = True
            adopting = asyncio.create_task(there.adopt(handle, 2))
            await asyncio.sleep(1)
            adopting.cancel()
            with suppress(asyncio.CancelledError):
                await adopting
            while early.remaining():
                assert not await is_free(here)
                await asyncio.sleep(1)

    run(work, source)


# -- what comes in between ---------------------------------------------------------------------------------


def test_a_lease_that_is_being_detached_is_not_handed_on() -> None:
    """A release in the middle of a detachment hands the lease to no local waiter, who would share it with others."""
    source, store = held_up()

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lock = here.lock("name", ttl=10)
        handed = [await lock.acquire()]
        tasks = [asyncio.create_task(_acquire(lock.acquire(), handed)) for _ in range(2)]
        await soon(lambda: len(here.session().local_waiters("name")) == 2, "it has come so far")
        await handed[0].release()  # the next holder has tokens for the one after
        await soon(lambda: len(handed) == 2, "it has come so far")
        lease, store.before = handed[1], asyncio.Event()
        detaching = asyncio.create_task(lease.detach())
        await soon(lambda: store.sent, "it has come so far")
        await lease.release()
        store.before.set()
        with pytest.raises(LeaseLost, match="released"):
            await detaching
        await asyncio.gather(*tasks)
        assert len((await there.inspect("name")).holders) == 1
        await asyncio.sleep(30)
        handed[2].check()
        await handed[2].release()

    run(work, source)


async def _acquire(acquiring: Coroutine[Any, Any, AsyncLease], handed: list[AsyncLease]) -> None:
    handed.append(await acquiring)


@pytest.mark.parametrize("carried_out", [False, True], ids=["before", "after"])
def test_a_cancelled_detachment_leaves_no_lease_without_an_owner(*, carried_out: bool) -> None:
    """A detachment that is cancelled leaves the lease with its holder, or free if the store has carried it out."""
    source, store = held_up()

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lease = await here.lock("name", ttl=10).acquire()
        event = asyncio.Event()
        if carried_out:
            store.after = event
        else:
            store.before = event
        detaching = asyncio.create_task(lease.detach())
        await soon(lambda: store.sent, "it has come so far")
        await asyncio.sleep(0)
        detaching.cancel()
        store.before = store.after = None
        with suppress(asyncio.CancelledError):
            await detaching
        if carried_out:
            assert lease.state is LeaseState.LOST
            assert not (await there.inspect("name")).holders
        else:
            await asyncio.sleep(30)
            lease.check()
            assert await lease.release() is Outcome.RELEASED

    run(work, source)


@pytest.mark.parametrize("known", [False, True], ids=["before its reply", "after its reply"])
@pytest.mark.parametrize("asks", ["the renewer", "the holder"])
def test_a_renewal_that_a_detachment_overtakes_loses_no_lease(asks: str, *, known: bool) -> None:
    """The store refuses the token of before the cancellation, and the lease goes on with its larger one."""
    source, store = held_up()

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lease = await here.semaphore("name", 2, ttl=10).acquire()
        token, store.renewing, store.after = lease.token, asyncio.Event(), asyncio.Event()
        extending: asyncio.Task[float] | None = None
        if asks == "the renewer":
            await soon(lambda: store.renewals, "a renewal is under way")
        detaching = asyncio.create_task(lease.detach())
        if asks == "the holder":
            store.before = asyncio.Event()
            await soon(lambda: store.sent, "the detachment is under way")
            extending = asyncio.create_task(lease.extend())
            await soon(lambda: store.renewals, "an extension is under way")
            store.before = None
        await asyncio.sleep(0)
        sent = store.sent
        detaching.cancel()
        await soon(lambda: store.sent > sent, "its cancellation raises the token")
        for event in (store.after, store.renewing) if known else (store.renewing, store.after):
            await asyncio.sleep(0.1)
            event.set()
        with pytest.raises(asyncio.CancelledError):
            await detaching
        if extending is not None:
            with pytest.raises(StoreError, match="detach"):
                await extending
        await asyncio.sleep(30)
        lease.check()
        assert lease.token == token
        await there.revoke("name", force=True)
        await lease.lost.wait(60)
        with pytest.raises(LeaseLost, match="revoked"):
            lease.check()

    run(work, source)


def test_a_detachment_without_a_reply_frees_the_name() -> None:
    """A detachment of which every reply is lost raises StoreError. Nobody trusts the lease, and it is released."""
    source, store = held_up()

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        lease = await here.lock("name", ttl=10).acquire()
        store.loses = True
        with pytest.raises(StoreError):
            await lease.detach()
        assert lease.state is LeaseState.LOST
        store.loses = False
        assert await is_free(there)

    run(work, source)


def test_an_adoption_that_is_cancelled_can_be_made_again() -> None:
    """A cancelled adoption renews nothing, and the handle is still worth something."""
    source, store = held_up()

    async def work(here: AsyncClient, there: AsyncClient) -> None:
        handle = await (await here.lock("name", ttl=10).acquire()).detach()
        store.after = asyncio.Event()
        adopting, sent = asyncio.create_task(there.adopt(handle)), store.sent
        await soon(lambda: store.sent > sent, "it has come so far")
        await asyncio.sleep(0)
        adopting.cancel()
        with suppress(asyncio.CancelledError):
            await adopting
        store.after = None
        lease = await here.adopt(handle)
        await asyncio.sleep(30)
        assert await lease.release() is Outcome.RELEASED

    run(work, source)


# -- a store that may have forgotten -----------------------------------------------------------------------


def _step(state: NameState, now: int, quarantined: tuple[int, int] = (0, 0)) -> Step:
    return Step(state, now, now, lambda _channel: True, *quarantined)


def _granted(state: NameState) -> tuple[AcquireRequest, int]:
    request = AcquireRequest("name", "r1", "channel", "owner", 10_000_000, 1_000_000, 4_000_000)
    reply = _step(state, 1_000_000).acquire(request)
    assert isinstance(reply, Granted)
    return request, reply.token


def test_nothing_is_handed_over_in_quarantine() -> None:
    """A store that may have forgotten an adoption does not let another client adopt: two would hold the lease."""
    state = NameState()
    _, token = _granted(state)
    adjust = AdjustRequest("name", "r1", token, 0, "other", token + 1, "r2", "there")
    assert _step(state, 2_000_000, (5_000_000, 1_500_000)).adjust(adjust) is not None
    assert state.holders[0].request_id == "r1"
    assert _step(state, 6_000_000, (5_000_000, 1_500_000)).adjust(adjust) is None
    assert state.holders[0].request_id == "r2"


def test_the_old_id_gets_nothing_after_a_hand_over() -> None:
    """What comes late from the client that had the lease is refused, and it is told that its lease was revoked."""
    state = NameState()
    request, token = _granted(state)
    step = _step(state, 2_000_000)
    adjust = AdjustRequest("name", "r1", token, 0, "other", token + 1, "r2", "there", 5_000_000)
    assert step.adjust(adjust) is None
    assert Notification("channel", step.notifications[0].kind, "r1", token) == step.notifications[0]
    assert state.holders[0].expires_at == 7_000_000
    assert _step(state, 2_100_000).adjust(adjust) is None, "a repeated request changes nothing"
    assert state.holders[0].expires_at == 7_000_000
    assert _step(state, 2_200_000).renew(RenewRequest("name", "r1", token, 10_000_000, request)) is Outcome.TAKEN_OVER
    assert type(_step(state, 2_200_000).acquire(request)).__name__ == "Withdrawn"
    again = AdjustRequest("name", "r1", token, 0, "third", token + 1, "r3", "elsewhere")
    assert _step(state, 2_300_000).adjust(again) is Outcome.TAKEN_OVER, "two adopters with the same token"
    assert state.holders[0].request_id == "r2"
    restoring = _step(NameState(), 3_000_000, (5_000_000, 2_500_000))
    assert restoring.renew(RenewRequest("name", "r2", token + 1, 5_000_000)) is not None, "without what restores it"


# -- planted bugs ------------------------------------------------------------------------------------------


DROPPING = pytest.mark.filterwarnings("ignore::ResourceWarning")
"""A check that fails drops its leases."""


def fails(name: str, form: str = "asyncio") -> None:
    """Expect that a conformance check fails."""
    check = next(each for each in CHECKS if each.name == name)
    with pytest.raises(Exception, match=r".") as failure:  # a Violation, or what the code that has the bug raises
        run_check(check, memory_source(MemoryTable()), form)
    assert not isinstance(failure.value, (AttributeError, TypeError, NameError)), failure.value


IN_THE_STEP = {
    "the id stays": (
        "_hand_over",
        "= adjust.successor, adjust.channel, False",
        "= holder.request_id, adjust.channel, False",
        "second_adopter_holds_after_the_first",
    ),
    "the channel stays": (
        "_hand_over",
        "= adjust.successor, adjust.channel, False",
        "= adjust.successor, holder.channel, False",
        "adopter_hears_revocation_requests",
    ),
    "the lease keeps its end": (
        "_hand_over",
        "= adjust.ttl, self.now + adjust.ttl",
        "= holder.ttl, holder.expires_at",
        "lease_of_a_dead_adopter_is_free_after_its_ttl",
    ),
    "a repeated request is refused": (
        "adjust",
        "self.state.find_holder(adjust.successor) is not None",
        "False",
        "hand_over_survives_lost_replies",
    ),
    "the token stays": ("_raise", "if not adjust.raise_to or", "if True or", "detached_lease_is_adopted_without_a_gap"),
}


@DROPPING
@pytest.mark.parametrize("bug", sorted(IN_THE_STEP))
def test_planted_bugs_in_the_step_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that hands over a lease wrongly does not pass the conformance checks."""
    method, right, wrong, check = IN_THE_STEP[bug]
    monkeypatch.setattr(Step, method, planted(Step, method, right, wrong))
    fails(check)


IN_THE_PROTOCOL = {
    "the next adopter does not wait": (
        "0.0 if found.detached else await _end_of_earlier(session, adjust, title)",
        "0.0",
        "second_adopter_holds_after_the_first",
    ),
    "an adopted lease looks detached": (
        "handle=handle.request_id, adopted=new_id",
        "handle=handle.request_id",
        "second_adopter_holds_after_the_first",
    ),
    "the lease of an adopter is cut short": (
        "length if found.detached else 0,",
        "length,",
        "",
    ),
    "the first owner goes on": ("if not lease.detach():", "if False:", "detached_lease_is_adopted_without_a_gap"),
    "nobody renews": ("session.renewer.add(lease)\n    session.highest_token", "session.highest_token", ""),
    "the handle keeps its old token": (
        "grant.name, new_id, adjust.raise_to, adjust.ttl,",
        "grant.name, new_id, adjust.token, adjust.ttl,",
        "",
    ),
    "a detached lease is not prolonged": (
        'grant.last + 1, new_id, "", length',
        'grant.last + 1, new_id, "", 0',
        "",
    ),
    "a release hands the lease on": ("lease.begin_guard()  #", "lease.check()  #", ""),
    "a lease that goes on has its old token": ("        grant.last = back.raise_to\n", "", ""),
    "a lease that goes on is being detached": ("grant.guarded = grant.detaching = False", "grant.guarded = False", ""),
}

OVERTAKEN = partial(test_a_renewal_that_a_detachment_overtakes_loses_no_lease, "the renewer", known=True)

OWN_TESTS: dict[str, Callable[[], None]] = {
    "the lease of an adopter is cut short": test_an_adopter_that_dies_while_it_waits_frees_no_lease_of_another,
    "nobody renews": test_an_adopted_lease_is_renewed_and_a_detached_one_is_not,
    "the handle keeps its old token": test_a_handle_renews_and_releases_until_it_is_adopted,
    "a detached lease is not prolonged": test_an_adopted_lease_is_renewed_and_a_detached_one_is_not,
    "a release hands the lease on": test_a_lease_that_is_being_detached_is_not_handed_on,
    "a lease that goes on has its old token": OVERTAKEN,
    "a lease that goes on is being detached": OVERTAKEN,
}


@DROPPING
@pytest.mark.parametrize("bug", sorted(IN_THE_PROTOCOL))
def test_planted_bugs_in_the_protocol_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that detaches or adopts wrongly does not pass the tests."""
    right, wrong, check = IN_THE_PROTOCOL[bug]
    copy = module_with(handover, (right, wrong))
    monkeypatch.setattr(tenure.client.base, "adopt", vars(copy)["adopt"])
    monkeypatch.setattr(tenure.lease, "detach", vars(copy)["detach"])
    for name in ("renew", "release"):
        monkeypatch.setattr(handover, name, vars(copy)[name])
    if check:
        fails(check)
    else:
        with pytest.raises((AssertionError, LeaseLost)):
            OWN_TESTS[bug]()
    gc.collect()  # the tasks that the failure has left behind, while their warnings are ignored


@DROPPING
@pytest.mark.parametrize(("right", "known"), [("self.detaching or ", False), (" or token != self.last", True)])
def test_a_refusal_that_is_taken_for_a_loss_is_found(
    right: str, *, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that forgets one of the times when the store knows the lease by another token loses it."""
    monkeypatch.setattr(Grant, "is_outdated", planted(Grant, "is_outdated", right, ""))
    with pytest.raises((AssertionError, LeaseLost)):
        test_a_renewal_that_a_detachment_overtakes_loses_no_lease("the renewer", known=known)
    gc.collect()


@DROPPING
def test_a_detached_lease_that_is_released_by_its_body_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease object that takes part in nothing any more, but does not say so, fails the check of its body."""
    monkeypatch.setattr(CoreLease, "detach", planted(CoreLease, "detach", "self.settle(Outcome.DETACHED)", "pass"))
    fails("leaving_the_body_of_a_detached_lease_releases_nothing")
