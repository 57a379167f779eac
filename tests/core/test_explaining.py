"""Why a name is not granted: what counts most, who is silent, what is claimed, and what is escaped."""

import shlex
from dataclasses import replace
from types import ModuleType

import pytest

from tenure import AsyncClient, Cause, Explanation, Life, LockTimeout, StoreUnavailable
from tenure.contracts.limits import EVERYBODY
from tenure.contracts.messages import HolderView, NameView, NotGranted, WaiterView
from tenure.core import explaining
from tenure.core.explaining import ALONE, NEWCOMER, Around, ExplainedRequest, explain, near_names, seen_at_the_end
from tenure.core.session import EXPLAIN_TIMEOUT, Session
from tenure.errors import Wait
from tenure.primitives.base import LockBase
from tenure.stores.memcached.store import CAPABILITIES as MEMCACHED
from tenure.stores.memory import MemoryStore
from tenure.stores.ordered.store import CAPABILITIES as ORDERED
from tenure.stores.sql.sessions import CAPABILITIES as SESSIONS
from tenure.table.step import Step
from tests import virtual
from tests.planting import module_with, planted

ABLE = MemoryStore.capabilities
EVIL = "eve\x1b[2J\ntenure: all is well"


def holder(owner: str = "web/17", weight: int = 1, *, left: float = 29.0, ttl: float = 30.0) -> HolderView:
    """Return a holder whose lease lasts for `left` seconds."""
    return HolderView(owner, 7, weight, 90.0, left, ttl)


def waiter(owner: str = "job/18", weight: int = 1, *, alive: bool = True) -> WaiterView:
    """Return a waiter."""
    return WaiterView(owner, weight, 3.0, alive)


def view(capacity: int, *parties: HolderView | WaiterView, quarantine: float = 0.0, blocked: float = 0.0) -> NameView:
    """Return a name with its holders and its waiters."""
    holders = [each for each in parties if isinstance(each, HolderView)]
    waiters = [each for each in parties if isinstance(each, WaiterView)]
    return NameView("orders", capacity, 7, holders, waiters, blocked, quarantine, quarantine and 2.0)


KEPT = replace(holder("web/17", left=4.0, ttl=10.0), released=True)
CIRCLE = (Wait("a", "orders", "b", "1 x", "2 y"), Wait("b", "parcels", "a", "2 y", "1 x"))

CAUSES: dict[str, tuple[NameView, ExplainedRequest, Around, tuple[Cause, ...]]] = {
    "free": (view(1), NEWCOMER, ALONE, (Cause.FREE,)),
    "held": (view(1, holder()), NEWCOMER, ALONE, (Cause.HELD,)),
    "held, others wait": (view(1, holder(), waiter()), NEWCOMER, ALONE, (Cause.HELD,)),
    "quarantine": (view(1, quarantine=9.0), NEWCOMER, ALONE, (Cause.QUARANTINE,)),
    "quarantine over a holder": (view(1, holder(), quarantine=9.0), NEWCOMER, ALONE, (Cause.QUARANTINE, Cause.HELD)),
    "quarantine over a queue": (view(1, waiter(), quarantine=9.0), NEWCOMER, ALONE, (Cause.QUARANTINE,)),
    "lock delay": (view(1, blocked=9.0), NEWCOMER, ALONE, (Cause.LOCK_DELAY,)),
    "lock delay beside holders": (view(3, holder(), blocked=9.0), NEWCOMER, ALONE, (Cause.LOCK_DELAY,)),
    "lock delay over a queue": (view(1, waiter(), blocked=9.0), NEWCOMER, ALONE, (Cause.LOCK_DELAY,)),
    "full, and a lock delay": (
        view(2, holder(weight=2), blocked=9.0),
        NEWCOMER,
        ALONE,
        (Cause.HELD, Cause.LOCK_DELAY),
    ),
    "min_hold": (view(1, KEPT), NEWCOMER, ALONE, (Cause.MIN_HOLD,)),
    "min_hold beside a holder": (view(2, KEPT, holder()), NEWCOMER, ALONE, (Cause.HELD,)),
    "capacity": (view(4, holder(weight=3)), ExplainedRequest(2), ALONE, (Cause.CAPACITY,)),
    "full semaphore": (view(4, holder(weight=4)), ExplainedRequest(1), ALONE, (Cause.HELD,)),
    "behind a writer": (view(EVERYBODY, holder(), waiter(weight=EVERYBODY)), NEWCOMER, ALONE, (Cause.WRITER,)),
    "the writer itself": (
        view(EVERYBODY, holder(), waiter(weight=EVERYBODY)),
        ExplainedRequest(EVERYBODY, 0),
        ALONE,
        (Cause.HELD,),
    ),
    "a reader before the writer": (
        view(EVERYBODY, holder(), waiter(weight=EVERYBODY)),
        ExplainedRequest(1, 0),
        ALONE,
        (Cause.FREE,),
    ),
    "behind a reader behind a writer": (
        view(EVERYBODY, holder(), waiter("w/1", EVERYBODY), waiter()),
        ExplainedRequest(1, 1),
        ALONE,
        (Cause.WRITER,),
    ),
    "behind a dead writer": (
        view(EVERYBODY, holder(), waiter(weight=EVERYBODY, alive=False)),
        NEWCOMER,
        ALONE,
        (Cause.DEAD,),
    ),
    "behind a heavy waiter": (view(4, holder(weight=2), waiter(weight=3)), NEWCOMER, ALONE, (Cause.BEHIND,)),
    "dead head": (view(1, waiter(alive=False), waiter()), NEWCOMER, ALONE, (Cause.DEAD,)),
    "being granted": (view(1, waiter()), NEWCOMER, ALONE, (Cause.GRANTING,)),
    "deadlock": (view(1, holder(), waiter()), NEWCOMER, Around(circle=CIRCLE), (Cause.DEADLOCK, Cause.HELD)),
    "paused": (view(1), NEWCOMER, Around(paused="orders"), (Cause.PAUSED,)),
    "paused, a run goes on": (view(1, holder()), NEWCOMER, Around(paused="orders"), (Cause.PAUSED, Cause.HELD)),
    "evicted": (NameView("orders", 1, 0, [], [waiter()]), NEWCOMER, ALONE, (Cause.EVICTED,)),
}


