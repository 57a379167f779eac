"""The rules of a stock: pure functions of the state of one *segment*, which is in a cell of its own.

Units move from segment A to segment B by a *transfer* of three steps, each a change of one cell: the units leave A and
stand in its record of what is in transit, with a number that grows; B adds them and remembers the number; A forgets the
record. Whoever finds such a record completes the transfer. A step that is made again changes nothing, so no unit is
lost or doubled wherever a process dies.

Each segment counts its *arrivals*, the changes that may have made more units available. `sold_out` compares the counts
of two readings of all segments: if nothing has arrived between, and nothing was in transit, then at an instant between
the readings no more units were left than the first reading shows. (A double collect: Afek and others, Atomic snapshots
of shared memory, 1993.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenure.contracts.cells import Addition, Change
from tenure.errors import UsageError

MOST_UNITS = 2**48
"""The most units that a restock brings, or may leave in a segment."""

MOST_SEGMENTS = 32

MOST_RESERVATIONS = 500
"""The most reservations in one segment, so that its cell does not grow too large: each has up to 72 bytes."""

Transit = tuple[int, int, int]
"""A transfer under way: its number, the units, and the segment that they go to."""

LARGEST = 2**53 - 1


@dataclass(slots=True)
class Segment:
    """The state of one segment."""

    segments: int
    """The number of segments of the stock."""
    free: int = 0
    """The units that can be taken."""
    arrivals: int = 0
    """How often units may have become available."""
    transfers: int = 0
    """The number of the last transfer from here."""
    transit: Transit | None = None
    """The transfer from here that is under way."""
    received: dict[str, int] = field(default_factory=dict[str, int])
    """By segment: the number of the last transfer from there."""
    reserved: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By id of the reservation: its units, and until when, by the store's clock in microseconds."""

    @classmethod
    def read(cls, state: Any, segments: int) -> "Segment":  # noqa: ANN401 - what JSON knows
        """Return a segment of a stock. Raises UsageError if the stock has another number of segments."""
        if state is None:
            return cls(segments)
        free, arrivals, kept, transfers, transit, received, reserved = state
        if kept != segments:
            raise UsageError(
                f"this stock has {kept} segments, and segments={segments} was given: all users of a stock must give "
                "the same number"
            )
        return cls(kept, free, arrivals, transfers, transit and tuple(transit), dict(received), dict(reserved))

    def state(self) -> list[Any]:
        """Return the state as it stands in the cell: the free units first, for an `Addition`."""
        return [
            self.free,
            self.arrivals,
            self.segments,
            self.transfers,
            self.transit and list(self.transit),
            self.received,
            self.reserved,
        ]

    def expired(self, now: int) -> list[str]:
        """Return the ids of the reservations that have expired."""
        return [each for each, (_, until) in self.reserved.items() if until <= now]

    def drop_expired(self, now: int) -> bool:
        """Return the units of expired reservations; return whether there were any."""
        expired = self.expired(now)
        for each in expired:
            self.add(self.reserved.pop(each)[0])
        return bool(expired)

    def add(self, units: int) -> None:
        """Make units available."""
        self.free += units
        self.arrivals += 1

    def available(self, now: int) -> int:
        """Return the units that can be taken, with those of expired reservations."""
        return self.free + sum(self.reserved[each][0] for each in self.expired(now))


def segments_of(state: Any) -> int:  # noqa: ANN401 - what JSON knows
    """Return how many segments the stock of a segment has; 0 if there is no such stock."""
    return 0 if state is None else int(state[2])


def sold_out(units: int, first: Sequence[Segment], second: Sequence[Segment], now: int) -> bool:
    """Tell from two readings of all segments whether at some instant between them fewer units were left.

    `now` is the latest time of the store in the first reading. False means: unknown, read again.
    """
    if any(each.transit for each in (*first, *second)):
        return False
    if any(one.arrivals != other.arrivals for one, other in zip(first, second, strict=True)):
        return False
    return all(sum(each.available(now) for each in reading) < units for reading in (first, second))


def begin(segments: int) -> Callable[[Any, int], Change]:
    """Return the function that makes a segment, or checks that the stock has this number of segments."""
    return lambda state, _now: Change(Segment.read(state, segments).state(), None, changed=state is None)


