"""The script that adds to a number in a cell does what the functions of cells do, and answers a repeated request."""

import json
from typing import Any
from uuid import uuid4

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure import Client
from tenure.contracts.cells import AddingCellStore, Addition, Cell, Change
from tenure.core.cells import FORGOTTEN, FULL, Cells
from tenure.core.requests import Settings
from tenure.core.session import Session
from tenure.errors import OutcomeUnknown
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.urls import store_source
from tenure.table import counter
from tests.hazards.helpers import Script
from tests.servers import RedisServer

LANES = ("a.0", "a.1", "b.0", "b.10")
UNTIL = 1e9

replies = st.one_of(st.integers(-(2**53) + 1, 2**53 - 1), st.none(), st.booleans(), st.just([True, 7]))
lanes = st.dictionaries(st.sampled_from((*LANES, FORGOTTEN)), st.tuples(st.integers(1, 3), replies), max_size=4)
rests = st.sampled_from([[], [3, 8], [3, 8, 1, [1, 2, 3], {"1": 4}, {"a": [2, 5], "x-1": [2, 10**15]}]])
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.integers(-5, 5)


@given(
    lanes,
    rests,
    numbers,
    st.builds(Addition, numbers, st.sampled_from([0, -(2**53) + 1]), st.just(2**53 - 1), st.none() | st.integers(0, 9)),
    st.sampled_from(LANES),
    st.integers(1, 3),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_script_makes_the_same_change(  # noqa: PLR0917 - drawn
    redis_server: RedisServer,
    kept: dict[str, tuple[int, Any]],
    rest: list[Any],
    first: int,
    addition: Addition,
    lane: str,
    number: int,
) -> None:
    """Whatever stands in the cell: the same state, replies in the same order, and a repeated change is answered."""
    runtime = ThreadsRuntime()
    store = store_source(redis_server.url).make(runtime)
    assert isinstance(store, AddingCellStore)
    drive(store.open(lambda _: None, UNTIL))
    name = uuid4().hex
    before = {each: [*made, 10**15 + at] for at, (each, made) in enumerate(kept.items())}
    value = json.dumps([[first, *rest], before], separators=(",", ":")).encode()
    cell = drive(store.write_cell(name, value, 0, 0, UNTIL))
    reply = drive(store.add_to_cell(name, addition, lane, number, UNTIL))
    after = drive(store.read_cell(name, UNTIL))
    last = before.get(lane)
    if last is not None and last[0] == number and type(last[1]) is int:
        assert (reply, after.value) == (last[1], value)
    elif (
        (last is None and FORGOTTEN in before)
        or (last is not None and (type(last[1]) is not int or last[0] > number))
        or not addition.least <= first + addition.by <= addition.most
    ):
        assert (reply, after.value, after.version) == (None, value, cell.version)
    else:
        assert reply == (first + addition.by if addition.reply is None else addition.reply)
        state, replies_after = json.loads(after.value)
        assert state == [first + addition.by, *rest]
        assert after.version > cell.version
        others = {each: made for each, made in before.items() if each != lane}
        assert list(replies_after.items()) == [*others.items(), (lane, [number, reply, cell.version])]
        assert drive(store.add_to_cell(name, addition, lane, number, UNTIL)) == reply
        assert drive(store.read_cell(name, UNTIL)).value == after.value
    drive(store.close())


def test_a_lost_reply_of_the_script_is_found_again(redis_server: RedisServer) -> None:
    """Each second reply is lost; the counter counts each call once."""
    runtime = ThreadsRuntime()
    store = store_source(redis_server.url).make(runtime)
    assert isinstance(store, AddingCellStore)
    add, calls = store.add_to_cell, 0

    async def lossy(name: str, addition: Addition, lane: str, number: int, until: float) -> int | None:
        nonlocal calls
        calls += 1
        reply = await add(name, addition, lane, number, until)
        if calls % 2:
            raise OutcomeUnknown("the reply was lost")
        return reply

    store.add_to_cell = lossy  # type: ignore[method-assign]
    session = Session(runtime, store, Settings("owner"))
    cells, name = Cells(session), uuid4().hex

    def one() -> int:
        made: int = drive(cells.change(name, counter.add(1), counter.addition(1)))
        return made

    assert [one() for _ in range(20)] == list(range(1, 21))
    drive(session.close())


def test_a_large_cell_is_left_to_the_client(redis_server: RedisServer) -> None:
    """The client drops old replies, which the script does not."""
    with Client(redis_server.url) as client:
        session = client.session()
        drive(session.open())
        store = session.store
        assert isinstance(store, AddingCellStore)
        name = uuid4().hex
        old = {f"old.{at}": [1, 1, 10**15 + at] for at in range(1500)}
        value = json.dumps([[5], old], separators=(",", ":")).encode()
        made: Cell = drive(store.write_cell(name, value, 0, 0, session.runtime.now() + 5))
        assert made.written
        change: Change = counter.add(1)([5], 0)
        assert drive(session.cells.change(name, counter.add(1), counter.addition(1))) == change.reply
        after = drive(store.read_cell(name, session.runtime.now() + 5))
        assert len(after.value) < FULL
        replies_after = json.loads(after.value)[1]
        assert 200 < len(replies_after) < 1500
        assert replies_after["old.1499"] == old["old.1499"]


def test_a_late_copy_is_refused_though_the_cell_has_forgotten_its_reply(redis_server: RedisServer) -> None:
    """A client that comes anew makes its first addition by the functions, and the next ones by the script."""
    runtime = ThreadsRuntime()
    store = store_source(redis_server.url).make(runtime)
    assert isinstance(store, AddingCellStore)
    drive(store.open(lambda _: None, UNTIL))
    name, one = uuid4().hex, counter.addition(1)
    begun = drive(store.write_cell(name, b"[[5],{}]", 0, 0, UNTIL))
    assert drive(store.add_to_cell(name, one, "a.0", 1, UNTIL)) == 6
    known = drive(store.read_cell(name, UNTIL))
    forgetful = json.dumps([[6], {FORGOTTEN: [0, None, begun.version + 1], "b.0": [1, 6, known.version]}])
    drive(store.write_cell(name, forgetful.replace(" ", "").encode(), known.version, 0, UNTIL))
    assert drive(store.add_to_cell(name, one, "a.0", 1, UNTIL)) is None
    assert drive(store.read_cell(name, UNTIL)).value == forgetful.replace(" ", "").encode()
    assert drive(store.add_to_cell(name, one, "b.0", 2, UNTIL)) == 7
    session = Session(runtime, store, Settings("owner"))
    cells, calls, add = Cells(session), list[int | None](), store.add_to_cell

    async def noted(name: str, addition: Addition, lane: str, number: int, until: float) -> int | None:
        calls.append(await add(name, addition, lane, number, until))
        return calls[-1]

    store.add_to_cell = noted  # type: ignore[method-assign]
    assert [drive(cells.change(name, counter.add(1), one)) for _ in range(3)] == [8, 9, 10]
    assert calls == [None, 9, 10]
    drive(session.close())


BUY = """
import sys, tenure
with tenure.Client(sys.argv[1], namespace=sys.argv[2]) as client:
    stock, counter, sold = client.stock("tickets", 4), client.counter("sold"), 0
    while stock.take():
        sold += 1
        counter.add()
    print(sold)
"""


def test_processes_buy_each_unit_once(redis_server: RedisServer) -> None:
    """Four processes sell out a stock over the script, and none gets a unit twice."""
    space = uuid4().hex
    with Client(redis_server.url, namespace=space) as client:
        client.stock("tickets", 4).restock(500)
        buyers = [Script(BUY, redis_server.url, space) for _ in range(4)]
        assert sum(int(buyer.end()[0]) for buyer in buyers) == 500
        assert client.counter("sold").get() == 500
