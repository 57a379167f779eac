"""The wait for a slot of a limit (table/limit.py), which decides when some units may be used.

A waiter reserves its slot in one change of the cell, and then sends no more requests. The store says how far the slot
lies ahead of the instant at which it replied; the waiter counts from when it has the reply, 1 % longer for clocks that
drift. So it is never early. Counted from the send, it would be early by as long as the request was under way.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tenure.contracts.cells import Change
from tenure.contracts.deadlines import DRIFT, EPSILON, MICROS, seconds
from tenure.contracts.messages import Notification
from tenure.core.session import Session
from tenure.core.stop import Stop
from tenure.errors import Stopped, TenureError
from tenure.table import limit
from tenure.table.limit import Rule, Slot


class _SlotWaiter:
    """A waiter as an `Acquisition` of its session, so that closing the client ends the wait."""

    contended_before_grant = False

    def __init__(self, session: Session) -> None:
        self._closing = session.runtime.event()

    def hear(self, notification: Notification) -> None:
        """Ignore notifications: they are for locks."""

    def dismiss(self) -> None:
        """End the wait."""
        self._closing.set()

    def waits_with(self, stop: Stop) -> bool:  # noqa: ARG002 - as the contract says
        """Return False: no `Stop` ends this wait."""
        return False

    async def wait(self, until: float) -> None:
        """Wait until a local instant, or until the client is closed."""
        await self._closing.wait(until)


async def take_slot(session: Session, name: str, rule: Rule, units: int, timeout: float | None) -> Slot:
    """Reserve the next slot for some units and wait for it.

    If the wait would be longer than `timeout` seconds (None: any), reserve nothing, and return at once. If the caller
    is cancelled or interrupted, its units are given back, as far as the rule can. Raises StoreError if the store did
    not answer: then a slot may be left unused. Raises UsageError if the client is closed meanwhile.
    """
    runtime, reservation = session.runtime, session.runtime.new_id()
    longest = None if timeout is None else max(0, int((timeout - EPSILON) * (1.0 - DRIFT) * MICROS))
    slot: int | None = None
    try:
        work = limit.reserve(rule, units, longest, reservation)
        reserved, ahead, at = await session.cells.change(name, work, timeout=timeout)
        slot = at
        wait = seconds(ahead) / (1.0 - DRIFT) + EPSILON if ahead else 0.0
        if not reserved:
            return Slot(at, wait)
        if wait:
            await _sleep(session, reservation, runtime.now() + wait)
    except Stopped:  # the client is being drained, and can still give back what it does not use
        await _give_back(session, name, limit.settle(rule, slot, -units, reservation))
        raise
    except (Exception, GeneratorExit):
        raise
    except BaseException:
        await runtime.finish(_give_back(session, name, limit.settle(rule, slot, -units, reservation)))
        raise
    return Slot(at, None)


async def _sleep(session: Session, reservation: str, until: float) -> None:
    waiter = session.attempts[reservation] = _SlotWaiter(session)
    try:
        if session.events is not None:
            session.events.contended()
        while session.runtime.now() < until:
            session.refuse_to_acquire()
            await waiter.wait(until)
    finally:
        session.attempts.pop(reservation, None)


async def _give_back(session: Session, name: str, given_back: Callable[[Any, int], Change]) -> None:
    with suppress(TenureError):  # the caller leaves because of something else
        await session.cells.change(name, given_back)
