"""Who holds according to a list of entries: as in the grant table; and what a waiter watches."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

from tenure.contracts.messages import AcquireRequest, ReleaseRequest
from tenure.stores.ordered.entries import Entry, Kind
from tenure.stores.ordered.granting import decide, to_hear_of_grants, to_watch
from tenure.table.state import NameState
from tenure.table.step import Step

LENGTHS = {1: 6, 2: 6, 3: 5, 5: 4}
"""How many contend at most, for each capacity: a few of each weight are all that matters, so no list is left out."""


def contender(order: int, weight: int = 1, capacity: int = 1) -> Entry:
    """Return somebody who wants the name."""
    return Entry(Kind.CONTENDER, f"r{order}", order, weight, capacity)


def holders(entries: list[Entry]) -> list[str]:
    """Return who holds."""
    return [entry.request_id for entry in decide(entries).holders]


def lists() -> Iterator[list[Entry]]:
    """Return all contenders of one capacity that there may be, in their order."""
    for capacity, longest in LENGTHS.items():
        for length in range(1, longest + 1):
            for weights in itertools.product(range(1, capacity + 1), repeat=length):
                yield [contender(order, weight, capacity) for order, weight in enumerate(weights, 1)]


def test_a_list_is_decided_as_in_the_grant_table() -> None:
    """Whoever comes, and whoever goes, holder or waiter: the same hold."""
    chance = random.Random(1)
    for entries in lists():
        compare(entries, chance.sample(entries, len(entries)))


def compare(entries: list[Entry], going: list[Entry]) -> None:
    """Have some come, and go in another order."""
    state, now, there = NameState(), 1, list[Entry]()
    for entry in entries:
        request = AcquireRequest(
            "name", entry.request_id, "channel", "", 10**9, 10**6, 10**9, entry.weight, entry.capacity
        )
        Step(state, now, now, lambda _: True).acquire(request)
        there.append(entry)
        assert holders(there) == [holder.request_id for holder in state.holders]
    for gone in going:
        there.remove(gone)
        step = Step(state, now, now, lambda _: True)
        if any(holder.request_id == gone.request_id for holder in state.holders):
            step.release(ReleaseRequest("name", gone.request_id, 0))
        else:
            step.state.queue.drop(gone.request_id)
            step._serve_queue()
        assert holders(there) == [holder.request_id for holder in state.holders]


def test_nothing_makes_room_unless_something_that_is_watched_goes() -> None:
    """And nothing is watched without need: with one watch less, there is a way in which it would be missed."""
    for entries in lists():
        see_what_is_watched(entries)


def see_what_is_watched(entries: list[Entry]) -> None:
    """Try all that may be left of those before a waiter."""
    decision = decide(entries)
    for waiter in decision.waiters:
        watched = to_watch(decision, waiter)
        before = [entry for entry in entries if entry.order < waiter.order]
        for kept in subsets(before):
            granted = waiter.request_id in holders([*kept, waiter])
            assert not (granted and all(entry in kept for entry in watched))
        for spared in watched:
            rest = [entry for entry in watched if entry is not spared]
            assert waiter.request_id in holders([*rest, waiter])


def subsets(entries: list[Entry]) -> list[list[Entry]]:
    """Return what may be left of some."""
    return [list(kept) for size in range(len(entries) + 1) for kept in itertools.combinations(entries, size)]


def test_who_waits_for_a_lock_watches_its_predecessor() -> None:
    """However many wait, a release wakes one."""
    entries = [contender(order) for order in range(1, 201)]
    decision = decide(entries)
    for place, waiter in enumerate(decision.waiters):
        assert [entry.order for entry in to_watch(decision, waiter)] == [place + 1]


def test_readers_watch_the_nearest_writer_and_a_writer_the_last_reader() -> None:
    """So a writer that lets go wakes all readers after it, and a reader that does wakes a writer at most."""
    every = 1000
    weights = {1: 1, 2: 1, 3: every, 4: 1, 5: 1, 6: every, 7: 1}
    decision = decide([contender(order, weight, every) for order, weight in weights.items()])
    watched = {waiter.order: [each.order for each in to_watch(decision, waiter)] for waiter in decision.waiters}
    assert watched == {3: [2], 4: [3], 5: [3], 6: [5], 7: [6]}


def test_who_wants_one_of_three_permits_watches_three() -> None:
    """At most so many are woken by a release."""
    decision = decide([contender(order, 1, 3) for order in range(1, 9)])
    assert [each.order for each in to_watch(decision, decision.waiters[2])] == [5, 4, 3]


def heard_of(entries: list[Entry]) -> dict[int, list[int]]:
    """Return what each waiter watches besides, to hear that those before it hold; without those that watch nothing."""
    decision = decide(entries)
    more = {waiter.order: to_hear_of_grants(decision, to_watch(decision, waiter)) for waiter in decision.waiters}
    return {order: [each.order for each in entries] for order, entries in more.items() if entries}


def test_who_is_right_behind_the_next_holder_hears_of_its_grant() -> None:
    """And nobody farther back, so a release wakes no more than one waiter more."""
    assert heard_of([contender(order) for order in range(1, 201)]) == {3: [1]}
    weights = {1: 9, 2: 1, 3: 1, 4: 9, 5: 9}
    assert heard_of([contender(order, weight, 9) for order, weight in weights.items()]) == {4: [1]}
    assert heard_of([contender(order, 1, 3) for order in range(1, 9)]) == {5: [1]}
    assert heard_of([contender(1)]) == {}
    kept = Entry(Kind.PLACEHOLDER, "r1", 1)
    assert heard_of([kept, contender(2), contender(3)]) == {3: [1]}


def test_a_capacity_is_changed_by_who_knows_it() -> None:
    """Of two changes at once the first counts, and the second, which knew another number, does not."""
    first, other = contender(1, 1, 3), contender(4, 1, 5)
    sizes = [Entry(Kind.SIZE, "s", 2, 1, 5, 3), Entry(Kind.SIZE, "t", 3, 1, 4, 3)]
    assert decide([first, *sizes, other]).capacity == 5
    assert holders([first, *sizes, other]) == ["r1", "r4"]
    alone = decide([*sizes, other])
    assert (alone.capacity, alone.stale) == (5, sizes), "whoever is the first decides anew"


def test_who_asks_for_another_capacity_holds_nothing_and_lets_nobody_pass() -> None:
    """Also if it becomes the first before it has left: who was there for another number waits."""
    lock, stranger, after = contender(1), contender(2, 1, 3), contender(3)
    assert holders([lock, stranger, after]) == ["r1"]
    assert decide([lock, stranger, after]).foreign == [stranger]
    assert "r3" not in holders([stranger, after])
    decision = decide([stranger, after])
    assert to_watch(decision, decision.waiters[-1]) == [stranger]
    assert holders([after]) == ["r3"]


def test_what_is_lighter_lets_others_in() -> None:
    """A writer that became a reader shares; told twice, it is as light as the lighter says."""
    writer, reader = contender(1, 9, 9), contender(4, 1, 9)
    assert holders([writer, reader]) == ["r1"]
    light = Entry(Kind.LIGHT, "r1", 2, 1, 9)
    assert holders([replace(writer), light, replace(light, order=3, weight=5), reader]) == ["r1", "r4"]
    assert decide([light, reader]).stale == [light], "of one that is gone it means nothing"


def test_a_block_takes_the_place_of_who_vanished_and_no_more() -> None:
    """Who held beside it still does; who would have followed waits; while it is there it takes nothing."""
    first, beside, next_one = contender(1, 1, 2), contender(2, 1, 2), contender(4, 1, 2)
    block = Entry(Kind.BLOCK, "r1", 3, 1, 2, before=1)
    assert holders([first, beside, block, next_one]) == ["r1", "r2"]
    assert holders([beside, block, next_one]) == ["r2"]
    assert decide([beside, block, next_one]).blocks == [block]
    twice = replace(block, order=5, weight=2)
    assert decide([beside, block, next_one, twice]).blocks == [block], "of a repeated request one counts, the lightest"


def test_what_is_kept_takes_room_that_is_nobodys() -> None:
    """A name is not free while a min_hold or a lock delay lasts."""
    kept = Entry(Kind.PLACEHOLDER, "r1", 1)
    assert holders([kept, contender(2)]) == []
    decision = decide([kept, contender(2), contender(3)])
    assert to_watch(decision, decision.waiters[0]) == [kept]


def test_a_block_beside_what_came_in_its_place_means_nothing() -> None:
    """One that was written late counts no more than the one that was replaced; that of a later lease does."""
    kept = Entry(Kind.PLACEHOLDER, "r1", 1, 1, 2, before=1)
    late = Entry(Kind.BLOCK, "r1", 7, 1, 2, before=1)
    decision = decide([kept, contender(5, 1, 2), late])
    assert decision.stale == [late]
    assert decision.blocks == []
    assert [entry.request_id for entry in decision.holders] == ["r5"]
    later = Entry(Kind.BLOCK, "r1", 8, 1, 2, before=6)
    assert decide([kept, contender(9, 1, 2), later]).blocks == [later]
