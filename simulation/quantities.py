"""Simulated nodes that use one counter, two limits and one stock, and the ledger of what they were told.

What a node was told is known; what it was not told (the reply was lost, it was cancelled, it died) may have happened,
or may still. The ledger keeps both, and checks every reply against the bounds that follow.
"""

import random
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from simulation.faults import Faults
from simulation.invariants import Invariant, Tell
from simulation.runtime import Cancelled, Process
from tenure.contracts.deadlines import micros
from tenure.core.segments import SegmentedStock
from tenure.core.session import Session
from tenure.core.slots import take_slot
from tenure.errors import OutcomeUnknown, StoreError
from tenure.table import counter, limit, stock
from tenure.table.limit import Slot, SmoothRule, WindowRule

COUNTER = "counter:c"
SEGMENTS = ("stock-0:s", "stock-1:s", "stock-2:s")

SMOOTH = SmoothRule(4, 1_000_000, 2)
WINDOW = WindowRule(4, 1_000_000)
PER = 1.0

LIMITS = (("limit:smooth", SMOOTH, SMOOTH.rate + SMOOTH.burst - 1), ("limit:window", WINDOW, WINDOW.rate))
"""The cell and the rule of each limit, and how many units pass in a window."""

DRIFT = 0.03
"""By how much a second of the store may differ from a true one, and a client's from either."""

CALLS = 4
"""How many calls a client makes in one round."""

MANY_CALLERS = 4
"""How many callers of one client may add at the same time."""

STARVED = re.compile("others were faster ([0-9]+) times")
"""The text of the error of a change that failed though the store answered every request."""

TURNS = 8
"""How often others may be faster than a change that fails because the store is slow, or its client is paused."""


@dataclass
class Bounds:
    """How much was certainly added to something, and how much may have been besides."""

    known: int = 0
    unsure: int = 0

    @property
    def most(self) -> int:
        """The most that may have been added."""
        return self.known + self.unsure


@dataclass
class QuantityLedger:
    """The changes of all nodes, as far as the nodes were told of them."""

    tell: Tell
    counted: Bounds = field(default_factory=Bounds)
    highest: int = 0
    """The highest value of the counter that a node was told."""
    values: set[int] = field(default_factory=set[int])
    passed: dict[str, list[tuple[float, float, int]]] = field(default_factory=dict[str, list[tuple[float, float, int]]])
    """For each use of a limit: when the call began, when it returned, and how many units were used at last."""
    brought: Bounds = field(default_factory=Bounds)
    taken: Bounds = field(default_factory=Bounds)
    uses: int = 0
    """How many additions, uses of the limits and takes were told to have succeeded."""

    def has_counted(self, value: int, at_least: int) -> None:
        """Check the value that an addition of one returned; it began when `at_least` was known."""
        self.uses += 1
        if value in self.values:
            self.tell(Invariant.QUANTITY, f"two additions gave the counter the value {value}")
        if not at_least < value <= self.counted.most:
            self.tell(Invariant.QUANTITY, f"the counter is {value}, not above {at_least} and up to {self.counted.most}")
        self.values.add(value)
        self.highest = max(self.highest, value)

    def has_passed(self, limit: str, began: float, ended: float, units: int, most: int) -> None:
        """Check that no window has more units than the limit lets pass: each was used between these instants."""
        self.uses += 1
        passed = [each for each in self.passed.get(limit, ()) if each[1] > ended - PER]
        self.passed[limit] = passed
        passed.append((began, ended, units))
        for first, _, _ in passed:
            last = first + PER * (1.0 - DRIFT)
            used = sum(units for begin, end, units in passed if first <= begin and end < last)
            if used > most:
                self.tell(Invariant.QUANTITY, f"{used} units passed {limit}, which lets {most} pass in a window")

    def has_taken(self) -> None:
        """Check that no more was taken than may have been brought."""
        self.uses += 1
        if self.taken.known > self.brought.most:
            self.tell(Invariant.QUANTITY, f"{self.taken.known} units were taken of {self.brought.most}")

    def was_refused(self, units: int, brought: int) -> None:
        """Check a refusal of a call that began when so many units were known to be brought."""
        if brought - self.taken.most >= units:
            self.tell(Invariant.QUANTITY, f"{units} units were refused while {brought - self.taken.most} were left")

    def ends(self, count: int, left: int) -> None:
        """Check what is left in the end, after all reservations have ended."""
        if not self.counted.known <= count <= self.counted.most:
            self.tell(Invariant.QUANTITY, f"the counter ends at {count}, not {self.counted}")
        if not self.brought.known - self.taken.most <= left <= self.brought.most - self.taken.known:
            self.tell(Invariant.QUANTITY, f"{left} units are left, of {self.brought} without {self.taken}")


