"""Limits: at most so many units in so many seconds, for all users of a name together."""

import copy
import functools
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar

from tenure.callables import awaitable, finished, refuse_async, refuse_sync
from tenure.contracts.cells import cell_name
from tenure.contracts.deadlines import micros, seconds
from tenure.contracts.limits import (
    check_count,
    check_duration,
    check_name,
    check_number,
    check_template,
    check_timeout,
)
from tenure.core.events import Subject
from tenure.core.slots import take_slot
from tenure.errors import LockTimeout, UsageError
from tenure.escaping import escape
from tenure.jobs.windows import schedule
from tenure.primitives.base import UNSET, Sessions
from tenure.primitives.decorating import name_from_call
from tenure.runtimes.threads import drive
from tenure.table import limit
from tenure.table.limit import CalendarRule, Rule, Slot, SmoothRule, WindowRule

P = ParamSpec("P")
R = TypeVar("R")

LIMIT = "limit"

MOST_UNITS = 10**9
"""The largest rate and burst of a limit."""

SHORTEST, LONGEST_BURST = 0.001, 366 * 86_400.0
"""The least `per`, and how long a limit may take to be idle again, in seconds."""

CALENDARS = {"hour": "hourly", "day": "daily", "week": "weekly", "month": "monthly"}
"""The windows of a calendar, and their names as windows of a job."""


def rule_of(rate: int, per: float | str, burst: int | None, *, smooth: bool) -> Rule:
    """Return the rule of a limit. Raises UsageError, which says what is allowed."""
    check_number(rate, "rate", MOST_UNITS)
    if burst is not None and not smooth:
        raise UsageError(
            f"a burst belongs to a limit with smooth=True; without it, up to {rate} units pass at once: leave it out"
        )
    if isinstance(per, str):
        return CalendarRule(rate, _calendar(per, smooth=smooth))
    length = micros(check_duration(per, "per", SHORTEST))
    if not smooth:
        return WindowRule(rate, length)
    burst = 1 if burst is None else check_number(burst, "burst", MOST_UNITS)
    if burst * per / rate > LONGEST_BURST:
        raise UsageError(f"a burst of {burst} at {rate} in {per:g} s lasts for more than a year: give a smaller one")
    return SmoothRule(rate, length, burst)


def _calendar(per: str, *, smooth: bool) -> Callable[[int], tuple[int, int]]:
    word, *zone = per.split() or [""]
    if word not in CALENDARS or len(zone) > 1 or (zone and word == "hour"):
        raise UsageError(
            f'per={escape(per)!r} is no window: give a number of seconds, "hour", or "day", "week" or "month", with or '
            'without a time zone, as "day Europe/Berlin"'
        )
    if smooth:
        raise UsageError(f"a limit per {word} is not smooth: leave smooth out, or give a number of seconds")
    window_at = schedule(" ".join([CALENDARS[word], *zone]))[1]

    def calendar(at: int) -> tuple[int, int]:
        window = window_at(at)
        return window.starts, window.ends

    return calendar


class _ChargeBase:
    """The part of a charge that is the same for threads and asyncio."""

    def __init__(self, units: int, name: str, count: Callable[[int], Coroutine[Any, Any, bool]]) -> None:
        """Note a use of units of a limit; `count` counts more of them, or fewer, and returns whether the limit does."""
        self.units = units
        """How many units were used, as far as the limit knows."""
        self._name = name
        self._count = count

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.units} of {self._name!r}>"

    async def _settle(self, actual: int) -> None:
        more = check_count(actual, "actual") - self.units
        if more:
            self.units = actual  # first: another call counts from here, also while this one is under way
            try:
                counted = await self._count(more)
            except Exception:
                self.units -= more
                raise
            if not counted:
                self.units -= more


class Charge(_ChargeBase):
    """Units of a limit that were used. From `Limit.acquire`."""

    def settle(self, actual: int) -> None:
        """Count `actual` units instead of those that were acquired, for costs that are known only afterwards.

        What was too much may be used by others at once, or by those who come after the waiters, who keep their slots;
        with smooth=True only if nobody has come since. What was too little counts although it is more than the limit
        has: the next caller waits for it. Raises StoreError if the store did not answer: then the units may have been
        settled or not, and another call may count them twice.
        """
        drive(self._settle(actual))