def check_causes(module: ModuleType) -> None:
    """Assert the causes of all situations, in their order."""
    for what, (seen, asked, around, causes) in CAUSES.items():
        found: Explanation = module.explain(seen, ABLE, asked, around)
        assert tuple(reason.cause for reason in found.reasons) == causes, what
        assert found.cause is causes[0]
        assert found.text == found.reasons[0].text


def test_the_cause_that_counts_most_is_first() -> None:
    """A quarantine before holders, holders before the queue, and a writer is not taken for a lack of permits."""
    check_causes(explaining)


def lives(module: ModuleType) -> list[Life]:
    """Return what is said of holders whose leases have a certain time left."""
    cases = [(30.0, 29.0), (30.0, 19.0), (30.0, 14.0), (2.0, 0.9), (1.0, 0.4), (9.0, 4.0)]
    return [
        module.explain(view(1, holder(left=left, ttl=ttl)), ABLE, NEWCOMER, ALONE).holders[0].life
        for ttl, left in cases
    ]


SPOKEN = [Life.RENEWING, Life.RENEWING, Life.SILENT, Life.RENEWING, Life.RENEWING, Life.SILENT]


def test_a_silent_holder_is_told_from_one_that_renews() -> None:
    """A renewal is due after a third of the ttl. A short lease is given more time, as some stores count seconds."""
    assert lives(explaining) == SPOKEN
    silent = explain(view(1, holder(left=4.0)), ABLE)
    assert "silent for 26.0 s: its lease ends in 4.0 s" in silent.text
    assert "renewing" not in silent.text


def check_claims(module: ModuleType) -> None:
    """Assert that nothing is claimed that a store does not tell."""
    ordered: Explanation = module.explain(view(1, holder(left=30.0)), ORDERED, NEWCOMER, ALONE)
    assert (ordered.holders[0].life, ordered.holders[0].expires_in) == (Life.UNKNOWN, None)
    assert "renewing" not in ordered.text
    assert ordered.holders[0].lasted == 90.0
    session = module.explain(
        view(1, HolderView("session 12", 0, 1, 0.0, 0.0, 0.0)), replace(SESSIONS, shows_leases=False), NEWCOMER, ALONE
    )
    assert session.text == "it is held by session 12"
    party = session.holders[0]
    assert (party.token, party.lasted, party.silent_for, party.life) == (None, None, None, Life.UNKNOWN)
    assert [step.command for step in session.next] == ["tenure wait orders", "tenure show orders"]
    for able in (SESSIONS, MEMCACHED):
        assert "This store does not tell who waits." in module.explain(view(1), able, NEWCOMER, ALONE).untold
    unused = NameView("orders", 1, 0, [], [waiter()])
    assert module.explain(unused, MEMCACHED, NEWCOMER, ALONE).cause is not Cause.EVICTED