class QuantityRounds:
    """The calls of one simulated client."""

    def __init__(
        self, process: Process, session: Session, ledger: QuantityLedger, faults: Callable[[], Faults]
    ) -> None:
        """Call by `session`."""
        self._process = process
        self._session = session
        self._ledger = ledger
        self._faults = faults
        self._stock = SegmentedStock(session, list(SEGMENTS), "s")

    async def round(self, rng: random.Random) -> None:
        """Make several calls, one after another. An error of the store ends its call alone."""
        calls = (self._add, self._pass, self._take, self._reserve, self._restock)
        for _ in range(CALLS):
            await rng.choice(calls)(rng)
            await self._session.runtime.sleep(rng.expovariate(4.0))

    async def _add(self, rng: random.Random) -> None:
        """Add one, by one caller or by several at the same time."""
        several = rng.choice((1, 1, MANY_CALLERS))
        tasks = [self._process.start(self._add_one(rng), f"{self._process.name}/add") for _ in range(several)]
        for task in tasks:
            await task.result

    async def _add_one(self, rng: random.Random) -> None:
        ledger, at_least = self._ledger, self._ledger.highest
        addition = counter.addition(1) if rng.random() < 0.5 else None
        value = await self._try(self._session.cells.change(COUNTER, counter.add(1), addition), ledger.counted, 1, rng)
        if value is not None:
            ledger.has_counted(value, at_least)

    async def _pass(self, rng: random.Random) -> None:
        """Use some units, and at times settle for fewer, which others may use then."""
        (name, rule, most), began = rng.choice(LIMITS), self._process.world.time
        units, timeout = rng.randint(1, rule.most), rng.choice((0.0, 0.0, 1.0, None))
        try:
            slot: Slot = await self._start(take_slot(self._session, name, rule, units, timeout), rng)
        except (Cancelled, StoreError):
            return
        if slot.refused is not None:
            return
        fewer, ended = rng.choice((0, 0, rng.randint(0, units))), self._process.world.time
        if fewer:  # whatever becomes of it, no more than the rest was used
            with suppress(Cancelled, StoreError):
                await self._start(self._session.cells.change(name, limit.settle(rule, slot.at, -fewer)), rng)
        self._ledger.has_passed(name, began, ended, units - fewer, most)

    async def _take(self, rng: random.Random) -> None:
        ledger, units, brought = self._ledger, rng.randint(1, 3), self._ledger.brought.known
        taken = await self._try(self._stock.take(units), ledger.taken, units, rng)
        if taken == 0:
            ledger.taken.known -= units
            ledger.was_refused(units, brought)
        elif taken is not None:
            ledger.has_taken()

    async def _reserve(self, rng: random.Random) -> None:
        """Reserve units, and confirm or cancel them, or leave them to their ttl."""
        ledger, units, brought = self._ledger, rng.randint(1, 3), self._ledger.brought.known
        session, name = self._session, self._session.runtime.new_id()
        ledger.taken.unsure += units  # until it is known how it ended
        work = stock.reserve(units, micros(rng.choice((0.3, 1.0, 3.0))), name, len(SEGMENTS))
        try:
            segment = await self._start(self._stock.obtain(units, work), rng)
        except (Cancelled, StoreError):
            return
        if segment is None:
            ledger.taken.unsure -= units
            ledger.was_refused(units, brought)
            return
        await session.runtime.sleep(rng.expovariate(2.0))
        confirms = rng.random() < 0.7
        end = stock.confirm(name, len(SEGMENTS)) if confirms else stock.cancel(name, len(SEGMENTS))
        try:
            ended = await self._start(self._stock.change(segment, end), rng)
        except (Cancelled, StoreError):
            return
        if confirms and ended:
            ledger.taken.unsure -= units
            ledger.taken.known += units
            ledger.has_taken()
        # else it has expired or was cancelled; a refusal that came before may have counted it, so it stays unsure

    async def _restock(self, rng: random.Random) -> None:
        units = rng.randint(1, 6)
        await self._try(self._restocked(units), self._ledger.brought, units, rng)

    async def _restocked(self, units: int) -> int:
        await self._stock.restock(units)
        return units

    async def _try(self, work: Coroutine[Any, Any, int], bounds: Bounds, units: int, rng: random.Random) -> int | None:
        """Make a change of so many units; return its reply, or None if nobody knows, or it was not made."""
        bounds.unsure += units
        try:
            reply: int = await self._start(work, rng)
        except (Cancelled, OutcomeUnknown):
            return None
        except StoreError as error:
            bounds.unsure -= units
            if (starved := STARVED.search(str(error))) and int(starved[1]) > TURNS:
                self._ledger.tell(Invariant.QUANTITY, f"a change did not end while others changed the cell: {error}")
            return None
        bounds.unsure -= units
        bounds.known += units
        return reply

    async def _start(self, work: Coroutine[Any, Any, Any], rng: random.Random) -> Any:  # noqa: ANN401 - of any call
        task = self._process.start(work, f"{self._process.name}/quantity")
        if self._faults().cancel and rng.random() < self._faults().cancel:
            task.cancel_at = rng.randint(1, 12)
        return await task.result

    async def end(self) -> None:
        """Look at what is left, and check it."""
        state, _ = await self._session.cells.look(COUNTER)
        self._ledger.ends(counter.value_of(state), await self._stock.total())
