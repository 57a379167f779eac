"""Stocks: a number of units that many take at the same time, never more than there are."""

from types import TracebackType
from typing import Self

from tenure.contracts.cells import cell_name
from tenure.contracts.deadlines import micros
from tenure.contracts.limits import check_duration, check_name, check_number, check_template
from tenure.core.events import EventKind, Subject
from tenure.core.segments import SegmentedStock
from tenure.primitives.base import Sessions
from tenure.runtimes.threads import drive
from tenure.table import stock

SHORTEST = 0.05
"""The least ttl of a reservation, in seconds."""


class _StockReservationBase:
    """The part of a reservation that is the same for threads and asyncio."""

    def __init__(
        self, segments: SegmentedStock, segment: int, reservation: str, rule: tuple[int, int], of: Subject
    ) -> None:
        """Wrap a reservation that was just made; `rule` is its units and the number of segments."""
        self._of = of
        self._segments = segments
        self._segment = segment
        self._reservation = reservation
        self._units, self._count = rule
        self._ended: str | None = None

    @property
    def units(self) -> int:
        """How many units are reserved."""
        return self._units

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._units} units>"

    async def _end(self, how: str) -> bool:
        """Confirm or cancel; once that is known to be done, the same call is answered without a request."""
        if self._ended is not None:
            return self._ended == how
        work = (stock.confirm if how == "confirm" else stock.cancel)(self._reservation, self._count)
        there: bool = await self._segments.change(self._segment, work)
        self._ended = how if there else ""
        events = self._segments.session.events
        if there and events is not None:
            events.units(EventKind.UNITS_TAKEN if how == "confirm" else EventKind.UNITS_RETURNED, self._of)
        return there


