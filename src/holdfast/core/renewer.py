"""The renewer: renews all leases of a client in the background, and tells when one is lost.

One task or thread a client, started with the first lease. It decides and watches the clock; the talking to the
store is done by a second, short-lived task, so that a renewal that hangs cannot hide that a deadline passed.

A lease is renewed after a third of what is left of it. Leases that fall due soon ride along in the same batch.
Each lease stands in one of two agendas: what is to be looked at later, and what is due, the nearest deadline first. So
a look costs what has changed since the last one, however many leases there are.
An error of the store is retried, with growing delay, until the local deadline. A refusal is final.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.contracts.deadlines import NEVER
from holdfast.contracts.messages import RenewReply, RenewRequest
from holdfast.contracts.runtime import Runtime, Task
from holdfast.contracts.store import Store
from holdfast.core.agenda import Agenda
from holdfast.core.lease import CoreLease, report_loss, why_refused
from holdfast.escaping import quoted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from holdfast.core.events import Events

log = logging.getLogger("holdfast")

BATCH = 100
"""The most leases that one request renews."""

RIDE_ALONG = 1.25
"""How much earlier than planned a lease may be renewed, as a share of its wait, to go with another."""

IDLE = 60.0
"""The longest the renewer sleeps, in seconds."""

GRAIN = 0.01
"""The shortest that it sleeps while something due cannot be done yet, in seconds."""


class Renewer:
    """The renewer of all leases of one client."""

    def __init__(self, runtime: Runtime, store: Store, request_timeout: Callable[[int], float]) -> None:
        """Keep leases of `store`; `request_timeout(ttl in microseconds)` says how long one renewal may take."""
        self._runtime = runtime
        self._store = store
        self._request_timeout = request_timeout
        self._mutex: AbstractContextManager[Any] = runtime.mutex()
        self._signal = runtime.event()
        self.events: Events | None = None
        """Who is told of renewals, if anybody."""
        self._leases: dict[str, CoreLease] = {}
        self._moved: dict[str, CoreLease] = {}
        """Leases whose instants have changed since the last look: so taking and releasing costs no heap."""
        self._order: AbstractContextManager[Any] = runtime.mutex()
        """Held to change what follows, and for nothing that takes long."""
        self._later = Agenda()
        """When to look at a lease again: it falls due then, or ends."""
        self._due = Agenda()
        """When a lease ends that is due, and was not asked for yet."""
        self._asked: Sequence[CoreLease] = ()
        """The leases that are being renewed."""
        self._ended: deque[CoreLease] = deque()
        """Those that were found at their end, for the task to see to."""
        self._chores: deque[Callable[[], None]] = deque()
        self._looks_at = NEVER
        self._pace = IDLE
        self._task: Task | None = None
        self._renewal: Task | None = None
        self._renewing = False
        self._stopping = False

    def add(self, lease: CoreLease) -> None:
        """Keep a lease from now on."""
        self._leases[lease.request.request_id] = lease
        self.plan(lease)

    def plan(self, lease: CoreLease) -> None:
        """Plan the next renewal of a lease that is kept. Wakes the task only if it would look too late by itself."""
        wait = lease.schedule(self._runtime.random())
        self._moved[lease.request.request_id] = lease
        self._pace = min(self._pace, wait)
        if lease.due_at < self._looks_at or lease.valid_until < self._looks_at:
            self._wake()

    def replaceable(self, lease: CoreLease) -> bool:
        """Tell whether a lease that was let go may go on as another: it was not found lost. With its mutex held."""
        return not (lease.lost_because or lease.void)

    def replace(self, successor: CoreLease) -> None:
        """Keep a lease in the place of its predecessor: whoever finds that lost from now on finds this one here."""
        self._leases[successor.request_id] = successor

    def replaced(self, successor: CoreLease) -> None:
        """Look after a successor. It falls due when its predecessor did, unless that was not to be renewed any more."""
        if successor.due_at == NEVER:
            self.plan(successor)
        self.moved(successor)

    def moved(self, lease: CoreLease) -> None:
        """Note that instants of a lease that is kept have changed."""
        self._moved[lease.request_id] = lease
        if min(lease.valid_until, lease.lingers_until) < self._looks_at:
            self._wake()

    def lose(self, lease: CoreLease, because: str) -> CoreLease | None:
        """Declare a lease lost, or what it was handed on to meanwhile; return which of them it was, if any."""
        lost = lease.lose(because)
        while not lost and (successor := self._now_held(lease)) is not lease:
            lease = successor
            lost = lease.lose(because)
        self.discard(lease)
        return lease if lost else None

    def hurry(self, within: float) -> None:
        """Renew every lease soon, within so many seconds: the store may have forgotten some."""
        now = self._runtime.now()
        for lease in self.kept():
            lease.due_at = min(lease.due_at, now + within * self._runtime.random())
            self._moved[lease.request_id] = lease
        if self._leases:
            self._wake()

    def discard(self, lease: CoreLease) -> None:
        """Stop keeping a lease; not the one that it was handed on to meanwhile."""
        with lease.mutex:
            request_id = lease.request.request_id
            if self._leases.get(request_id) is lease:
                del self._leases[request_id]
                self._moved.pop(request_id, None)
                self._later.entries.pop(request_id, None)  # `drop`, without a call
                self._due.entries.pop(request_id, None)

    def drop(self, lease: CoreLease) -> None:
        """Renew a lease no more, for its holder is gone, and let others of this process ask for it.

        Called by the garbage collector in the middle of anything, so it takes no mutex: the task does the rest.
        """
        lease.dropped = True
        self.soon(partial(self._give_up, lease))

    def soon(self, chore: Callable[[], None]) -> None:
        """Have the task do something; for the garbage collector, like `drop`."""
        self._chores.append(chore)
        self._runtime.post(self._signal.set)

    def find(self, request_id: str) -> CoreLease | None:
        """Return the lease that came of a request, if it is kept."""
        return self._leases.get(request_id)

    def kept(self) -> list[CoreLease]:
        """Return all leases that are kept for somebody."""
        return [lease for lease in list(self._leases.values()) if not lease.dropped]

    async def stop(self, until: float) -> None:
        """End the task or thread, waiting for it until a local instant."""
        self._stopping = True
        self._signal.set()
        for task in (self._task, self._renewal):
            if task is not None:
                await task.join(until)

    def _wake(self) -> None:
        if self._task is None or self._task.ended():
            with self._mutex:
                if (self._task is None or self._task.ended()) and not self._stopping:
                    self._task = self._runtime.spawn(self._run, "renewer")
        self._signal.set()

    async def _run(self) -> None:
        try:
            while not self._stopping:
                self._looks_at = NEVER  # so that whoever adds a lease while we look wakes us again
                next_look = self._look(self._runtime.now())
                self._looks_at = next_look
                await self._signal.wait(next_look)
                self._signal.clear()
        finally:
            self._looks_at = NEVER  # if somebody cancelled us, the next lease starts another one

    def _look(self, now: float) -> float:
        """Tell losses, start what is due, and return when to look again."""
        next_look = now + self._pace
        self._pace = min(self._pace * 2, IDLE)  # `add` shortens it again
        while self._chores:
            self._chores.popleft()()
        with self._order:
            self._sort(now)
        while self._ended:
            self._end(self._ended.popleft(), now)
        next_look = min(next_look, self._next_look(now))
        if self._due and not self._renewing:
            self._start_renewal()
        return next_look

    def _sort(self, now: float) -> None:
        """Put each lease that has moved, or whose instant has come, where it belongs. With `_order` held."""
        while self._moved:
            try:
                moved = self._moved.popitem()[0]
            except KeyError:  # it was released just now
                break
            self._place(moved, now)
        for agenda in (self._later, self._due):
            while (request_id := agenda.take(now)) is not None:
                self._place(request_id, now)

    def _place(self, request_id: str, now: float) -> None:
        """Put what is kept of a request, and that may be a successor by now, where it belongs. With `_order` held."""
        lease = self._leases.get(request_id)
        if lease is None or lease.dropped:
            return
        end = min(lease.valid_until, lease.lingers_until)
        if end <= now or lease.over():
            self._ended.append(lease)
        elif lease.due_at <= now:
            self._later.drop(request_id)
            self._due.put(request_id, end)
        else:
            self._due.drop(request_id)
            self._later.put(request_id, min(end, lease.due_at))

    def _next_look(self, now: float) -> float:
        """Return when the next lease falls due or ends. What falls due while others are renewed is not urgent."""
        with self._order:
            falls_due, ends = self._later.first(), self._due.first()
        soonest = NEVER if ends is None else ends[0]
        if falls_due is not None:
            soonest = min(soonest, max(falls_due[0], now + GRAIN) if self._renewing else falls_due[0])
        for asked in self._asked:
            lease = self._leases.get(asked.request_id)
            if lease is None or lease.dropped:
                continue
            if lease.trusted():
                soonest = min(soonest, lease.valid_until)
            else:
                self._forget(lease)
        return soonest

    def _end(self, lease: CoreLease, now: float) -> None:
        """See to a lease that is lost, let go, or has lingered long enough."""
        if not lease.trusted():
            self._forget(lease)
            return
        if lease.lingers_until <= now and lease.local_queue is not None:
            lease.local_queue.lingered(lease)
        with self._order:
            if self._leases.get(lease.request_id) is lease and lease.lingers_until <= now:
                self._later.put(lease.request_id, lease.valid_until)  # it is being released
            else:
                self._place(lease.request_id, now)  # somebody has just taken it up, or renewed it

    def _give_up(self, lease: CoreLease) -> None:
        if self._leases.get(lease.request_id) is not lease:
            return
        self.discard(lease)
        if lease.local_queue is not None:
            lease.local_queue.lost(lease)

    def _forget(self, lease: CoreLease) -> None:
        self.discard(lease)
        if lease.lost_because:
            report_loss(lease)
        elif lease.local_queue is not None:  # who let it go was interrupted, or is just about to hand it on
            lease.local_queue.lost(lease)

    def _start_renewal(self) -> None:
        with self._mutex:
            if self._stopping:
                return
            self._renewing = True
        try:
            self._renewal = self._runtime.spawn(self._renew_due, "renewal")
        except RuntimeError:  # nothing can be started any more: the interpreter shuts down
            self._renewing = False

    async def _renew_due(self) -> None:
        try:
            while batch := self._take_due():
                await self._renew(batch)
        finally:
            self._renewing = False
            self._signal.set()

    def _take_due(self) -> list[CoreLease]:
        """Pick what is due, the nearest deadline first, and if there is room what will be due soon."""
        now = self._runtime.now()
        with self._order:
            self._sort(now)
            batch: list[CoreLease] = []
            while len(batch) < BATCH and (request_id := self._due.take(NEVER)) is not None:
                self._pick(request_id, batch)
            while batch and len(batch) < BATCH and (first := self._later.first()) is not None:
                lease = self._leases.get(first[1])
                if lease is not None and not _rides_along(lease, now):
                    break
                self._later.take(NEVER)
                self._pick(first[1], batch)
            for lease in batch:
                if lease.lingers_until < NEVER:  # it is given back then, whatever becomes of its renewal
                    self._later.put(lease.request_id, lease.lingers_until)
            self._asked = batch
        if self._ended:
            self._signal.set()
        return batch

    def _pick(self, request_id: str, batch: list[CoreLease]) -> None:
        lease = self._leases.get(request_id)
        if lease is not None and not lease.dropped:
            lease.renewing = True
            batch.append(lease)

    async def _renew(self, batch: Sequence[CoreLease]) -> None:
        sent = self._runtime.now()
        renewals = [lease.renewal(lease.ttl) for lease in batch]
        until = sent + self._request_timeout(min(renewal.ttl for renewal in renewals))
        try:
            replies = await self._store.renew(renewals, until)
        except Exception as error:  # noqa: BLE001 - whatever ails a store, the other leases must be kept
            self._failed([self._now_held(lease) for lease in batch], error)
        else:
            for lease, renewal, reply in zip(batch, renewals, replies, strict=True):
                self._answered(self._now_held(lease), sent, renewal, reply)
        finally:
            with self._order:
                self._asked = ()
                for lease in batch:
                    lease.renewing = self._now_held(lease).renewing = False
                    self._place(lease.request_id, self._runtime.now())

    def _now_held(self, lease: CoreLease) -> CoreLease:
        """Return what became of a lease: it may have been handed on meanwhile."""
        return self._leases.get(lease.request_id, lease)

    def _answered(self, lease: CoreLease, sent: float, renewal: RenewRequest, reply: RenewReply) -> None:
        if reply is None:
            if lease.renewed(sent, renewal.ttl):
                lease.schedule(self._runtime.random())
                if self.events is not None:
                    self.events.renewed(lease)
                lease.note_contention(renewal)
        else:
            lost = self.lose(lease, why_refused(reply, renewal))
            if lost is not None:
                report_loss(lost)

    def _failed(self, leases: Sequence[CoreLease], error: Exception) -> None:
        """Plan to try again, and say so once: until a renewal of a lease succeeds nothing more is logged of it."""
        error.__traceback__ = None  # the leases remember the error, and its frames would keep the leases
        now = self._runtime.now()
        at_risk: list[CoreLease] = []
        for lease in leases:
            lease.failed(error)
            delay = min(0.05 * 2 ** min(lease.failures, 10), 1.0) * (0.5 + self._runtime.random())
            lease.due_at = now + min(delay, max(0.005, (lease.valid_until - now) / 4))
            if lease.failures == 1:
                at_risk.append(lease)
        if at_risk:
            first = min(at_risk, key=lambda lease: lease.valid_until)
            log.warning(
                "the lease of %r %s at risk: a renewal failed (%s); trying again for %.1f s",
                first.name,
                f"and {len(at_risk) - 1} more are" if len(at_risk) > 1 else "is",
                quoted(error),
                max(0.0, first.valid_until - now),
            )


def _rides_along(lease: CoreLease, now: float) -> bool:
    """Tell whether a lease falls due so soon that it is renewed with others."""
    return lease.due_at - now <= (lease.valid_until - now) * (RIDE_ALONG - 1)