def take(units: int, segments: int) -> Callable[[Any, int], Change]:
    """Return the function that takes units of a segment, all or none, and replies how many."""

    def change(state: Any, now: int) -> Change:  # noqa: ANN401
        segment = Segment.read(state, segments)
        dropped = segment.free < units and segment.drop_expired(now)
        if segment.free < units:
            return Change(segment.state(), 0, changed=dropped)
        segment.free -= units
        return Change(segment.state(), units)

    return change


def taking(units: int) -> Addition:
    """Return the change of `take` for stores that make it in one request."""
    return Addition(-units, 0, LARGEST, units)


def restock(units: int, segments: int) -> Callable[[Any, int], Change]:
    """Return the function that adds units to a segment."""

    def change(state: Any, now: int) -> Change:  # noqa: ANN401
        segment = Segment.read(state, segments)
        segment.drop_expired(now)
        if segment.free + units > MOST_UNITS:
            raise UsageError(f"a segment of a stock keeps up to 2**48 units, and this one has {segment.free} already")
        segment.add(units)
        return Change(segment.state(), None)

    return change


def reserve(units: int, ttl: int, reservation: str, segments: int) -> Callable[[Any, int], Change]:
    """Return the function that reserves units of a segment for `ttl` microseconds, and replies how many: all or 0.

    The reply is None if the segment keeps no more reservations.
    """

    def change(state: Any, now: int) -> Change:  # noqa: ANN401
        segment = Segment.read(state, segments)
        dropped = segment.drop_expired(now)
        if len(segment.reserved) >= MOST_RESERVATIONS:
            return Change(segment.state(), None, changed=dropped)
        if segment.free < units:
            return Change(segment.state(), 0, changed=dropped)
        segment.free -= units
        segment.reserved[reservation] = [units, now + ttl]
        return Change(segment.state(), units)

    return change


def confirm(reservation: str, segments: int) -> Callable[[Any, int], Change]:
    """Return the function that ends a reservation, whose units are gone; it replies whether it was still there."""

    def change(state: Any, now: int) -> Change:  # noqa: ANN401
        segment = Segment.read(state, segments)
        dropped = segment.drop_expired(now)
        there = segment.reserved.pop(reservation, None) is not None
        return Change(segment.state(), there, changed=dropped or there)

    return change


def cancel(reservation: str, segments: int) -> Callable[[Any, int], Change]:
    """Return the function that returns the units of a reservation; it replies whether it was still there."""

    def change(state: Any, now: int) -> Change:  # noqa: ANN401
        segment = Segment.read(state, segments)
        dropped = segment.drop_expired(now)
        units = segment.reserved.pop(reservation, None)
        if units is not None:
            segment.add(units[0])
        return Change(segment.state(), units is not None, changed=dropped or units is not None)

    return change


def send(most: int, to: int, segments: int) -> Callable[[Any, int], Change]:
    """Return the function of the first step of a transfer, of up to `most` units.

    It replies with the transfer, or with None if no unit is free or another transfer from here is under way.
    """

    def change(state: Any, now: int) -> Change:  # noqa: ANN401
        segment = Segment.read(state, segments)
        dropped = segment.drop_expired(now)
        units = min(most, segment.free)
        if segment.transit or units <= 0:
            return Change(segment.state(), None, changed=dropped)
        segment.free -= units
        segment.transfers += 1
        segment.transit = segment.transfers, units, to
        return Change(segment.state(), list(segment.transit))

    return change


def receive(sender: int, transit: Transit, segments: int) -> Callable[[Any, int], Change]:
    """Return the function of the second step of a transfer; repeated, it changes nothing."""

    def change(state: Any, _now: int) -> Change:  # noqa: ANN401
        segment = Segment.read(state, segments)
        number, units, _ = transit
        if segment.received.get(str(sender), 0) >= number:
            return Change(segment.state(), None, changed=False)
        segment.received[str(sender)] = number
        segment.add(units)
        return Change(segment.state(), None)

    return change


def sent(transit: Transit, segments: int) -> Callable[[Any, int], Change]:
    """Return the function of the third step of a transfer, for its sender; repeated, it changes nothing."""

    def change(state: Any, _now: int) -> Change:  # noqa: ANN401
        segment = Segment.read(state, segments)
        under_way = segment.transit is not None and segment.transit[0] == transit[0]
        if under_way:
            segment.transit = None
        return Change(segment.state(), None, changed=under_way)

    return change