class StockReservation(_StockReservationBase):
    """Units of a stock that nobody else can take until they are confirmed, cancelled, or expire. From `Stock.reserve`.

    With `with`, an error in the body cancels the reservation. Without an error it stays as it is: confirm it.
    """

    def confirm(self) -> bool:
        """Take the units for good; return False if the reservation has expired or was cancelled.

        Raises StoreUnavailable if the store did not answer, and OutcomeUnknown if it may have been confirmed: then a
        later False may mean that it was.
        """
        return drive(self._end("confirm"))

    def cancel(self) -> bool:
        """Return the units to the stock; return False if the reservation has expired or was confirmed.

        Errors as of `confirm`.
        """
        return drive(self._end("cancel"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        try:
            self.cancel()
        except Exception as failure:  # noqa: BLE001 - the error of the body counts, and the units return at the ttl
            error.add_note(f"the reservation was not cancelled, and ends at its ttl: {failure}")


class AsyncStockReservation(_StockReservationBase):
    """Units of a stock, as `StockReservation`. From `AsyncStock.reserve`."""

    async def confirm(self) -> bool:
        """Take the units for good; return False if the reservation has expired or was cancelled."""
        return await self._end("confirm")

    async def cancel(self) -> bool:
        """Return the units to the stock; return False if the reservation has expired or was confirmed."""
        return await self._end("cancel")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, GeneratorExit):
            return
        try:
            await self.cancel()
        except Exception as failure:  # noqa: BLE001 - the error of the body counts, and the units return at the ttl
            error.add_note(f"the reservation was not cancelled, and ends at its ttl: {failure}")


class _StockBase:
    """The part of a stock that is the same for threads and asyncio."""

    def __init__(self, client: Sessions, name: str, prefix: str, segments: int, template: str = "") -> None:
        self._client = client
        self._name = check_name(name, "a stock's name")
        self._template = check_template(template)
        count = check_number(segments, "segments", stock.MOST_SEGMENTS)
        self._names = [cell_name(f"stock-{at}", prefix, name) for at in range(count)]
        self._opened: SegmentedStock | None = None

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"

    def _segments(self) -> SegmentedStock:
        """Return the stock in the session of this process and event loop."""
        session, opened = self._client.session(), self._opened
        if opened is None or opened.session is not session:
            opened = self._opened = SegmentedStock(session, self._names, self._name)
        return opened  # another thread may have put its own there meanwhile

    def _tell(self, kind: EventKind, units: int) -> Subject:
        """Report what became of some units; return what the event says of the stock."""
        of, events = Subject(self._name, self._template, "stock", units), self._client.session().events
        if events is not None:
            events.units(kind, of)
        return of

    async def _take(self, k: int) -> int:
        taken = await self._segments().take(check_number(k, "k", stock.MOST_UNITS))
        self._tell(EventKind.UNITS_TAKEN if taken else EventKind.UNITS_REFUSED, k)
        return taken

    async def _restock(self, n: int) -> None:
        await self._segments().restock(check_number(n, "n", stock.MOST_UNITS))

    async def _reserve(self, k: int, ttl: float) -> tuple[SegmentedStock, int, str, tuple[int, int], Subject] | None:
        """Reserve units; return what makes a reservation of either form."""
        units, lasts = check_number(k, "k", stock.MOST_UNITS), micros(check_duration(ttl, "ttl", SHORTEST))
        segments, count = self._segments(), len(self._names)
        reservation = self._client.session().runtime.new_id()
        segment = await segments.obtain(units, stock.reserve(units, lasts, reservation, count))
        of = self._tell(EventKind.UNITS_REFUSED if segment is None else EventKind.UNITS_RESERVED, units)
        return None if segment is None else (segments, segment, reservation, (units, count), of)


class Stock(_StockBase):
    """A stock of a `Client`. Made by `Client.stock`.

    No unit is ever taken twice, lost or doubled, wherever a process dies and whatever reply is lost. `take` and
    `reserve` refuse only if at some instant of the call fewer units were left. All calls raise StoreUnavailable if the
    store did not answer, and OutcomeUnknown, which is one, if the change may have been made: once or not at all.
    """

    def restock(self, n: int) -> None:
        """Add `n` units, all in one step, and then spread them over the segments."""
        drive(self._restock(n))

    def take(self, k: int = 1) -> int:
        """Take `k` units, all or none; return `k`, or 0 if fewer were left."""
        return drive(self._take(k))

    def reserve(self, k: int, ttl: float) -> StockReservation | None:
        """Reserve `k` units for `ttl` seconds by the store's clock; return None if fewer were left.

        Units that are neither confirmed nor cancelled in time return to the stock. A segment keeps up to 500
        reservations; UsageError is raised if all segments have as many.
        """
        made = drive(self._reserve(k, ttl))
        return None if made is None else StockReservation(*made)

    def total(self) -> int:
        """Return how many units can be taken. Reserved units are not counted until they return.

        The number is exact for an instant of the call, unless others change the stock in every reading: then it is near
        it.
        """
        return drive(self._segments().total())

    def rebalance(self) -> None:
        """Spread the units evenly over the segments. `restock` does it; call it when takes have emptied some."""
        drive(self._segments().rebalance())


class AsyncStock(_StockBase):
    """A stock of an `AsyncClient`, as `Stock`. Made by `AsyncClient.stock`.

    A call that is cancelled was made once or not at all.
    """

    async def restock(self, n: int) -> None:
        """Add `n` units, all in one step, and then spread them over the segments."""
        await self._restock(n)

    async def take(self, k: int = 1) -> int:
        """Take `k` units, all or none; return `k`, or 0 if fewer were left."""
        return await self._take(k)

    async def reserve(self, k: int, ttl: float) -> AsyncStockReservation | None:
        """Reserve `k` units for `ttl` seconds by the store's clock; return None if fewer were left."""
        made = await self._reserve(k, ttl)
        return None if made is None else AsyncStockReservation(*made)

    async def total(self) -> int:
        """Return how many units can be taken, as `Stock.total`."""
        return await self._segments().total()

    async def rebalance(self) -> None:
        """Spread the units evenly over the segments."""
        await self._segments().rebalance()
