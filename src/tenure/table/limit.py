"""The rules of a limit: pure functions of the state in its cell.

This is the generic cell rate algorithm (GCRA) in its form with a virtual clock: ITU-T Recommendation I.371, annex A.
The *arrival time* is the instant at which the limit is idle again if nobody comes. n units move it by n x per / rate
from the present, or from where it is if that is later. The *slot* of the units, at which they may be used, is `burst`
units before the new arrival time, but not before the present. So slots are in the order of the reservations, and any
half-open window of `per` seconds has the slots of at most rate + burst - 1 units.

Arrival times are whole numbers of 1/rate microseconds, so nothing is rounded. The state also has the time when the
limit was changed last. If the store's clock shows an earlier time, it has stepped back: the arrival time moves back by
the step, as if no time had passed since.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenure.contracts.cells import Change

REMEMBERED = 600_000_000
"""How long the cell of an idle limit is kept at least, in microseconds: as long as its last replies are needed."""


@dataclass(slots=True, frozen=True)
class LimitRule:
    """At most `rate` units in `per` microseconds, and `burst` at once after a pause."""

    rate: int
    per: int
    burst: int


@dataclass(slots=True)
class _Limit:
    """The state of a limit."""

    arrival: int
    """The arrival time, in 1/rate microseconds."""
    stepped: bool
    """Whether the clock has stepped back since the last change."""
    last: str
    """The id of the last reservation; empty once it was given back."""


def _read(state: Any, now: int, rule: LimitRule) -> _Limit:  # noqa: ANN401 - what JSON knows
    """Return the state at `now`; other users may have given another rate before."""
    present = now * rule.rate
    if state is None:
        return _Limit(present, stepped=False, last="")
    arrival, rate, seen, last = state
    if rate != rule.rate:
        arrival = -(-arrival * rule.rate // rate)
    return _Limit(arrival + min(0, now - seen) * rule.rate, now < seen, last)


def _change(limit: _Limit, reply: Any, now: int, rule: LimitRule, *, changed: bool = True) -> Change:  # noqa: ANN401
    busy_for = max(0, limit.arrival // rule.rate + 1 - now)
    return Change([limit.arrival, rule.rate, now, limit.last], reply, changed, busy_for + REMEMBERED)


def reserve(rule: LimitRule, units: int, longest: int | None, reservation: str) -> Callable[[Any, int], Change]:
    """Return the function that reserves the next slot for some units, at most `burst`.

    It replies with whether it has reserved a slot, and for how many microseconds from now the slot lies ahead. It
    reserves none that is more than `longest` microseconds ahead (None: any).
    """

    def change(state: Any, now: int) -> Change:  # noqa: ANN401
        limit, present = _read(state, now, rule), now * rule.rate
        arrival = max(limit.arrival, present) + units * rule.per
        slot = max(present, arrival - rule.burst * rule.per)
        ahead = -((present - slot) // rule.rate)
        if longest is not None and ahead > longest:
            return _change(limit, [False, ahead], now, rule, changed=limit.stepped)
        limit.arrival, limit.last = arrival, reservation
        return _change(limit, [True, ahead], now, rule)

    return change


def give_back(rule: LimitRule, units: int, reservation: str) -> Callable[[Any, int], Change]:
    """Return the function that gives the slot of a reservation back if nobody has reserved after it.

    It replies whether it did. It always writes the cell, so that a late copy of the reservation is refused.
    """

    def change(state: Any, now: int) -> Change:  # noqa: ANN401
        limit = _read(state, now, rule)
        given = limit.last == reservation
        if given:
            limit.arrival, limit.last = limit.arrival - units * rule.per, ""
        return _change(limit, given, now, rule)

    return change
