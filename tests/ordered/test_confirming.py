"""A contender that does not take up its grant within its ttl is removed by those that wait behind it.

Clients that die or stand still are clients that send nothing; the clock is the test's own. Each check has bugs
planted as well.
"""

from collections.abc import Callable
from unittest.mock import patch

import pytest

from tenure.contracts.deadlines import DRIFT, micros, seconds, valid_until
from tenure.contracts.messages import AcquireRequest, Granted, NotificationKind, Queued, Reply
from tenure.errors import OutcomeUnknown
from tenure.outcome import Outcome
from tenure.runtimes.threads import complete
from tenure.stores.ordered.acquiring import Acquirer
from tenure.stores.ordered.renewing import Confirmations, LeaseRenewals
from tests import virtual
from tests.ordered.scene import Scene
from tests.planting import planted

TTL = 5.0


def request_of(request_id: str, *, ttl: float = TTL, lock_delay: float = 0.0) -> AcquireRequest:
    """Return a request for the name of these scenes."""
    length = micros(ttl)
    return AcquireRequest(
        "name", request_id, "", request_id, length, length, micros(4.0), lock_delay=micros(lock_delay)
    )


class Clients:
    """Several clients of one ensemble, each of which runs only when the test says so."""

    def __init__(self, clock: virtual.Clock) -> None:
        self.clock = clock
        self.first = Scene()
        self.ensemble = self.first.ensemble
        self.ensemble._clock = clock

    def another(self) -> Scene:
        """Return another client."""
        return Scene(ensemble=self.ensemble)

    def ask(self, scene: Scene, request: AcquireRequest) -> Reply:
        """Send a request once."""
        return complete(scene.store.acquire(request, scene.until))

    def wait_for(self, scene: Scene, request: AcquireRequest, within: float) -> float:
        """Send a request as a client does, until it is granted; return after how many seconds that was."""
        began = self.clock.time
        while not isinstance(reply := self.ask(scene, request), Granted):
            assert isinstance(reply, Queued)
            self.clock.advance(seconds(reply.retry_in) + 0.001)
            assert self.clock.time - began < within, "the name is not granted"
        return self.clock.time - began

    def is_passed_at(self, scene: Scene, request: AcquireRequest) -> float:
        """Return when a waiter is granted the name from a holder that sends nothing more; infinity if never."""
        try:
            self.wait_for(scene, request, 4 * TTL)
        except AssertionError:
            return float("inf")
        return self.clock.time


def dead_waiter() -> None:
    """Pass a waiter that is dead when its turn comes, though its session lives on for long."""
    with virtual.stopped_clock() as clock:
        clients = Clients(clock)
        holder, dead, waiter = clients.first, clients.another(), clients.another()
        granted = holder.hold(request_of("holder"))
        assert isinstance(clients.ask(dead, request_of("dead")), Queued)
        assert isinstance(clients.ask(waiter, request_of("waiter")), Queued)
        assert holder.release(request_of("holder"), granted) is Outcome.RELEASED
        waited = clients.wait_for(waiter, request_of("waiter"), 3 * TTL)
        assert waited >= TTL


def grant_that_is_heard_of(ttl: float = TTL) -> None:
    """Count the ttl of a dead waiter from its grant, though the one behind it looked just before."""
    with virtual.stopped_clock() as clock:
        clients = Clients(clock)
        holder, dead, waiter = clients.first, clients.another(), clients.another()
        granted = holder.hold(request_of("holder"))
        assert isinstance(clients.ask(dead, request_of("dead", ttl=ttl)), Queued)
        assert isinstance(clients.ask(waiter, request_of("waiter", ttl=ttl)), Queued)
        assert holder.release(request_of("holder"), granted) is Outcome.RELEASED
        woken = [each.request_id for each in waiter.notifications if each.kind is NotificationKind.HEAD]
        assert woken == ["waiter"], "the grant is not heard of"
        waited = clients.wait_for(waiter, request_of("waiter", ttl=ttl), 3 * TTL)
        assert waited == pytest.approx(ttl, abs=0.01)


def short_grant_that_is_heard_of() -> None:
    """Count a ttl that is shorter than the time between two looks as exactly."""
    grant_that_is_heard_of(ttl=1.2)


def dead_holder() -> None:
    """Pass a holder that died before its first renewal; its lock delay begins then."""
    with virtual.stopped_clock() as clock:
        clients = Clients(clock)
        dead, waiter = clients.first, clients.another()
        dead.hold(request_of("dead", lock_delay=7.0))
        waited = clients.wait_for(waiter, request_of("waiter"), 3 * TTL + 7.0)
        assert waited >= TTL + 7.0


def renewed_holder() -> None:
    """Leave a holder alone that renews, however long it holds."""
    with virtual.stopped_clock() as clock:
        clients = Clients(clock)
        holder, waiter = clients.first, clients.another()
        request = request_of("holder")
        granted = holder.hold(request)
        for _ in range(20):
            assert isinstance(clients.ask(waiter, request_of("waiter")), Queued)
            clock.advance(TTL / 3)
            renewal = holder.renewal(request, granted)
            renewal.ttl = request.ttl
            assert complete(holder.store.renew([renewal], holder.until)) == [None]
        assert holder.release(request, granted) is Outcome.RELEASED


