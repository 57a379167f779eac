"""The steps of one client on one name, taken together.

If three hundred waiters of a semaphore took a step each, every one of them would read and write the whole queue, and
wait for the row behind all others. So of the steps that come while one is under way the next takes all at once. It
does not wait for long: if the reply is lost, only those whose request it was learn of it late.

If many clients do so, the row is busy all the same. Then their steps are slow, and after a slow step the waiters of a
client pause, the longer the slower the step was. So a client waits for the row a fifth of the time, and few of them at
once stand before a release. Without the pause they would ask as often as before: a row that is busy once would stay so.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Generic, TypeVar, cast
from weakref import WeakValueDictionary

from tenure.contracts.messages import AcquireRequest, NotificationKind, Queued, Reply
from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.runtimes.single import SingleFlight
from tenure.stores.sql.database import SqlSnapshot
from tenure.stores.tabled import Steps
from tenure.table.step import Step
from tenure.transport.errors import too_late

T = TypeVar("T")

NEXT_AFTER = 0.1
"""After how many seconds the next step begins though the one under way has not ended: later where steps are slow."""

USUAL = 0.02
"""How many seconds a step takes if its row is not busy."""

MULTIPLE = 4
"""For how many times as long as a slow step took waiters pause after it, and the next step waits for it."""

LONGEST = 1.0
"""The longest of these waits, in seconds: the store may drop a waiter that has not asked for four."""

Work = Callable[[Steps], Any]
Take = Callable[[str, SqlSnapshot | None, Work, float], Coroutine[Any, Any, Any]]
"""Takes a step on a name, from a snapshot if there is one."""


class _SharedCall(Generic[T]):
    """The work of one caller in a step, and its result."""

    __slots__ = ("ended", "error", "flight", "result", "work")

    def __init__(self, work: Callable[[Step], T]) -> None:
        self.work = work
        self.ended = False
        self.flight: SingleFlight | None = None
        """The step that does this work, once it was begun."""
        self.result: T | None = None
        self.error: Exception | None = None

    def end(self, result: T | None, error: Exception | None = None) -> None:
        self.result, self.error = result, error
        self.ended = True


class _NameQueue:
    """The calls of one client that wait for a step on one name. It lasts as long as there is one."""

    __slots__ = ("__weakref__", "flight", "pause_until", "took", "waiting")

    def __init__(self, runtime: Runtime) -> None:
        self.flight = SingleFlight(runtime)
        self.waiting: deque[_SharedCall[Any]] = deque()
        self.took = 0.0
        """How long the last step took that was answered."""
        self.pause_until = 0.0


class SharedSteps:
    """Takes the steps of one client, each name's one after the other."""

    def __init__(self, runtime: Runtime, title: str, take: Take) -> None:
        """Prepare to take steps by `take`, on a database with this title."""
        self._runtime = runtime
        self._title = title
        self._take = take
        self._mutex = runtime.mutex()
        self._queues: WeakValueDictionary[str, _NameQueue] = WeakValueDictionary()

    def under_way(self, name: str) -> bool:
        """Return whether this client takes a step on a name."""
        queue = self._queues.get(name)  # the traceback of an error may keep a queue for long
        return queue is not None and queue.flight.under_way()

    async def pause(self, name: str, until: float) -> None:
        """Wait after a slow step of this client on a name, but for at most half of the time that is left."""
        queue = self._queues.get(name)
        if queue is not None:
            now = self._runtime.now()
            pause = min(queue.pause_until - now, (until - now) / 2)
            if pause > 0:
                await self._runtime.sleep(pause)

    async def take(self, name: str, work: Callable[[Step], T], until: float, snapshot: SqlSnapshot | None = None) -> T:
        """Do `work` in a step on one name, perhaps together with others; return what it returns.

        If it is alone in its step, the step is taken from `snapshot`, if there is one. Another request may have been
        sent after that was read, and a lease must not begin before its request was sent.
        """
        with self._mutex:
            queue = self._queues.get(name)
            if queue is None:
                queue = self._queues[name] = _NameQueue(self._runtime)
        mine = _SharedCall(work)
        queue.waiting.append(mine)
        try:
            while mine.flight is None:
                await self._take_next(name, queue, mine, snapshot, until)
        finally:
            with suppress(ValueError):
                queue.waiting.remove(mine)
        if not mine.ended:
            await mine.flight.settle(until)
        if not mine.ended:
            raise self._too_late(sent=True)
        if mine.error is not None:
            raise mine.error
        return cast("T", mine.result)

    async def _take_next(
        self, name: str, queue: _NameQueue, mine: _SharedCall[Any], snapshot: SqlSnapshot | None, until: float
    ) -> None:
        """Take the next step, or wait until it is taken; but not for long for the one before it."""
        flight, now = queue.flight, self._runtime.now()
        if now >= until:
            sent = True
            with suppress(ValueError):  # another thread has just taken it for its step
                queue.waiting.remove(mine)
                sent = False
            raise self._too_late(sent=sent)
        carry_out = partial(self._carry_out, name, queue, flight, mine, snapshot=snapshot, until=until)
        after = max(NEXT_AFTER, min(MULTIPLE * queue.took, LONGEST))
        over = await flight.run(lambda: mine.flight is None, carry_out, min(until, now + after))
        if not over and mine.flight is None and queue.flight is flight:
            queue.flight = SingleFlight(self._runtime)

    async def _carry_out(
        self,
        name: str,
        queue: _NameQueue,
        flight: SingleFlight,
        mine: _SharedCall[Any],
        *,
        snapshot: SqlSnapshot | None,
        until: float,
    ) -> None:
        """Take one step for all who wait for it, of whom `mine` is usually one."""
        calls: list[_SharedCall[Any]] = []
        try:
            while queue.waiting:  # if the last one leaves meanwhile, all begin anew: none of `calls` has a flight yet
                calls.append(queue.waiting.popleft())
            if mine.flight is None and mine not in calls:  # an interrupt came when another had just taken it
                calls.append(mine)
            for each in calls:
                each.flight = flight
            if calls:
                as_read = snapshot if calls == [mine] else None
                began = self._runtime.now()
                results: Sequence[Any] = await self._take(name, as_read, _all_of(name, calls), until)
                now = self._runtime.now()
                queue.took = now - began
                queue.pause_until = now + min(MULTIPLE * (queue.took - USUAL), LONGEST)
                for each, result in zip(calls, results, strict=True):
                    each.end(result)
        except Exception as error:  # noqa: BLE001 - each caller in this step raises it
            for each in calls:
                each.end(None, error if each is mine else _another(error))
        finally:
            for each in calls:
                if not each.ended:  # an interrupt of the caller that takes the step for all
                    each.end(None, self._too_late(sent=True))

    def _too_late(self, *, sent: bool) -> StoreUnavailable:
        if sent:
            return OutcomeUnknown(f"{self._title} did not answer in time; the request may have been carried out")
        return too_late(self._title)