def test_what_a_store_cannot_tell_is_not_claimed() -> None:
    """Session locks tell no times and no tokens, an ensemble no renewals, memcached no waiters."""
    check_claims(explaining)


def test_a_contender_that_does_not_take_up_its_grant_is_dead() -> None:
    """In an ensemble the dead head of the queue holds the name, and its lease has ended."""
    found = explain(view(1, holder(left=0.0)), ORDERED)
    assert found.cause is Cause.DEAD
    assert "has not taken up its grant" in found.text


def texts(found: Explanation) -> list[str]:
    """Return everything of an explanation that is printed as it stands."""
    parties = [*found.holders, *found.waiters]
    return [
        found.text,
        *(reason.text for reason in found.reasons),
        *(party.text for party in parties),
        *(step.command for step in found.next),
    ]


def check_escaping(module: ModuleType) -> None:
    """Assert that no text of others reaches a terminal as it is."""
    evil_holder, evil_waiter = holder(EVIL), waiter(EVIL, 3)
    evil_holder.value, evil_holder.actor, evil_waiter.actor = EVIL, f"1 {EVIL}", f"2 {EVIL}"
    circle = (Wait(EVIL, EVIL, EVIL, f"1 {EVIL}", f"2 {EVIL}"),)
    for seen in (
        view(1, evil_holder, evil_waiter),
        view(4, evil_holder, evil_waiter),
        view(1, replace(evil_waiter, alive=False)),
        view(1, replace(evil_holder, released=True)),
        view(1),
    ):
        for around in (ALONE, Around(circle=circle), Around(paused=EVIL), Around(near=(EVIL,))):
            seen.name = EVIL
            for text in texts(module.explain(seen, ABLE, NEWCOMER, around)):
                assert text.isprintable(), text


def test_text_of_others_is_escaped() -> None:
    """Owners, threads, values, names of jobs and locks."""
    check_escaping(explaining)


def test_an_owner_that_is_long_is_cut() -> None:
    """It cannot fill a page."""
    assert len(explain(view(1, *[holder("x" * 5000)] * 50), ABLE).text) < 300


@pytest.mark.parametrize("name", ["orders", "a b", "it's", "$(reboot)", "-x", "--force", "; rm"])
@pytest.mark.parametrize("namespace", ["", "my shop"])
def test_every_command_can_be_typed(name: str, namespace: str) -> None:
    """A shell passes the name on as it is, and never as an option."""
    full = f"{namespace}:{name}" if namespace else name
    seen = replace(view(1, holder()), name=full)
    found = explain(seen, ABLE, NEWCOMER, Around(namespace))
    assert found.name == name
    assert found.next
    for step in found.next:
        first, _, *rest = shlex.split(step.command)
        assert (first, rest[-1]) == ("tenure", name)
        assert ("--namespace" in rest) == bool(namespace)
        assert ("--" in rest) == name.startswith("-")
    assert f"--token {seen.holders[0].token}" in " ".join(step.command for step in found.next)


def test_the_next_step_fits_the_cause() -> None:
    """A quarantine is ended, a job resumed, a silent holder's lease taken by its own token."""

    def first(found: Explanation) -> str:
        return " ; ".join(step.command for step in found.next)

    assert "tenure quarantine end" in first(explain(view(1, holder(), quarantine=9.0), ABLE))
    assert "tenure job resume orders" in first(explain(view(1), ABLE, NEWCOMER, Around(paused="orders")))
    two = [holder(), replace(holder("dead/1", left=1.0), token=8)]
    assert "--token 8 " in first(explain(view(2, *two), ABLE))
    assert "tenure wait --timeout 10 orders" in first(explain(view(1, blocked=9.0), ABLE))
    assert "revoke" not in first(explain(view(1, KEPT), ABLE))


def test_names_that_may_have_been_meant() -> None:
    """Those of another namespace first, then those that are spelled alike, then others."""
    used = ["shop:orders", "order", "shop:parcels", "zebra", "shop:orders:7"]
    assert near_names("orders", "", used)[:2] == ("shop:orders", "order")
    assert near_names("shop:order", "shop", used)[:2] == ("order", "shop:orders")
    assert "zebra" not in near_names("shop:order", "shop", used)
    found = explain(view(1), ABLE, NEWCOMER, Around("shop", near=("order", "shop:orders")))
    assert [step.command for step in found.next][:2] == ["tenure why order", "tenure why --namespace shop orders"]
    assert found.next[0].what == "tells of a name that is in use: did you mean that?"


# -- a wait that timed out ---------------------------------------------------------------------------------------