class AsyncCharge(_ChargeBase):
    """Units of a limit that were used, as `Charge`. From `AsyncLimit.acquire`."""

    async def settle(self, actual: int) -> None:
        """Count `actual` units instead of those that were acquired, as `Charge.settle`.

        A call that is cancelled goes on in the background, and another call counts from what it has said.
        """
        await self._settle(actual)


class _LimitBase:
    """The part of a limit that is the same for threads and asyncio."""

    def __init__(
        self, client: Sessions, name: str, prefix: str, rule: Rule, *, timeout: float | None, template: str
    ) -> None:
        self._client = client
        self._name = check_name(name, "a limit's name")
        self._prefix = prefix
        self._timeout = check_timeout(timeout)
        self._template = check_template(template)
        self._rule = rule

    @property
    def name(self) -> str:
        """The name, without the namespace."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"

    def _named(self, name: str) -> Self:
        """Return the same limit for the name of a call."""
        other = copy.copy(self)
        other._name = check_name(name, "a limit's name")  # noqa: SLF001 - of the same class
        other._template = self._template or self._name  # noqa: SLF001
        return other

    def _of(self, key: str | None) -> str:
        """Return the name of the cell for a key."""
        if key is None:
            return cell_name(LIMIT, self._prefix, self._name)
        check_name(f"{self._name}={check_name(key, 'a key')}", "a limit's name and key, together,")
        return cell_name(f"limit-key-{len(self._name)}", self._prefix, f"{self._name}={key}")

    async def _take(self, n: int, timeout: float | None, cell: str) -> Slot:
        units = check_number(n, "n", MOST_UNITS)
        if units > self._rule.most:
            raise UsageError(
                f"the limit {self._name!r} lets at most {self._rule.most} units pass at once, and never {units}: "
                "acquire fewer, or make the limit with a larger rate (with smooth=True, a larger burst)"
            )
        session = self._client.session()
        take = partial(take_slot, session, cell, self._rule, units, timeout)
        if session.events is None:
            return await take()
        of = Subject(self._name, self._template, LIMIT, units)
        return await session.events.follow(of, take, waits=timeout != 0)

    async def _acquire(self, n: int, timeout: float | None, cell: str) -> Slot:
        timeout = self._timeout if timeout is UNSET else check_timeout(timeout)
        slot = await self._take(n, timeout, cell)
        if slot.refused is not None:
            raise LockTimeout(
                f"the limit {self._name!r} lets {n} more pass in {slot.refused:.3g} s, which is more than the timeout "
                f"of {timeout:g} s: nothing was reserved. Try again later, or give a longer timeout",
                wait=slot.refused,
            )
        return slot

    async def _count(self, cell: str, slot: Slot, more: int) -> bool:
        session = self._client.session()
        return await session.runtime.finish(session.cells.change(cell, limit.settle(self._rule, slot.at, more)))

    async def _available(self, key: str | None) -> int:
        return await self._client.session().cells.read(self._of(key), partial(limit.available, self._rule), None)

    async def _busy_for(self, key: str | None) -> float:
        return seconds(await self._client.session().cells.read(self._of(key), limit.idle_in, None))

    async def _reset(self, key: str | None) -> float:
        ahead: int = await self._client.session().cells.change(self._of(key), limit.reset)
        return seconds(ahead)


class Limit(_LimitBase):
    """A limit of a `Client`: at most `rate` units in any `per` seconds. Made by `Client.limit`; also a decorator.

    Each call that succeeds has a *slot*, an instant of the store's clock, and returns at or after its slot, never
    before. Any half-open window of `per` seconds has the slots of at most `rate` units, whenever it begins; with
    smooth=True, of at most rate + burst - 1; and with per="day", each day has those of at most `rate`. Slots are given
    in the order in which the store took the calls: first come, first served.

    If the store's clock steps back, the limit goes on as if no time had passed since its last use, and the bound holds;
    with per="day" the units count for the day that the clock shows. A step ahead counts as time that has passed, so
    that as many more units may pass as in that time.
    """

    def acquire(self, n: int = 1, timeout: float | None = UNSET, *, key: str | None = None) -> Charge:
        """Reserve the next slot for `n` units, and wait for it.

        Args:
            n: how many units, at most `rate` (with smooth=True, at most `burst`).
            timeout: how long to wait, in seconds; None: for ever; default: the limit's own. If the slot would be later,
                LockTimeout is raised at once, whose `wait` is how long it would have taken, and nothing is reserved.
            key: one of any number of keys, such as a customer: each key has a limit of its own.

        Returns the charge, whose `settle` corrects the number of units when it is known.

        A wait that an interrupt ends gives its units back; with smooth=True only if nobody has come since. Raises
        UsageError if `n` is too large or the client is closed meanwhile, and StoreError if the store did not answer:
        then a slot may be left unused.
        """
        cell = self._of(key)
        return Charge(n, self._name, partial(self._count, cell, drive(self._acquire(n, timeout, cell))))

    def try_acquire(self, n: int = 1, *, key: str | None = None) -> bool:
        """Take `n` units if they may be used now; return whether. Errors as of `acquire`."""
        return drive(self._take(n, 0.0, self._of(key))).refused is None

    def available(self, *, key: str | None = None) -> int:
        """Ask the store how many units may be used now. Others may use them before the answer is here."""
        return drive(self._available(key))

    def busy_for(self, *, key: str | None = None) -> float:
        """Return in how many seconds the limit is as if nobody had used it, if nobody comes; 0.0: it is so now.

        The numbers with which this limit was made do not matter.
        """
        return drive(self._busy_for(key))

    def reset(self, *, key: str | None = None) -> float:
        """Forget all uses, for instance after a fault; return for how many seconds the limit would have been busy.

        Those who wait keep their slots, so more units may pass than the limit allows, until the last of these slots has
        passed. The numbers with which this limit was made do not matter. Raises StoreUnavailable if the store did not
        answer, and OutcomeUnknown, which is one, if the limit may have been reset.
        """
        return drive(self._reset(key))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Have every call of `function` acquire a unit first, waiting up to the limit's own timeout.

        The name is formatted from the call's arguments.
        """
        refuse_async(function, LIMIT)
        name_of = name_from_call(function, self._name)

        @functools.wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            self._named(name_of(*args, **kwargs)).acquire()
            return finished(function, function(*args, **kwargs))

        return limited


