"""Circles of waits: each is found, the shortest first."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure import Client, DeadlockDetected, Outcome, Wait
from tenure.contracts.messages import AcquireRequest, HolderView, NameView, Queued, Reply, WaiterView
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import StoreSource
from tenure.core.deadlocks import circle_through, circles, waits
from tenure.reentry import outside
from tenure.stores.memory import MemoryStore, MemoryTable, memory_source
from tests.hazards.helpers import TEST_TIMEOUT, eventually

PAIRS = st.sets(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")))


def holder(actor: str, weight: int = 1) -> HolderView:
    """Make a holder."""
    return HolderView(f"owner of {actor}", 1, weight, 0.0, 1.0, 1.0, actor=actor)


def waiter(actor: str, weight: int = 1, *, alive: bool = True) -> WaiterView:
    """Make a waiter."""
    return WaiterView(f"owner of {actor}", weight, 0.0, alive, actor)


def edges(view: NameView) -> list[tuple[str, str]]:
    """Return the pairs of waiter and holder of a name."""
    return [(wait.waiting, wait.holding) for wait in waits([view])]


def graph(pairs: set[tuple[str, str]]) -> list[Wait]:
    """Make waits of pairs."""
    return [Wait(one, "name", other, one, other) for one, other in sorted(pairs)]


def reachable(pairs: set[tuple[str, str]], start: str) -> set[str]:
    """Return all that an actor waits for, directly or not."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        here = ahead.pop()
        new = {other for one, other in pairs if one == here} - found
        found |= new
        ahead += new
    return found


@given(PAIRS)
def test_a_circle_is_found_exactly_if_there_is_one(pairs: set[tuple[str, str]]) -> None:
    """The circle may pass through any waiter; it is closed and has no detours."""
    for actor in "abcdef":
        circle = circle_through(actor, graph(pairs))
        assert bool(circle) == (actor in reachable(pairs, actor))
        assert all(
            wait.holding == after.waiting for wait, after in zip(circle, (*circle[1:], *circle[:1]), strict=True)
        )
        assert len({wait.waiting for wait in circle}) == len(circle)
        assert not circle or circle[0].waiting == actor


@given(PAIRS)
def test_circles_without_a_common_actor_are_each_listed(pairs: set[tuple[str, str]]) -> None:
    """No circle is listed twice, and every listed one exists."""
    found = list(circles(graph(pairs)))
    told = [wait.waiting for circle in found for wait in circle]
    stuck = {actor for actor in "abcdef" if actor in reachable(pairs, actor)}
    assert set(told) <= stuck
    assert bool(told) == bool(stuck)


def test_all_waiters_of_a_lock_wait_for_its_holder() -> None:
    """Only living waiters with an owner count."""
    view = NameView("name", 1, 1, [holder("a")], [waiter("b"), waiter("c", alive=False), waiter(""), waiter("d")])
    assert edges(view) == [("b", "a"), ("d", "a")]


def test_a_waiter_for_a_permit_waits_for_no_single_holder() -> None:
    """Any of the holders may make room, unless the waiter needs all permits or stands behind one that does."""
    view = NameView("name", 3, 1, [holder("a"), holder("b", 2)], [waiter("c"), waiter("d", 2), waiter("e")])
    assert edges(view) == [("d", "b"), ("e", "b")]


def test_a_dead_waiter_blocks_nobody() -> None:
    """It will be dropped: the waiters behind it wait for the holder only if they do not fit themselves."""
    view = NameView("name", 3, 1, [holder("a")], [waiter("b", 3, alive=False), waiter("c")])
    assert edges(view) == []


def test_the_error_names_every_edge() -> None:
    """The error names each waiter, its name, and the holder."""
    error = DeadlockDetected([Wait("here", "x", "there", "1 main", "2 work"), Wait("there", "y", "here", "2 w", "1 m")])
    assert "here (main) waits for 'x', which there (work) holds" in str(error)
    assert "there (w) waits for 'y', which here (m) holds" in str(error)
    with pytest.raises(DeadlockDetected, match="Release your leases"):
        raise error


class Slow(MemoryStore):
    """A store that calls a function right after it has inspected a name."""

    meanwhile: Callable[[], None] | None = None

    async def inspect(self, name: str, until: float) -> NameView:
        """Inspect the name, then call the function once."""
        view = await super().inspect(name, until)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return view


def test_waits_of_different_moments_are_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are inspected one by one: a holder may release its lease after the first look and then wait for ours."""
    table = MemoryTable()
    stores: list[Slow] = []

    def make(runtime: Runtime) -> Slow:
        stores.append(Slow(runtime, table))
        return stores[-1]

    source = StoreSource("slow", MemoryStore.capabilities, make)
    with Client(store=source) as here, Client(store=memory_source(table)) as there, ThreadPoolExecutor() as pool:
        runtime = here.session().runtime
        new_id = runtime.new_id
        monkeypatch.setattr(runtime, "new_id", lambda: "z" + new_id())  # of a circle, the greatest gives up
        ours, theirs = (client.lock("ours", timeout=TEST_TIMEOUT, detect_deadlock=True) for client in (here, there))
        name = here.lock("name", timeout=TEST_TIMEOUT, detect_deadlock=True)
        other = pool.submit(there.lock("name", detect_deadlock=True).acquire).result()

        def let_go_and_wait() -> None:
            other.release()
            waiting.append(pool.submit(lambda: theirs.acquire().release()))
            eventually(lambda: there.inspect("ours").waiters, "the other one waits for us")

        waiting: list[Future[Outcome]] = []
        with ours:
            stores[0].meanwhile = partial(outside, let_go_and_wait)  # it stands for what others do
            name.acquire().release()
        assert [each.result() for each in waiting] == [Outcome.RELEASED]


class Lazy(MemoryStore):
    """A store that notes each request, and tells each waiter to repeat its request after an hour."""

    asked: list[str]

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Note the name."""
        self.asked.append(request.name)
        reply = await super().acquire(request, until)
        return replace(reply, retry_in=3_600_000_000) if isinstance(reply, Queued) else reply


def test_a_waiter_that_looks_for_circles_asks_for_that() -> None:
    """One that holds something looks when it has asked: it does so also if the store would not hear of it for long."""
    asked: list[str] = []

    def make(runtime: Runtime) -> Lazy:
        store = Lazy(runtime, MemoryTable())
        store.asked = asked
        return store

    source = StoreSource("lazy", MemoryStore.capabilities, make)
    with Client(store=source) as client, ThreadPoolExecutor() as pool:
        held, lock = (client.lock(each, timeout=TEST_TIMEOUT, detect_deadlock=True) for each in ("held", "name"))

        def wait_with_another() -> Outcome:
            with held:
                return lock.acquire().release()

        lease = lock.acquire()
        waiting = pool.submit(wait_with_another)
        eventually(lambda: asked.count("name") > 3, "the waiter asks again")
        lease.release()
        assert waiting.result() is Outcome.RELEASED