def check_timeouts(module: ModuleType) -> None:
    """Assert that the holder who was in the way is told, not the one who has the name since."""
    missed = NotGranted(("web/17",), 2)
    later = view(1, holder("next/9"), waiter())
    told: Explanation = module.explain(
        module.seen_at_the_end("orders", missed, later, 1), ABLE, ExplainedRequest(1, 2), ALONE
    )
    assert told.text == "it is held by web/17"
    assert (told.ahead, told.holders[0].token) == (2, None)
    same = module.seen_at_the_end("orders", missed, view(1, holder()), 1)
    assert "for 90.0 s, renewing" in module.explain(same, ABLE, ExplainedRequest(1, 2), ALONE).text
    quarantined = module.seen_at_the_end("orders", NotGranted((), quarantine=9_000_000), None, 1)
    assert module.explain(quarantined, ABLE, ExplainedRequest(1, 0), ALONE).cause is Cause.QUARANTINE


def test_a_timeout_names_who_was_in_the_way() -> None:
    """Though another holds the name by the time of the look; and also if the look fails."""
    check_timeouts(explaining)
    alone = seen_at_the_end("orders", NotGranted(("a", "b"), 0), None, 4)
    assert explain(alone, ABLE, ExplainedRequest(1, 0, 4)).text == "it is held by a and b"