def late_taker() -> None:
    """Grant a waiter that stood still for a part of its ttl, until it may be passed and no longer."""
    for late in (0.3, 0.6, 0.95):
        with virtual.stopped_clock() as clock:
            clients = Clients(clock)
            holder, slow, waiter = clients.first, clients.another(), clients.another()
            granted = holder.hold(request_of("holder"))
            assert isinstance(clients.ask(slow, request_of("slow")), Queued)
            assert holder.release(request_of("holder"), granted) is Outcome.RELEASED
            assert isinstance(clients.ask(waiter, request_of("waiter")), Queued)  # which counts from now on
            clock.advance(late * TTL)
            sent = slow.runtime.now()
            taken = slow.hold(request_of("slow"))
            ends_at = valid_until(sent, taken.ttl)
            assert clients.is_passed_at(waiter, request_of("waiter")) > ends_at, "a name was granted that is still held"


def repeated_reply() -> None:
    """Count the lease of a request that is repeated, because a reply was lost, from the first request on."""
    with virtual.stopped_clock() as clock:
        clients = Clients(clock)
        holder, waiter = clients.first, clients.another()
        holder.directory.lose["join"] = 1
        with pytest.raises(OutcomeUnknown):
            clients.ask(holder, request_of("holder"))
        assert isinstance(clients.ask(waiter, request_of("waiter")), Queued)
        clock.advance(0.3 * TTL)
        sent = holder.runtime.now()
        taken = holder.hold(request_of("holder"))
        ends_at = valid_until(sent, taken.ttl)
        assert clients.is_passed_at(waiter, request_of("waiter")) > ends_at, "a name was granted that is still held"


def lost_confirmation() -> None:
    """Renew no lease whose confirmation was not answered; the next renewal confirms it."""
    with virtual.stopped_clock() as clock:
        clients = Clients(clock)
        holder, waiter = clients.first, clients.another()
        request = request_of("holder")
        granted = holder.hold(request)
        assert isinstance(clients.ask(waiter, request_of("waiter")), Queued)
        holder.directory.lose["rewrite"] = 1
        renewal = holder.renewal(request, granted)
        with pytest.raises(OutcomeUnknown):
            complete(holder.store.renew([renewal], holder.until))
        assert complete(holder.store.renew([renewal], holder.until)) == [None]
        clock.advance(2 * TTL)
        assert isinstance(clients.ask(waiter, request_of("waiter")), Queued)


def passed_meanwhile() -> None:
    """Refuse the renewal of a holder that was passed between the check of its entry and the confirmation."""
    with virtual.stopped_clock() as clock:
        clients = Clients(clock)
        holder, waiter = clients.first, clients.another()
        request = request_of("holder")
        granted = holder.hold(request)
        assert isinstance(clients.ask(waiter, request_of("waiter")), Queued)
        clock.advance(2 * TTL)
        check = holder.directory.check

        async def check_then_pass(*args: object) -> list[bool]:
            there = await check(*args)  # type: ignore[arg-type]
            assert isinstance(await waiter.store.acquire(request_of("waiter"), waiter.until), Granted)
            return there

        with patch.object(holder.directory, "check", check_then_pass):
            assert complete(holder.store.renew([holder.renewal(request, granted)], holder.until)) != [None]


CHECKS: list[Callable[[], None]] = [
    dead_waiter,
    grant_that_is_heard_of,
    short_grant_that_is_heard_of,
    dead_holder,
    renewed_holder,
    late_taker,
    repeated_reply,
    lost_confirmation,
    passed_meanwhile,
]


@pytest.mark.parametrize("check", CHECKS)
def test_a_grant_is_taken_up_or_passed(check: Callable[[], None]) -> None:
    """Within its ttl, and never while its holder may rely on it."""
    check()


BUGS = {
    "nobody is passed": (dead_waiter, Confirmations, "pass_over", "if wait <= 0.0 and", "if False and"),
    "nobody hears of a grant before its own": (
        grant_that_is_heard_of,
        Acquirer,
        "_wait",
        "to_hear_of_grants(decision, watched)",
        "[]",
    ),
    "the ttl of a new holder is not waited for": (
        short_grant_that_is_heard_of,
        Confirmations,
        "pass_over",
        "if newly else",
        "if False else",
    ),
    "a waiter counts from the beginning of its wait": (
        late_taker,
        Confirmations,
        "pass_over",
        "waiter.seen[entry.order] + max(",
        "waiter.request.proposal + max(",
    ),
    "a grant always lasts for its ttl": (late_taker, Confirmations, "left", "if contender.confirmed:", "if True:"),
    "a grant counts from the last look, at which it was granted": (
        late_taker,
        Acquirer,
        "_answer",
        "sent, looked = instants",
        "sent, looked = instants; contender.idle_at = looked",
    ),
    "a repeated join counts from its repetition": (
        repeated_reply,
        Acquirer,
        "_join",
        "if not contender.unsure:",
        "if True:",
    ),
    "a renewal confirms nothing": (renewed_holder, LeaseRenewals, "_confirm", "places.append(place)", "pass"),
    "a confirmation that failed counts": (
        passed_meanwhile,
        LeaseRenewals,
        "_confirm",
        "there[place] = done",
        "there[place] = True",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    """Whoever is passed too early, or never, is noticed."""
    check, owner, method, right, wrong = BUGS[bug]
    with patch.object(owner, method, planted(owner, method, right, wrong)), pytest.raises(AssertionError):
        check()


def test_drift_is_allowed_for_once() -> None:
    """What is left of a ttl allows for clocks that drift since the last look, and no lease gets longer by it."""
    with virtual.stopped_clock() as clock:
        scene = Scene()
        request = request_of("holder")
        scene.hold(request)
        contender = scene.store._contenders.live["holder"]
        confirmations = Confirmations(scene.directory, clock)
        assert confirmations.left(contender, request.ttl, contender.idle_at - 1.0) == request.ttl
        left = confirmations.left(contender, request.ttl, contender.idle_at + 2.0)
        assert left == pytest.approx(request.ttl - micros(2.0 / (1.0 - DRIFT)), abs=1)
