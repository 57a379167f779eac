"""A scene: several users of one stock, whose requests run in an order of the test's own; any of them may die or wait.

Each request of a user ends its turn before and after the store has acted, so a user may die, or others may act, at both
places. Replies and requests get lost. After each step the scene compares what the cells have with what must be true.
"""

import json
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, cast

from tenure.contracts.cells import Addition, Cell
from tenure.core.cells import FORGOTTEN, Cells
from tenure.core.segments import SegmentedStock
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.table import stock
from tenure.table.stock import Segment

if TYPE_CHECKING:
    from tenure.core.session import Session

TTL = 1_000_000


class Turn:
    """Awaited, it lets the scene go on with another user."""

    def __await__(self) -> Generator[None]:
        """End the turn."""
        yield


class Broken(AssertionError):
    """A promise of the stock was broken."""


@dataclass
class Store:
    """A store of cells that loses requests and replies."""

    chance: Random
    losses: float
    now: int = 1_000_000_000
    cells: dict[str, tuple[bytes, int]] = field(default_factory=dict[str, tuple[bytes, int]])
    writes: int = 0
    late: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])
    """Requests without a reply that the store may still carry out."""

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell."""
        await Turn()
        self._lose(StoreUnavailable("the request was lost"))
        cell = Cell(*self.cells.get(name, (b"", 0)), self.now)
        await Turn()
        return cell

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell."""
        await Turn()
        self._lose(StoreUnavailable("the request was lost"))
        self._delay(lambda: self._write(name, value, version))
        cell = self._write(name, value, version)
        await Turn()
        self._lose(OutcomeUnknown("the reply was lost"))
        return cell

    def _write(self, name: str, value: bytes, version: int) -> Cell:
        written = self.cells.get(name, (b"", 0))[1] == version
        if written:
            self.writes += 1
            self.cells[name] = value, self.writes
        return Cell(*self.cells.get(name, (b"", 0)), self.now, written)

    async def add_to_cell(self, name: str, addition: Addition, lane: str, number: int, until: float) -> int | None:
        """Make an addition, as the script of Redis does."""
        await Turn()
        self._lose(StoreUnavailable("the request was lost"))
        self._delay(lambda: self.add(name, addition, lane, number))
        reply = self.add(name, addition, lane, number)
        await Turn()
        self._lose(OutcomeUnknown("the reply was lost"))
        return reply

    def add(self, name: str, addition: Addition, lane: str, number: int) -> int | None:
        """Make an addition at once."""
        if name not in self.cells:
            return None
        value, version = self.cells[name]
        state, replies = json.loads(value)
        if lane not in replies and self.may_be_forgotten(replies):
            return None
        last = replies.pop(lane, [0, 0])
        if last[0] == number:
            return last[1] if isinstance(last[1], int) else None
        if state is None:
            return None
        total = state[0] + addition.by
        if self.is_late(last[0], number) or not addition.least <= total <= addition.most:
            return None
        reply = total if addition.reply is None else addition.reply
        replies[lane] = [number, reply, version]
        self._write(name, json.dumps([[total, *state[1:]], replies]).encode(), version)
        return reply

    def is_late(self, last: int, number: int) -> bool:
        """Tell whether a request is a late copy: its lane has made a later change."""
        return last > number

    def may_be_forgotten(self, replies: dict[str, Any]) -> bool:
        """Tell whether a request without a reply in the cell may be a late copy: the cell has forgotten some."""
        return FORGOTTEN in replies

    def _delay(self, request: Callable[[], object]) -> None:
        """Lose a request for now, maybe: it arrives at a later turn."""
        if self.chance.random() < self.losses:
            self.late.append(request)
            raise OutcomeUnknown("the request is late")

    def _lose(self, error: StoreUnavailable) -> None:
        if self.chance.random() < self.losses:
            raise error


class Flag:
    """A flag that the calls of a user wait for."""

    def __init__(self) -> None:
        """Start lowered."""
        self.raised = False

    def set(self) -> None:
        """Raise it."""
        self.raised = True

    def clear(self) -> None:
        """Lower it."""
        self.raised = False

    async def wait(self, until: float) -> bool:
        """Let others go on until it is raised."""
        while not self.raised:
            await Turn()
        return True


@dataclass
class User:
    """A session, as far as cells and stocks use it."""

    store: Store
    name: str
    retry_for: float = 1e9
    operation_timeout: float = 1.0
    ids: int = 0

    def __post_init__(self) -> None:
        """Make the cells."""
        self.runtime = self
        self.access = self
        self.requests = self
        self.mutex: AbstractContextManager[Any] = nullcontext()
        self.cells = Cells(cast("Session", self))

    def now(self) -> float:
        """Return a time at which nothing is ever given up."""
        return 0.0

    def random(self) -> float:
        """Return a number."""
        return self.store.chance.random()

    def new_id(self) -> str:
        """Return an id."""
        self.ids += 1
        return f"{self.name}-{self.ids}"

    def event(self) -> Flag:
        """Return a flag."""
        return Flag()

    async def sleep(self, seconds: float) -> None:
        """Let others go on."""
        await Turn()

    opened = True

    async def open(self) -> None:
        """Do nothing."""

    async def repeat_until(
        self,
        operation: Callable[[float], Coroutine[Any, Any, Any]],
        until: float,
        last_try: float,
    ) -> Any:  # noqa: ANN401
        """Repeat a request until it is answered."""
        while True:
            try:
                return await operation(until)
            except StoreUnavailable:
                await Turn()


