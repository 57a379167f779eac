"""A stock whose units lie in segments: takes them, and moves them together or apart (table/stock.py has the rules).

Each take is one change of one segment, so a process that dies in the middle of a call has taken the units or not. Only
if no segment has enough units are all of them read, and units moved into the first segment.
"""

from collections.abc import Callable
from typing import Any

from tenure.contracts.cells import Addition, Change
from tenure.core.session import Session
from tenure.errors import StoreError, StoreUnavailable, UsageError
from tenure.table import stock
from tenure.table.stock import Segment, Transit

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05
"""The bounds of the pause before a stock is read again because others change it, in seconds."""

READINGS = 16
"""How often `total` reads the segments before it does with a sum that others have changed meanwhile."""


class SegmentedStock:
    """The stock of one name in one session."""

    def __init__(self, session: Session, names: list[str], title: str) -> None:
        """Use the cells of these names, one for each segment."""
        self.session = session
        self._cells = session.cells
        self._names = names
        self._title = title
        self._count = len(names)
        self._checked = False

    async def take(self, units: int) -> int:
        """Take units, all or none; return how many. 0 means that at some instant of the call fewer were left."""
        return units if await self.obtain(units, stock.take(units, self._count), stock.taking(units)) is not None else 0

    async def obtain(
        self, units: int, work: Callable[[Any, int], Change], addition: Addition | None = None
    ) -> int | None:
        """Make a change that takes so many units in a segment that has them; return which, or None if none are left.

        The change replies None in a segment that is full of reservations. Raises UsageError if all segments are,
        StoreUnavailable if the store did not answer, or others moved units for `retry_for` seconds, and OutcomeUnknown
        if the change may have been made, once or not at all.
        """
        await self.check()
        runtime = self.session.runtime
        give_up_at = runtime.now() + self.session.requests.retry_for
        pause = FIRST_PAUSE
        while True:
            home = int(runtime.random() * self._count)
            full: set[int] = set()
            for step in range(self._count):
                at = (home + step) % self._count
                reply = await self._cells.change(self._names[at], work, addition)
                if reply:
                    return at
                if reply is None:
                    full.add(at)
            if await self._sold_out(units):
                return None
            to = self._first_but(full)
            await self._gather(units, to)
            if await self._cells.change(self._names[to], work, addition):
                return to
            if runtime.now() + pause > give_up_at:
                raise StoreUnavailable(
                    f"{units} units of the stock {self._title!r} were not taken within "
                    f"{self.session.requests.retry_for:g} s, "
                    "because others moved units all the time: try again"
                )
            await runtime.sleep(pause * (0.5 + runtime.random()))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def restock(self, units: int) -> None:
        """Add units, in one change of one segment, and spread them over all segments."""
        await self.check()
        home = int(self.session.runtime.random() * self._count)
        await self._cells.change(self._names[home], stock.restock(units, self._count))
        try:
            await self.rebalance()
        except StoreError:  # the units are there, and takes find them wherever they are
            return

    async def rebalance(self) -> None:
        """Spread the units evenly over the segments, as they stood when it began."""
        await self.check()
        segments, now = await self._settled()
        available = [segment.available(now) for segment in segments]
        share, rest = divmod(sum(available), self._count)
        missing = [share + (at < rest) - units for at, units in enumerate(available)]
        for sender in range(self._count):
            for to in range(self._count):
                units = min(-missing[sender], missing[to])
                if units > 0:
                    await self._transfer(sender, to, units)
                    missing[sender] += units
                    missing[to] -= units

    async def total(self) -> int:
        """Return the units that can be taken, with those in transit; reserved units are not among them."""
        await self.check()
        first, now = await self._read()
        for _ in range(READINGS):
            second, _ = await self._read()
            if first == second and not any(each.transit for each in first):
                break
            first, now = await self._settled()
        return sum(segment.available(now) for segment in first)

    async def change(self, segment: int, work: Callable[[Any, int], Change]) -> Any:  # noqa: ANN401
        """Change one segment."""
        return await self._cells.change(self._names[segment], work)

    async def check(self) -> None:
        """Raise UsageError if the stock has another number of segments; the first user decides it."""
        if self._checked:
            return
        await self._cells.change(self._names[0], stock.begin(self._count))
        self._checked = True

    # -- readings and transfers ----------------------------------------------------------------------------

    async def _sold_out(self, units: int) -> bool:
        """Tell whether fewer units were left at some instant. False: there may be enough."""
        first, now = await self._settled()
        second, _ = await self._read()
        return stock.sold_out(units, first, second, now)

    def _first_but(self, full: set[int]) -> int:
        """Return the first segment that has room for a reservation."""
        if len(full) < self._count:
            return min(set(range(self._count)) - full)
        raise UsageError(
            f"each segment of the stock {self._title!r} has {stock.MOST_RESERVATIONS} reservations, and keeps no more: "
            "confirm or cancel them sooner, or use more segments"
        )

    async def _gather(self, units: int, to: int) -> None:
        """Move units into a segment until it has so many: the first that can be. So nobody moves them back."""
        segments, now = await self._settled()
        missing = units - segments[to].available(now)
        for sender in range(self._count):
            if missing <= 0:
                return
            if sender != to and (found := min(missing, segments[sender].available(now))):
                missing -= await self._transfer(sender, to, found)

    async def _settled(self) -> tuple[list[Segment], int]:
        """Complete the transfers that are under way, until a reading shows none; return it."""
        segments, now = await self._read()
        while any(segment.transit for segment in segments):
            for at, segment in enumerate(segments):
                if segment.transit is not None:
                    await self._complete(at, segment.transit)
            segments, now = await self._read()
        return segments, now

    async def _read(self) -> tuple[list[Segment], int]:
        """Return all segments, read one after another, and the latest time of the store."""
        segments: list[Segment] = []
        latest = 0
        for name in self._names:
            segment, now = await self._cells.read(
                name, lambda state, now: (Segment.read(state, self._count), now), None
            )
            segments.append(segment)
            latest = max(latest, now)
        return segments, latest

    async def _transfer(self, sender: int, to: int, most: int) -> int:
        """Move up to `most` units from one segment to another; return how many."""
        transit = await self._cells.change(self._names[sender], stock.send(most, to, self._count))
        if transit is None:
            return 0
        number, units, to = transit
        await self._complete(sender, (number, units, to))
        return int(units)

    async def _complete(self, sender: int, transit: Transit) -> None:
        await self._cells.change(self._names[transit[2]], stock.receive(sender, transit, self._count))
        await self._cells.change(self._names[sender], stock.sent(transit, self._count))
