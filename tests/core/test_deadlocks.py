"""Circles of waits: found if there are any, and the shortest first."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Client, DeadlockDetected, Outcome, Wait
from holdfast.contracts.messages import HolderView, NameView, WaiterView
from holdfast.contracts.runtime import Runtime
from holdfast.contracts.store import StoreSource
from holdfast.core.deadlocks import circle_through, circles, waits
from holdfast.stores.memory import MemoryStore, MemoryTable, memory_source
from tests.hazards.helpers import TEST_TIMEOUT, eventually

PAIRS = st.sets(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")))


def holder(actor: str, weight: int = 1) -> HolderView:
    """Make a holder."""
    return HolderView(f"owner of {actor}", 1, weight, 0.0, 1.0, 1.0, actor=actor)


def waiter(actor: str, weight: int = 1, *, alive: bool = True) -> WaiterView:
    """Make a waiter."""
    return WaiterView(f"owner of {actor}", weight, 0.0, alive, actor)


def edges(view: NameView) -> list[tuple[str, str]]:
    """Return who waits for whom at a name."""
    return [(wait.waiting, wait.holding) for wait in waits([view])]


def graph(pairs: set[tuple[str, str]]) -> list[Wait]:
    """Make waits of pairs."""
    return [Wait(one, "name", other, one, other) for one, other in sorted(pairs)]


def reachable(pairs: set[tuple[str, str]], start: str) -> set[str]:
    """Return whom one waits for, directly or not."""
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
    """Through any of those who wait; and what is found is one, closed and without detours."""
    for actor in "abcdef":
        circle = circle_through(actor, graph(pairs))
        assert bool(circle) == (actor in reachable(pairs, actor))
        assert all(
            wait.holding == after.waiting for wait, after in zip(circle, (*circle[1:], *circle[:1]), strict=True)
        )
        assert len({wait.waiting for wait in circle}) == len(circle)
        assert not circle or circle[0].waiting == actor


@given(PAIRS)
def test_of_circles_that_share_nobody_each_is_listed(pairs: set[tuple[str, str]]) -> None:
    """None twice, and none that is not there."""
    found = list(circles(graph(pairs)))
    told = [wait.waiting for circle in found for wait in circle]
    stuck = {actor for actor in "abcdef" if actor in reachable(pairs, actor)}
    assert set(told) <= stuck
    assert bool(told) == bool(stuck)


def test_all_waiters_of_a_lock_wait_for_its_holder() -> None:
    """Those that are alive, and say who they are."""
    view = NameView("name", 1, 1, [holder("a")], [waiter("b"), waiter("c", alive=False), waiter(""), waiter("d")])
    assert edges(view) == [("b", "a"), ("d", "a")]


def test_who_wants_a_permit_waits_for_nobody_in_particular() -> None:
    """Any of the holders may make room; but not for one that wants them all, nor for those behind it."""
    view = NameView("name", 3, 1, [holder("a"), holder("b", 2)], [waiter("c"), waiter("d", 2), waiter("e")])
    assert edges(view) == [("d", "b"), ("e", "b")]


def test_a_dead_waiter_is_in_nobodys_way() -> None:
    """It will be dropped from the queue, so those behind it wait for the holder only if they do not fit themselves."""
    view = NameView("name", 3, 1, [holder("a")], [waiter("b", 3, alive=False), waiter("c")])
    assert edges(view) == []


def test_the_error_names_every_edge() -> None:
    """Who waits, for what, and who holds it."""
    error = DeadlockDetected([Wait("here", "x", "there", "1 main", "2 work"), Wait("there", "y", "here", "2 w", "1 m")])
    assert "here (main) waits for 'x', which there (work) holds" in str(error)
    assert "there (w) waits for 'y', which here (m) holds" in str(error)
    with pytest.raises(DeadlockDetected, match="Release your leases"):
        raise error


class Slow(MemoryStore):
    """A store where something happens right after a name was looked at."""

    meanwhile: Callable[[], None] | None = None

    async def inspect(self, name: str, until: float) -> NameView:
        """Look, and have something happen then, once."""
        view = await super().inspect(name, until)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return view


def test_a_circle_of_waits_that_were_never_there_together_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are looked at one after another: whoever has let go since the first look waits for what we hold later."""
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
            stores[0].meanwhile = let_go_and_wait
            name.acquire().release()
        assert [each.result() for each in waiting] == [Outcome.RELEASED]