@dataclass
class Call:
    """A call of a user that is under way."""

    kind: str
    units: int
    work: Coroutine[Any, Any, Any]
    least: int
    """The fewest units that were left while it ran."""


class Scene:
    """One stock, its users, and what they have got."""

    def __init__(self, chance: Random, *, segments: int = 3, losses: float = 0.05, crashes: float = 0.01) -> None:
        """Begin with an empty stock."""
        self.chance, self.crashes, self.count = chance, crashes, segments
        self.store = Store(chance, losses)
        self.names = [f"s{at}" for at in range(segments)]
        self.certain = 0
        """The units that must be left once all reservations have expired."""
        self.maybe: list[int] = []
        """The changes that calls of dead users may have made."""
        self.calls: list[Call] = []
        self.users: list[User] = []

    def segments(self) -> list[Segment]:
        """Return what the cells have."""
        found: list[Segment] = []
        for name in self.names:
            value, _ = self.store.cells.get(name, (b"", 0))
            found.append(Segment.read(json.loads(value)[0] if value else None, self.count))
        return found

    def left(self) -> int:
        """Return how many units can be taken, or are in transit."""
        segments = self.segments()
        total = 0
        for at, segment in enumerate(segments):
            if segment.free < 0:
                raise Broken("a segment has fewer than no units")
            total += segment.available(self.store.now)
            if segment.transit and segments[segment.transit[2]].received.get(str(at), 0) < segment.transit[0]:
                total += segment.transit[1]
        return total

    def new_stock(self) -> SegmentedStock:
        """Return the stock of a user, of whom there are up to three."""
        if len(self.users) < 6:
            self.users.append(User(self.store, f"user{len(self.users)}"))
        return SegmentedStock(cast("Session", self.chance.choice(self.users)), self.names, "stock")

    def start(self, kind: str, units: int) -> None:
        """Begin a call."""
        stock_ = self.new_stock()
        works: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "take": lambda: stock_.take(units),
            "restock": lambda: stock_.restock(units),
            "rebalance": stock_.rebalance,
            "reserve": lambda: self._reserve(stock_, units),
            "total": stock_.total,
        }
        self.calls.append(Call(kind, units, works[kind](), self.left()))

    async def _reserve(self, stock_: SegmentedStock, units: int) -> int | None:
        """Reserve, wait, and confirm or cancel; return how many units are gone, None if it was refused."""
        reservation = cast("User", stock_.session).new_id()
        at = await stock_.obtain(units, stock.reserve(units, TTL, reservation, self.count))
        if at is None:
            return None
        reserved_until = self.store.now + TTL
        for _ in range(self.chance.randrange(4)):
            await Turn()
        late = self.store.now >= reserved_until
        if self.chance.random() < 0.3:
            await stock_.change(at, stock.cancel(reservation, self.count))
            return 0
        confirmed = await stock_.change(at, stock.confirm(reservation, self.count))
        if confirmed and late:
            raise Broken("a reservation was confirmed after it had expired")
        return units if confirmed else 0

    def step(self) -> None:
        """Let one call go on, or die."""
        if self.store.late and self.chance.random() < 0.05:
            self.store.late.pop(self.chance.randrange(len(self.store.late)))()
        call = self.chance.choice(self.calls)
        if self.chance.random() < self.crashes:
            call.work.close()
            self._may_have_been(call)
            return
        if self.chance.random() < 0.03:
            self.store.now += TTL // 2
        try:
            call.work.send(None)
        except StopIteration as end:
            self.calls.remove(call)
            self._ended(call, end.value)
        except OutcomeUnknown:
            self._may_have_been(call)
        left = self.left()
        for each in self.calls:
            each.least = min(each.least, left)

    def _may_have_been(self, call: Call) -> None:
        """Note that a call was made, or not."""
        self.calls.remove(call)
        if call.kind in ("take", "reserve", "restock"):
            self.maybe.append(call.units if call.kind == "restock" else -call.units)

    def _ended(self, call: Call, result: Any) -> None:  # noqa: ANN401
        call.least = min(call.least, self.left())
        if call.kind == "restock":
            self.certain += call.units
        elif call.kind == "take":
            self.certain -= result
        elif call.kind == "reserve":
            self.certain -= result or 0
        if ((call.kind == "take" and not result) or (call.kind == "reserve" and result is None)) and (
            call.least >= call.units
        ):
            raise Broken(f"sold out, although {call.least} units were left all the time and {call.units} were asked")

    def run(self, calls: int, most: int = 4) -> None:
        """Run calls, a few at the same time, to their end; then check what is left."""
        kinds = ("take", "take", "take", "reserve", "rebalance", "restock", "total")
        try:
            for _ in range(calls):
                self.start(self.chance.choice(kinds), self.chance.randint(1, 3))
                while len(self.calls) > self.chance.randrange(most):
                    self.step()
            while self.calls:
                self.step()
            self.check()
        finally:
            for call in self.calls:
                call.work.close()

    def check(self) -> None:
        """Raise Broken unless exactly the units are left that must be."""
        for request in self.store.late:
            request()
        self.store.now += 10 * TTL
        possible = {self.certain}
        for change in self.maybe:
            possible |= {each + change for each in possible}
        if self.left() not in possible:
            raise Broken(f"{self.left()} units are left, which is none of {sorted(possible)}")
        self.store.losses = 0.0
        work = self.new_stock().total()
        while True:
            try:
                work.send(None)
            except StopIteration as end:
                if end.value != self.left():
                    raise Broken("the total is wrong") from None
                return
