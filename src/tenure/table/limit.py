"""The rules of a limit: pure functions of the state in its cell.

Each use of some units has a *slot*, the instant at which they may be used. Slots are in the order of the reservations.
A `Rule` says which slot is the next:

- `WindowRule`: any half-open window of `per` has the slots of at most `rate` units. It keeps a log of the slots, of
  which those matter that lie less than `per` back. A rate of more than `EXACT` keeps slices of a hundredth of `per`,
  each at the instant of its last slot: so its units come back up to a hundredth of `per` later, and never sooner.
- `SmoothRule`: the units are spaced evenly, but for `burst` of them after a pause. This is the generic cell rate
  algorithm (GCRA) in its form with a virtual clock: ITU-T Recommendation I.371, annex A. The *arrival time* is the
  instant at which the limit is idle again if nobody comes. n units move it by n x per / rate from the present, or from
  where it is if that is later. The slot is `burst` units before the new arrival time, but not before the present. So
  any half-open window of `per` has the slots of at most rate + burst - 1 units.
- `CalendarRule`: each window of a calendar, such as a day, has the slots of at most `rate` units.

The first two count by a clock of the limit, which never steps back: the state has the time of the limit's last change,
and by how much its clock is ahead of the store's. If the store's clock shows an earlier time, it has stepped back, and
the limit's clock goes on from where it was, as if no time had passed since. A calendar follows the store's clock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tenure.contracts.cells import Change

REMEMBERED = 600_000_000
"""How long the cell of an idle limit is kept at least, in microseconds: as long as its last replies are needed."""

EXACT = 100
"""Up to which rate a window keeps each slot, and the number of slices that it keeps of a larger one."""

Calendar = Callable[[int], tuple[int, int]]
"""Returns when the window begins that contains an instant, and when it ends."""

Kept = Any
"""What the cell keeps for a rule, as JSON can express it; None: nothing."""


class Rule(Protocol):
    """Which slots a limit has. All instants and durations are whole microseconds."""

    kind: ClassVar[str]
    """The key of what the cell keeps for such rules: rules of two kinds on one name do not count for each other."""
    steps: ClassVar[bool]
    """Whether the present of this rule steps back with the store's clock."""

    @property
    def most(self) -> int:
        """The most units at once."""
        ...

    def slot(self, kept: Kept, present: int, units: int) -> int:
        """Return the next slot for so many units: not before the present, nor before any slot that was given."""
        ...

    def add(self, kept: Kept, present: int, slot: int, units: int) -> Kept:
        """Return what is kept when the next slot was given to so many units."""
        ...

    def settle(self, kept: Kept, slot: int | None, more: int) -> Kept:
        """Return what is kept when a slot has so many units more, or fewer: the last slot if `slot` is None.

        The slot has come, unless all of its units come back. Units that come back do not count where the rule cannot
        tell what they mean for later slots.
        """
        ...

    def free(self, kept: Kept, present: int) -> int:
        """Return how many units may be used now."""
        ...

    def idle_at(self, kept: Kept) -> int:
        """Return the instant from which the limit is as if nobody had used it."""
        ...


@dataclass(slots=True)
class _Slice:
    """Units of a log whose slots lie from `first` to `last`; they count as if all lay at `last`."""

    first: int
    last: int
    units: int