def _another(error: Exception) -> Exception:
    """Return an error like this one, for another thread to raise."""
    other = copy(error)
    other.__cause__ = error.__cause__
    return other


def _all_of(name: str, calls: Sequence[_SharedCall[Any]]) -> Work:
    """Return the work of all calls. It may be done several times, as that of every step."""

    def work(steps: Steps) -> list[Any]:
        step = steps.on(name)
        return [call.work(step) for call in calls]

    return work


SHARE = 8
"""A waiter that has waited for a while polls again after this part of it."""

LONGEST_POLL = 250_000
"""The longest time between two requests of a waiter that polls, in microseconds."""


def acquire_by_polling(
    step: Step, request: AcquireRequest, longest: int = LONGEST_POLL, *, refresh: bool = False
) -> Reply:
    """Take the step of an acquire request without a channel, to which no notification comes.

    Its waiter polls the more rarely the longer it has waited, but not later than the lease may end that it waits for.
    Most of its requests find everything as it was and write nothing; with `refresh`, this one writes that it lives.
    """
    before = step.state.queue.find(request.request_id)
    fresh_until = before.fresh_until if before is not None else 0
    reply = step.acquire(request)
    waiter = step.state.queue.find(request.request_id)
    if not isinstance(reply, Queued) or waiter is None:
        return reply
    usual = request.interval + request.interval * min(reply.place, 10) // 10
    if reply.retry_in >= usual:  # else it is when the lease may end
        reply.retry_in = min(max(usual, (step.now - waiter.joined_at) // SHARE), longest, max(_frees_in(step), usual))
    if not refresh and fresh_until > step.now + request.waiter_ttl * 3 // 4:
        waiter.fresh_until = fresh_until
        if all(each.kind is NotificationKind.CONTENDED for each in step.notifications):
            step.notifications.clear()
    return reply


def _frees_in(step: Step) -> int:
    ends = [holder.expires_at for holder in step.state.holders]
    return min(ends) - step.now if ends else 0