def test_a_timeout_comes_in_time_though_the_look_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the holder and carries what is known; the look has a bound, and is not repeated."""
    bounds: list[float] = []

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source, owner="web/17") as first, AsyncClient(store=source) as second:
            lease = await first.lock("orders").acquire()
            now = second.session().runtime.now

            async def down(_name: str, until: float) -> NameView:
                bounds.append(until - now())
                raise StoreUnavailable("it is down")

            monkeypatch.setattr(second.session().store, "inspect", down)
            with pytest.raises(LockTimeout, match=r"was not granted within 2 s: it is held by web/17\. ") as error:
                await second.lock("orders").acquire(timeout=2)
            await lease.release()
        assert error.value.explanation is not None
        assert error.value.explanation.cause is Cause.HELD

    virtual.run(main)
    assert bounds == [pytest.approx(EXPLAIN_TIMEOUT)]


def test_a_call_that_does_not_wait_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """`try_acquire` and a timeout of 0 send no more than their request; a wait that ends looks once."""
    looks: list[str] = []

    async def main() -> None:
        source = virtual.source()
        async with AsyncClient(store=source, owner="web/17") as first, AsyncClient(store=source) as second:
            lease = await first.lock("orders").acquire()
            store = second.session().store
            inspect = store.inspect

            async def look(name: str, until: float) -> NameView:
                looks.append(name)
                return await inspect(name, until)

            monkeypatch.setattr(store, "inspect", look)
            assert await second.lock("orders").try_acquire() is None
            with pytest.raises(LockTimeout, match="was not granted at once: it is held by web/17"):
                await second.lock("orders").acquire(timeout=0)
            with pytest.raises(LockTimeout, match="was not granted at once"):
                await second.multilock(["orders", "other"]).acquire(timeout=0)
            assert not looks
            with pytest.raises(LockTimeout, match=r"renewing\)") as error:
                await second.multilock(["orders", "other"]).acquire(timeout=1)
            assert error.value.explanation is not None
            assert error.value.explanation.name == "orders"
            await lease.release()

    virtual.run(main)
    assert looks == ["orders"]


# -- planted bugs ------------------------------------------------------------------------------------------------

BUGS: dict[str, tuple[str, str]] = {
    "a quarantine hidden by a holder": (
        "    if view.quarantined_for:\n        since",
        "    if view.quarantined_for and not view.holders:\n        since",
    ),
    "a writer told as lack of permits": (
        "if capacity == EVERYBODY and waiter.weight == EVERYBODY:",
        "if capacity == EVERYBODY and waiter.weight < EVERYBODY:",
    ),
    "the queue before the lock delay": (
        "if full is None and not view.blocked_for and not view.quarantined_for:",
        "if full is None and not view.quarantined_for:",
    ),
    "dead waiters taken for live ones": ("live = [waiter for waiter in before if waiter.alive]", "live = [*before]"),
    "waiters behind taken for those before": ("view.waiters[: request.ahead]", "view.waiters[request.ahead :]"),
    "a silent holder told as renewing": (
        "Life.SILENT if idle >= min(late, holder.ttl)",
        "Life.SILENT if idle > holder.ttl",
    ),
    "a renewing holder told as silent": ("holder.ttl / 3 + SLACK", "0.0"),
    "a released lease told as held": ("    if holder.released:\n", "    if holder.released and not holder.ttl:\n"),
    "one released lease hides a holder": ("if all(each.life is Life.RELEASED", "if any(each.life is Life.RELEASED"),
    "renewals claimed of an ensemble": ("able.shows_renewals or not holder.expires_in", "True"),
    "an owner that is not escaped": (
        'return shown(owner) + (f" ({',
        'return owner + (f" ({',
    ),
    "a thread that is not escaped": ('[f"thread or task {shown(thread)}"] if thread else []', '[f"thread {thread}"]'),
    "a value that is not escaped": ("publishes {shown(holder.value)}", "publishes {holder.value}"),
    "a name that is not escaped": ('"NAME" if escape(name) != name else ', ""),
    "a job that is not escaped": ("the job {around.paused!r} is", "the job {around.paused} is"),
    "the next holder told for the one in the way": ("holders or seen.holders", "seen.holders or holders"),
    "the reply's quarantine forgotten": (
        "max(seen.quarantined_for, seconds(missed.quarantine))",
        "seen.quarantined_for",
    ),
    "an eviction claimed of a store without a queue": ("not used and able.queue and", "not used and"),
    "weights that are ignored": ("request.weight <= free", "free"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    """By at least one of the checks above."""
    right, wrong = BUGS[bug]
    right = right.replace("able.queue", "scene.able.queue")
    module = module_with(explaining, (right, wrong), everywhere=True)
    found: list[BaseException] = []
    for check in (check_causes, check_claims, check_escaping, check_timeouts):
        try:
            check(module)
        except (AssertionError, IndexError) as error:
            found.append(error)
    assert found or lives(module) != SPOKEN


# -- the error itself --------------------------------------------------------------------------------------------


def check_errors() -> None:
    """Assert what the errors of a store in memory say: the permits that were asked for, and no look without a wait."""

    async def main() -> None:
        source, looks = virtual.source(), list[str]()
        async with AsyncClient(store=source, owner="a") as first, AsyncClient(store=source) as second:
            store = second.session().store
            inspect = store.inspect

            async def look(name: str, until: float) -> NameView:
                looks.append(name)
                if name == "down":
                    raise StoreUnavailable("it is down")
                return await inspect(name, until)

            store.inspect = look  # type: ignore[method-assign]
            permits = await first.semaphore("permits", 4).acquire(weight=3)
            with pytest.raises(LockTimeout, match="1 of 4 permits is free, and 2 are asked for"):
                await second.semaphore("permits", 4).acquire(1, weight=2)
            await (await first.lock("kept", min_hold=20).acquire()).release()
            with pytest.raises(LockTimeout, match="it was released, and the min_hold of a"):
                await second.lock("kept").acquire(1)
            down = await first.lock("down").acquire()
            with pytest.raises(LockTimeout, match=r"held by a\. ") as error:
                await second.lock("down").acquire(1)
            assert error.value.explanation is not None
            assert looks == ["permits", "kept", "down"]
            with pytest.raises(LockTimeout, match="at once"):
                await second.lock("down").acquire(0)
            assert looks == ["permits", "kept", "down"]
            delayed = await first.lock("delayed", ttl=10, lock_delay=30).acquire()
            await first.revoke("delayed", force=True)
            with pytest.raises(LockTimeout, match=r"from everybody for another \d+\.\d s"):
                await second.lock("delayed").acquire(0)
            for lease in (permits, down, delayed):
                await lease.release()

    virtual.run(main)


IN_PLACE: dict[str, tuple[type, str, str, str]] = {
    "the permits of the lock object": (
        LockBase,
        "_obtain",
        "session, spec, result",
        "session, self._spec, result",
    ),
    "a look without a wait": (LockBase, "_timed_out", "look=timeout != 0", "look=True"),
    "no look after a wait": (LockBase, "_timed_out", "look=timeout != 0", "look=False"),
    "a failed look is raised": (Session, "_look_at_the_end", "except (StoreError, UsageError)", "except UsageError"),
    "the error lacks its explanation": (LockBase, "_timed_out", ", explanation=why", ""),
    "a lock delay that the refusal forgets": (Step, "_busy", "blocked=blocked", "blocked=0"),
}


def test_errors_say_why() -> None:
    """Of the very request, and without a request more than a wait is worth."""
    check_errors()


@pytest.mark.parametrize("bug", IN_PLACE)
def test_a_bug_planted_in_the_error_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the check above."""
    owner, method, right, wrong = IN_PLACE[bug]
    monkeypatch.setattr(owner, method, planted(owner, method, right, wrong))
    with pytest.raises((AssertionError, StoreUnavailable)):
        check_errors()