@dataclass(slots=True, frozen=True)
class WindowRule:
    """At most `rate` units in any window of `per` microseconds."""

    rate: int
    per: int
    kind: ClassVar[str] = "window"
    steps: ClassVar[bool] = False

    @property
    def most(self) -> int:
        """The most units at once."""
        return self.rate

    def slot(self, kept: Kept, present: int, units: int) -> int:
        """Return the first instant before which enough units have left the window."""
        log = _read_log(kept)
        slot = max(present, log[-1].last) if log else present
        used = sum(each.units for each in log)
        for each in log:
            if used + units <= self.rate:
                break
            used -= each.units
            slot = max(slot, each.last + self.per)
        return slot

    def add(self, kept: Kept, present: int, slot: int, units: int) -> Kept:
        """Append to the log, and shorten it."""
        log = [each for each in _read_log(kept) if each.last + self.per > present]
        width = self.per // EXACT if self.rate > EXACT else 0
        if log and (log[-1].last == slot or (width and log[-1].first // width == slot // width)):
            log[-1].last, log[-1].units = slot, log[-1].units + units
        else:
            log.append(_Slice(slot, slot, units))
        later = sum(each.units for each in log[2:])
        while len(log) > 2 and later >= self.rate:  # noqa: PLR2004 - the first two do not matter, unless units come back
            log[:2] = [_Slice(log[0].first, log[1].last, log[0].units + log[1].units)]
            later -= log[1].units
        return _written_log(log)

    def settle(self, kept: Kept, slot: int | None, more: int) -> Kept:
        """Change the units of a slice; units that come back to one that has left the log matter no more."""
        log = _read_log(kept)
        for each in log:
            if each is log[-1] if slot is None else each.first <= slot <= each.last:
                each.units = max(0, each.units + more)
                break
        else:
            if slot is not None and more > 0:  # its units had all come back, and its slice went with them
                log = sorted([*log, _Slice(slot, slot, more)], key=lambda each: each.last)
        return _written_log([each for each in log if each.units])

    def free(self, kept: Kept, present: int) -> int:
        """Return what the window that ends now has left; nothing if others wait."""
        log = _read_log(kept)
        if log and log[-1].last > present:
            return 0
        return max(0, self.rate - sum(each.units for each in log if each.last + self.per > present))

    def idle_at(self, kept: Kept) -> int:
        """Return when the last slot leaves the window."""
        log = _read_log(kept)
        return log[-1].last + self.per if log else 0


def _read_log(kept: Kept) -> list[_Slice]:
    """Return the slices of a log, whose instants are kept as the time since the instant before."""
    log: list[_Slice] = []
    at = 0
    for place in range(0, len(kept or ()), 3):
        first = at + kept[place]
        at = first + kept[place + 1]
        log.append(_Slice(first, at, kept[place + 2]))
    return log


def _written_log(log: list[_Slice]) -> Kept:
    kept: list[int] = []
    at = 0
    for each in log:
        kept += each.first - at, each.last - each.first, each.units
        at = each.last
    return kept or None


@dataclass(slots=True, frozen=True)
class SmoothRule:
    """`rate` units in `per` microseconds, evenly spaced, and `burst` at once after a pause.

    Arrival times are whole numbers of 1/rate microseconds, so nothing is rounded.
    """

    rate: int
    per: int
    burst: int
    kind: ClassVar[str] = "smooth"
    steps: ClassVar[bool] = False

    @property
    def most(self) -> int:
        """The most units at once."""
        return self.burst

    def slot(self, kept: Kept, present: int, units: int) -> int:
        """Return the slot that is `burst` units before the new arrival time."""
        arrival = self._arrival_after(kept, present, units)
        return max(present, -(-(arrival - self.burst * self.per) // self.rate))

    def add(self, kept: Kept, present: int, slot: int, units: int) -> Kept:
        """Move the arrival time."""
        return [self._arrival_after(kept, present, units), self.rate, slot]

    def settle(self, kept: Kept, slot: int | None, more: int) -> Kept:
        """Move the arrival time; units come back only if theirs is the last slot."""
        if kept is None or (more < 0 and slot is not None and kept[2] != slot):
            return kept
        arrival, rate, last = kept
        return [arrival - (-more * self.per * rate // self.rate), rate, last]

    def free(self, kept: Kept, present: int) -> int:
        """Return how many units have their slots now."""
        ahead = max(0, self._arrival(kept, present) - present * self.rate)
        return max(0, (self.burst * self.per - ahead) // self.per)

    def idle_at(self, kept: Kept) -> int:
        """Return the arrival time."""
        return -(-kept[0] // kept[1]) if kept else 0

    def _arrival_after(self, kept: Kept, present: int, units: int) -> int:
        """Return the arrival time when the next slot is given to so many units."""
        return max(self._arrival(kept, present), present * self.rate) + units * self.per

    def _arrival(self, kept: Kept, present: int) -> int:
        """Return the arrival time; others may have given another rate before.

        While slots lie ahead it stays where it is, so that slots stay in their order. Else the units count that it
        stands for, so that another rate counts at once.
        """
        if kept is None:
            return present * self.rate
        arrival, rate, last = kept
        if rate == self.rate:
            return int(arrival)
        if last > present:
            return int(-(-arrival * self.rate // rate))
        return int(present * self.rate + max(0, arrival - present * rate))


@dataclass(slots=True, frozen=True)
class CalendarRule:
    """At most `rate` units in each window of a calendar."""

    rate: int
    calendar: Calendar
    kind: ClassVar[str] = "calendar"
    steps: ClassVar[bool] = True

    @property
    def most(self) -> int:
        """The most units at once."""
        return self.rate

    def slot(self, kept: Kept, present: int, units: int) -> int:
        """Return the last slot or the present, or the beginning of the next window that has room."""
        windows = self._read(kept, present)
        slot = max([present, *(last for _, _, last in windows)])
        starts, ends = self.calendar(slot)
        while sum(used for begins, used, _ in windows if begins == starts) + units > self.rate:
            starts, ends = self.calendar(ends)
        return max(slot, starts)

    def add(self, kept: Kept, present: int, slot: int, units: int) -> Kept:
        """Count the units in the window of the slot."""
        windows, starts = self._read(kept, present), self.calendar(slot)[0]
        if windows and windows[-1][0] == starts:
            units += windows.pop()[1]
        return [*windows, [starts, units, slot]]

    def settle(self, kept: Kept, slot: int | None, more: int) -> Kept:
        """Change the count of the window of the slot."""
        windows: list[list[int]] = kept or []
        starts = windows[-1][0] if windows and slot is None else self.calendar(slot or 0)[0]
        return [[begins, max(0, used + more * (begins == starts)), last] for begins, used, last in windows]

    def free(self, kept: Kept, present: int) -> int:
        """Return what the present window has left; nothing if others wait for a later one."""
        windows, starts = self._read(kept, present), self.calendar(present)[0]
        if windows and windows[-1][2] > present:
            return 0
        return max(0, self.rate - sum(used for begins, used, _ in windows if begins == starts))

    def idle_at(self, kept: Kept) -> int:
        """Return when the last window ends that has slots."""
        return self.calendar(kept[-1][2])[1] if kept else 0

    def stepped_back(self, kept: Kept, present: int, step: int) -> Kept:
        """Return what is kept after a step back: if it is longer than a window, only what the next one has at most."""
        starts, ends = self.calendar(present)
        return [each for each in kept or () if each[0] <= ends or step < ends - starts]

    def _read(self, kept: Kept, present: int) -> list[list[int]]:
        """Return the windows that are not over: their beginnings, units and last slots."""
        starts = self.calendar(present)[0] if kept else 0
        return [each for each in kept or () if each[0] >= starts]


@dataclass(slots=True, frozen=True)
class Slot:
    """What became of an attempt to use some units."""

    at: int
    """The slot, which was reserved unless `refused` says otherwise."""
    refused: float | None
    """For how many seconds the caller would have had to wait, which was too long; None: the slot has come."""


@dataclass(slots=True)
class _Limit:
    """The state of a limit, at a reading of the store's clock."""

    clock: int
    """The limit's clock, which never steps back."""
    now: int
    """The store's."""
    ahead: int
    """By how much the limit's clock is ahead of the store's."""
    stepped: bool
    """Whether the store's clock has stepped back since the last change."""
    last: str
    """The id of the last reservation; empty once it was given back."""
    kept: dict[str, tuple[int, Kept]]
    """For each kind of rule, what is kept for it, after the instant from which it is idle."""

    def present(self, rule: Rule) -> int:
        """Return the present of a rule."""
        return self.now if rule.steps else self.clock

    def of(self, rule: Rule) -> Kept:
        """Return what is kept for a rule."""
        return self.kept.get(rule.kind, (0, None))[1]

    def keep(self, rule: Rule, kept: Kept) -> None:
        """Replace what is kept for a rule."""
        self.kept[rule.kind] = rule.idle_at(kept), kept

    def change(self, reply: Any, *, changed: bool = True) -> Change:  # noqa: ANN401 - what JSON knows
        """Return the change of the cell to this state."""
        kept = {kind: [*each] for kind, each in self.kept.items() if each[1]}
        busy_for = max([0, *(idle_at - self.now for idle_at, _ in kept.values())])
        return Change([self.clock, self.ahead, self.last, kept], reply, changed, busy_for + REMEMBERED)


def _read(state: Any, now: int, rule: Rule | None = None) -> _Limit:  # noqa: ANN401 - what JSON knows
    if state is None:
        return _Limit(now, now, 0, stepped=False, last="", kept={})
    clock, ahead, last, kept = state
    step = max(0, clock - ahead - now)
    found = _Limit(now + ahead + step, now, ahead + step, step > 0, last, {**kept})
    if step and isinstance(rule, CalendarRule):
        found.keep(rule, rule.stepped_back(found.of(rule), now, step))
    return found


def reserve(rule: Rule, units: int, longest: int | None, reservation: str) -> Callable[[Any, int], Change]:
    """Return the function that reserves the next slot for some units, at most `rule.most`.

    It replies with whether it has reserved a slot, for how many microseconds from now the slot lies ahead, and the slot
    itself. It reserves none that is more than `longest` microseconds ahead (None: any).
    """

    def change(state: Any, now: int) -> Change:  # noqa: ANN401
        limit = _read(state, now, rule)
        present, kept = limit.present(rule), limit.of(rule)
        slot = rule.slot(kept, present, units)
        ahead = slot - present
        if longest is not None and ahead > longest:
            return limit.change([False, ahead, slot], changed=limit.stepped)
        limit.keep(rule, rule.add(kept, present, slot, units))
        limit.last = reservation
        return limit.change([True, ahead, slot])

    return change


def settle(rule: Rule, slot: int | None, more: int, reservation: str = "") -> Callable[[Any, int], Change]:
    """Return the function that counts some units more, or fewer, for a slot.

    If the caller does not know its slot, whose `reservation` may not have come, it is that of the last reservation or
    none. It always writes the cell, so that a late copy of that reservation is refused. It replies with whether the
    units count now, so that a later call for the slot does not count them twice.
    """

    def change(state: Any, now: int) -> Change:  # noqa: ANN401
        limit = _read(state, now, rule)
        is_last, before = limit.last == reservation, limit.of(rule)
        if slot is not None or is_last:
            limit.keep(rule, rule.settle(before, slot, more))
        if is_last:
            limit.last = ""
        return limit.change(limit.of(rule) != before)

    return change


def available(rule: Rule, state: Any, now: int) -> int:  # noqa: ANN401 - what JSON knows
    """Return how many units may be used now."""
    limit = _read(state, now, rule)
    return rule.free(limit.of(rule), limit.present(rule))


def reset(state: Any, now: int) -> Change:  # noqa: ANN401 - what JSON knows
    """Forget all slots, and reply with for how many microseconds the limit would have been busy."""
    limit = _read(state, now)
    limit.kept, limit.last = {}, ""
    return limit.change(idle_in(state, now), changed=state is not None)


def idle_in(state: Any, now: int) -> int:  # noqa: ANN401 - what JSON knows
    """Return in how many microseconds a limit is idle again if nobody comes; 0: it is idle, or nobody uses it."""
    if state is None:
        return 0
    return int(max([0, *(idle_at - now - state[1] for idle_at, _ in state[3].values())]))
