"""Stocks: no unit is lost, doubled or refused while it is there, wherever users die and whatever is lost."""

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.contracts.cells import LARGEST_CELL, Change
from tenure.core import cells
from tenure.errors import UsageError
from tenure.table import stock
from tenure.table.stock import Segment
from tests.planting import methods_of, module_with
from tests.table.scenes import Broken, Scene, Store

SEEDS = 4000
"""How many scenes may pass before a planted bug must have been found."""


CROWDED = {"calls": 24, "most": 8}
"""The size of scenes in which several clients change a cell between two requests of another one."""


def play(chance: Random, crashes: float = 0.01, calls: int = 12, most: int = 4) -> None:
    """Run one scene that begins with a few units, of so many calls, of which up to `most` are under way at once."""
    scene = Scene(chance, segments=chance.randint(1, 4), crashes=crashes)
    scene.start("restock", chance.randint(1, 8))
    scene.run(calls, most)


@given(st.randoms(use_true_random=False))
def test_no_unit_is_lost_doubled_or_refused(chance: Random) -> None:
    """Several users take, reserve, restock and move units; requests and replies get lost, users die at any point."""
    play(chance)


def test_no_unit_is_lost_doubled_or_refused_in_many_scenes() -> None:
    """As many scenes as the planted bugs are given, with the seeds in which they are found."""
    for seed in range(SEEDS // 8):
        play(Random(seed))
        play(Random(seed), crashes=0.0)


def forget_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cells keep few replies."""
    monkeypatch.setattr(cells, "FULL", 100)
    monkeypatch.setattr(cells, "REPLIES", 60)


def test_no_unit_is_lost_doubled_or_refused_though_cells_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell keeps two replies or three, so that late requests and repeated ones often find theirs forgotten."""
    forget_soon(monkeypatch)
    for seed in range(SEEDS // 40):
        play(Random(seed), **CROWDED)
        play(Random(seed), crashes=0.0, **CROWDED)


def found(seeds: int = SEEDS, **size: int) -> bool:
    """Return whether a scene breaks a promise."""
    for seed in range(seeds):
        try:
            play(Random(seed), crashes=0.01 * (seed % 2), **size)
        except Broken:
            return True
    return False


def forget_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a cell keep no replies, so that a repeated change is made again."""
    write = cells._write

    def without(name: str, state: Any, _replies: object) -> bytes:  # noqa: ANN401
        return write(name, state, {})

    monkeypatch.setattr(cells, "_write", without)


def receive_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the second step of a transfer add the units each time that it is made."""

    def receive(sender: int, transit: stock.Transit, segments: int) -> Callable[[Any, int], Change]:
        def change(state: Any, _now: int) -> Change:  # noqa: ANN401
            segment = Segment.read(state, segments)
            segment.add(transit[1])
            return Change(segment.state(), None)

        return change

    monkeypatch.setattr(stock, "receive", receive)


def ignore_transit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a refusal not look at what is in transit."""
    true = stock.sold_out

    def sold_out(units: int, first: list[Segment], second: list[Segment], now: int) -> bool:
        without = [[replace(each, transit=None) for each in reading] for reading in (first, second)]
        return true(units, without[0], without[1], now)

    monkeypatch.setattr(stock, "sold_out", sold_out)
    monkeypatch.setattr("tenure.core.segments.SegmentedStock._settled", _read)


async def _read(self: Any) -> Any:  # noqa: ANN401
    return await self._read()


def collect_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a refusal read the segments once."""
    true = stock.sold_out

    def sold_out(units: int, first: list[Segment], _second: list[Segment], now: int) -> bool:
        return true(units, first, first, now)

    monkeypatch.setattr(stock, "sold_out", sold_out)


def count_no_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a refusal compare two sums, but not whether units have arrived between."""

    def sold_out(units: int, first: list[Segment], second: list[Segment], now: int) -> bool:
        return not any(each.transit for each in (*first, *second)) and all(
            sum(each.available(now) for each in reading) < units for reading in (first, second)
        )

    monkeypatch.setattr(stock, "sold_out", sold_out)


def confirm_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confirm a reservation after its end, if nobody has changed the segment meanwhile."""

    def confirm(reservation: str, segments: int) -> Callable[[Any, int], Change]:
        def change(state: Any, _now: int) -> Change:  # noqa: ANN401
            segment = Segment.read(state, segments)
            there = segment.reserved.pop(reservation, None) is not None
            return Change(segment.state(), there, changed=there)

        return change

    monkeypatch.setattr(stock, "confirm", confirm)


def cancel_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the units of an expired reservation to the stock again and again."""

    def drop_expired(self: Segment, now: int) -> bool:
        expired = self.expired(now)
        for each in expired:
            self.add(self.reserved[each][0])
        return bool(expired)

    monkeypatch.setattr(Segment, "drop_expired", drop_expired)


def clear_before_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sender forget a transfer before the receiver has it."""

    async def complete(self: Any, sender: int, transit: stock.Transit) -> None:  # noqa: ANN401
        await self._cells.change(self._names[sender], stock.sent(transit, self._count))
        await self._cells.change(self._names[transit[2]], stock.receive(sender, transit, self._count))

    monkeypatch.setattr("tenure.core.segments.SegmentedStock._complete", complete)


def clear_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a late completer clear whatever is in transit by then."""

    def sent(_transit: stock.Transit, segments: int) -> Callable[[Any, int], Change]:
        def change(state: Any, _now: int) -> Change:  # noqa: ANN401
            segment = Segment.read(state, segments)
            segment.transit = None
            return Change(segment.state(), None)

        return change

    monkeypatch.setattr(stock, "sent", sent)


def accept_late_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an addition that arrives late be made again, although its lane has made later changes."""
    monkeypatch.setattr(Store, "is_late", _never)


def _never(_self: Store, _last: int, _number: int) -> bool:
    return False


def accept_forgotten_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an addition that arrives late be made again after the cell has forgotten its reply."""
    monkeypatch.setattr(Store, "may_be_forgotten", _nothing_is_forgotten)


def _nothing_is_forgotten(*_: object) -> bool:
    return False


def make_forgotten_changes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client make a change again that is not in the cell, whatever the cell has forgotten."""
    monkeypatch.setattr(cells, "_may_be_forgotten", _nothing_is_forgotten)


def in_cells(monkeypatch: pytest.MonkeyPatch, before: str, after: str) -> None:
    """Change the text of what makes the changes of a client."""
    monkeypatch.setattr(cells.Cells, "_round", methods_of(module_with(cells, (before, after)), "Cells")["_round"])


def leave_refusals_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a refusal without a write although an earlier request may still arrive, which is then made."""
    in_cells(monkeypatch, "and not line.late:", ":")


@pytest.mark.parametrize(
    "plant",
    [
        accept_late_requests,
        leave_refusals_unwritten,
        forget_replies,
        receive_twice,
        ignore_transit,
        collect_once,
        confirm_expired,
        cancel_twice,
        clear_before_arrival,
        clear_any,
    ],
)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bug breaks a promise in one of the scenes."""
    plant(monkeypatch)
    assert found()


@pytest.mark.parametrize("plant", [accept_forgotten_requests, make_forgotten_changes_again])
def test_a_planted_bug_is_found_though_cells_forget(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bug breaks a promise in one of the scenes in which cells keep few replies."""
    forget_soon(monkeypatch)
    plant(monkeypatch)
    assert found(**CROWDED)


def move(states: list[Any], sender: int, to: int) -> None:
    """Move a unit between two segments, in three steps."""
    out = stock.send(1, to, 2)(states[sender], 0)
    number, units, _ = out.reply
    states[sender] = out.state
    states[to] = stock.receive(sender, (number, units, to), 2)(states[to], 0).state
    states[sender] = stock.sent((number, units, to), 2)(states[sender], 0).state


def refused_behind_the_reader() -> bool:
    """Return whether a reader says `sold out` of a unit that always moves to the segment that it has just read."""
    states: list[Any] = [stock.begin(2)(None, 0).state, stock.restock(1, 2)(None, 0).state]
    readings: list[list[Segment]] = []
    for _ in range(2):
        zero = Segment.read(states[0], 2)
        move(states, 1, 0)
        readings.append([zero, Segment.read(states[1], 2)])
        move(states, 0, 1)
    return stock.sold_out(1, readings[0], readings[1], now=0)


def test_a_unit_that_moves_behind_the_reader_is_not_sold_out() -> None:
    """Both readings show no unit, and nothing in transit."""
    assert not refused_behind_the_reader()


def test_two_sums_alone_would_say_sold_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: arrivals are not counted."""
    count_no_arrivals(monkeypatch)
    assert refused_behind_the_reader()


def test_another_number_of_segments_is_refused() -> None:
    """The error has both numbers."""
    state = stock.restock(5, 8)(None, 0).state
    with pytest.raises(UsageError, match=r"8 segments, and segments=4"):
        stock.take(1, 4)(state, 0)


def test_a_segment_has_bounds() -> None:
    """Neither units nor reservations grow beyond what a cell keeps exactly, and a full segment has room for replies."""
    state = stock.restock(stock.MOST_UNITS, 1)(None, 0).state
    with pytest.raises(UsageError, match=r"2\*\*48"):
        stock.restock(1, 1)(state, 0)
    for each in range(stock.MOST_RESERVATIONS):
        state = stock.reserve(1, 10, f"r{each}", 1)(state, 0).state
    assert stock.reserve(1, 10, "one more", 1)(state, 0).reply is None
    assert stock.reserve(1, 10, "later", 1)(state, 10).reply == 1
    segment = Segment(32, stock.MOST_UNITS, 2**50, 2**50, (2**50, stock.MOST_UNITS, 31))
    segment.received = {str(sender): 2**50 for sender in range(32)}
    segment.reserved = {uuid4().hex: [stock.MOST_UNITS, 2**53] for _ in range(stock.MOST_RESERVATIONS)}
    assert len(json.dumps(segment.state(), separators=(",", ":"))) + cells.REPLIES < LARGEST_CELL - 8_000


def test_what_an_addition_takes_is_what_the_function_takes() -> None:
    """The first number of the state is what can be taken at once."""
    state = stock.restock(5, 1)(None, 0).state
    addition = stock.taking(3)
    after = stock.take(3, 1)(state, 0)
    assert (state[0] + addition.by, addition.reply) == (after.state[0], after.reply)
    assert state[1:] == after.state[1:]
