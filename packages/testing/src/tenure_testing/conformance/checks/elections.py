"""Checks of elections: one leader at a time, its published value, its succession and its observers."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from collections.abc import Awaitable, Callable
from functools import partial

from tenure import AsyncLeadership, Leader
from tenure.errors import LeaseLost
from tenure.outcome import Outcome
from tenure.primitives.election import AsyncObservation
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import TEST_TIMEOUT, Kit, cancel_after, expect, timed_out
from tenure_testing.conformance.wire import FaultyWire

LONG = 20.0

QUICKLY = 0.02
"""The interval of the observers, in seconds."""

VALUES = (
    "",
    "10.0.0.7:80",
    "\u540d\u524d \U0001f512",
    "line\nbreak\0nul\x1fseparator",
    '{"a": [1, "\\""]}',
    "x" * 4096,
)


@check(records=True)
async def leaders_follow_each_other(kit: Kit) -> None:
    """One candidate leads at a time; when it resigns, the next candidate leads, with a larger token."""
    here, there = kit.client(owner="here"), kit.client(owner="there")
    first, second = here.election("boss", ttl=LONG), there.election("boss", ttl=LONG)
    expect(await first.leader() is None and not first.is_leader, "nobody leads")
    expect(await first.resign() is None, "without a term `resign` returns None")
    term = await first.campaign("one")
    expect(first.is_leader and not second.is_leader, "one candidate leads")
    waiting = kit.start(lambda: second.campaign("two"))
    if kit.capabilities.queue:
        await kit.waiters(here, "boss", 1)
    for election in (first, second):
        expect(
            await election.leader() == Leader("here", "one", term.token), "every client sees the leader and its value"
        )
    expect(await first.resign() is Outcome.RELEASED, "the leader resigns")
    expect(not first.is_leader, "a leader that resigned leads no more")
    follower = await waiting.result()
    expect(second.is_leader and follower.token > term.token, "the next candidate leads, in a later term")
    expect(await first.leader() == Leader("there", "two", follower.token), "every client sees the new leader")
    await follower.release()
    expect(not second.is_leader and await first.leader() is None, "the release of the term is a resignation")


@check(exercises="store", records=True)
async def published_value_arrives_unchanged(kit: Kit) -> None:
    """Other clients see every text of up to 4096 bytes that a leader publishes, unchanged, also after its campaign."""
    here, there = kit.client(owner="here"), kit.client()
    election, watching = here.election("boss", ttl=LONG), there.election("boss", ttl=LONG)
    for value in VALUES:
        term = await election.campaign(value)
        expect(await watching.leader() == Leader("here", value, term.token), f"{value[:20]!r} is published")
        await term.release()
    term = await election.campaign("first")
    for value in VALUES:
        await term.publish(value)
        expect(term.value == value, "the term has the new value")
        expect(
            await watching.leader() == Leader("here", value, term.token),
            f"{value[:20]!r} is published in the same term",
        )
    term.check()
    await term.release()


@check(records=True)
async def timed_out_candidate_leaves_nothing(kit: Kit) -> None:
    """A candidate that is not elected in time gets LockTimeout, which names the leader, and leaves nothing behind."""
    here, there = kit.client(owner="somebody"), kit.client()
    term = await here.election("boss", ttl=LONG).campaign("one")
    election = there.election("boss", ttl=LONG)
    for timeout in (0.0, 0.1):
        error = await timed_out(election.campaign("late", timeout=timeout))
        expect("somebody" in str(error), f"the error names the leader: {error}")
        expect(not (await here.inspect("boss")).waiters, "nobody waits")
        expect(not election.is_leader, "the candidate does not lead")
    term.check()
    await term.release()
    expect(await here.names() == [], "no name is in use")


@check(forms=("asyncio",), records=True)
async def cancelled_candidate_leaves_nothing(kit: Kit) -> None:
    """A campaign that is cancelled at any step leaves no leader and no candidate behind."""
    here, watcher = kit.client(), kit.client()
    for held in (False, True):
        for steps in range(12):
            term = await here.election("boss", ttl=LONG).campaign() if held else None
            await cancel_after(kit.start(lambda: kit.client().election("boss", ttl=LONG).campaign("new")), steps)
            await kit.waiters(watcher, "boss", 0)
            if term is not None:
                term.check()
                await term.release()
            await kit.free(watcher, "boss")


@check(records=True)
async def silent_leader_is_replaced(kit: Kit) -> None:
    """A silent leader is replaced when its lease has expired, and knows by then that it no longer leads."""
    wire = FaultyWire()
    wire.cut = True
    silent, election = kit.client(wire).election("boss", ttl=kit.short), kit.client().election("boss", ttl=LONG)
    asked_at = kit.now()
    old = await silent.campaign("old")
    expect(silent.is_leader or kit.may_be_over(asked_at), "it leads until its lease expires")
    new = await election.campaign("new", timeout=TEST_TIMEOUT)
    expect(not silent.is_leader, "the old leader knew of its loss before the next one led")
    expect(new.token > old.token, "the next leader has a larger token")
    expect(await _refused(old), "check() or publish() of the old term raises LeaseLost")
    await new.release()


async def _refused(term: AsyncLeadership) -> bool:
    try:
        term.check()
        await term.publish("late")
    except LeaseLost:
        return True
    return False


@check(exercises="store", records=True)
async def stuck_leader_is_replaced_at_max_hold(kit: Kit) -> None:
    """A live but stuck leader is replaced when `max_hold` has passed."""
    stuck = kit.client().election("boss", ttl=LONG, max_hold=kit.short)
    term = await stuck.campaign("stuck")
    follower = await kit.client().election("boss", ttl=LONG).campaign("new", timeout=TEST_TIMEOUT)
    expect(not stuck.is_leader and await _refused(term), "the stuck leader no longer leads")
    await follower.release()


@check(records=True)
async def revoked_leader_is_notified(kit: Kit) -> None:
    """A leader whose name is revoked by force leads no more once it is notified, and cannot publish."""
    here, there = kit.client(), kit.client()
    election = here.election("boss", ttl=LONG)
    term = await election.campaign("old")
    await there.revoke("boss", force=True)
    await kit.until(partial(_not, lambda: election.is_leader), "the leader is notified")
    expect(await _refused(term), "the old leader cannot publish")
    expect(await election.leader() is None, "nobody leads")
    await term.release()


async def _not(holds: Callable[[], bool]) -> bool:
    return not holds()


@check(records=True)
async def observers_see_every_change_of_leader(kit: Kit) -> None:
    """An observer sees the present leader first, then each change: another value, another leader, or none."""
    here, there = kit.client(owner="here"), kit.client()
    election = here.election("boss", ttl=LONG)
    seen = there.election("boss", ttl=LONG).observe(interval=QUICKLY)
    expect(await anext(seen) is None, "nobody leads at first")
    term = await election.campaign("one")
    expect(await _next(kit, seen) == Leader("here", "one", term.token), "the observer sees a new leader")
    await term.publish("two")
    expect(await _next(kit, seen) == Leader("here", "two", term.token), "the observer sees a new value")
    await term.release()
    expect(await _next(kit, seen) is None, "the observer sees a resignation")
    term = await election.campaign("three")
    later = there.election("boss", ttl=LONG).observe(interval=QUICKLY)
    expect(await anext(later) == Leader("here", "three", term.token), "a later observer sees the present leader first")
    await term.release()


async def _next(kit: Kit, seen: AsyncObservation) -> Leader | None:
    return await kit.start(lambda: anext(seen)).result()


@check(records=True)
async def observers_can_be_stopped(kit: Kit) -> None:
    """An observation ends after its timeout, by `stop()`, and when its client is closed."""
    client, other = kit.client(), kit.client()
    expect(await _all(client.election("boss").observe(0)) == [None], "with a timeout of 0 it yields the present leader")
    expect(await _all(client.election("boss").observe(0.1, interval=QUICKLY)) == [None], "it ends after its timeout")
    seen = other.election("boss").observe(interval=LONG)
    await _ended_by(kit, seen, partial(_now, seen.stop))
    await _ended_by(kit, other.election("boss").observe(interval=0.1), other.close)


async def _ended_by(kit: Kit, seen: AsyncObservation, end: Callable[[], Awaitable[None]]) -> None:
    expect(await anext(seen) is None, "nobody leads")
    running = kit.start(partial(_all, seen))
    await kit.pause(0.02)
    expect(not running.done(), "the observation waits")
    await end()
    expect(await running.result() == [], "the observation ends")


async def _now(act: Callable[[], None]) -> None:
    act()


async def _all(seen: AsyncObservation) -> list[Leader | None]:
    return [leader async for leader in seen]