class AsyncLimit(_LimitBase):
    """A limit of an `AsyncClient`, as `Limit`. Made by `AsyncClient.limit`; also a decorator of async functions."""

    async def acquire(self, n: int = 1, timeout: float | None = UNSET, *, key: str | None = None) -> AsyncCharge:
        """Reserve the next slot for `n` units, and wait for it, as `Limit.acquire`.

        A call that is cancelled gives its units back; with smooth=True only if nobody has come since.
        """
        cell = self._of(key)
        return AsyncCharge(n, self._name, partial(self._count, cell, await self._acquire(n, timeout, cell)))

    async def try_acquire(self, n: int = 1, *, key: str | None = None) -> bool:
        """Take `n` units if they may be used now; return whether. Errors as of `acquire`."""
        return (await self._take(n, 0.0, self._of(key))).refused is None

    async def available(self, *, key: str | None = None) -> int:
        """Ask the store how many units may be used now, as `Limit.available`."""
        return await self._available(key)

    async def busy_for(self, *, key: str | None = None) -> float:
        """Return in how many seconds the limit is as if nobody had used it, as `Limit.busy_for`."""
        return await self._busy_for(key)

    async def reset(self, *, key: str | None = None) -> float:
        """Forget all uses, as `Limit.reset`."""
        return await self._reset(key)

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Have every call of the async `function` acquire a unit first, as `Limit` does."""
        refuse_sync(function, LIMIT)
        name_of = name_from_call(function, self._name)

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            await self._named(name_of(*args, **kwargs)).acquire()
            return finished(function, await awaitable(function, function(*args, **kwargs)))

        return limited
