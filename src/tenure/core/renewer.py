"""The renewer: it renews all leases of a client in the background, and tells their holders when one is lost.

Each client has one renewer task or thread, which starts with the first lease. It plans the renewals and watches the
clock. A second, short-lived task sends the renew requests, so that a request that hangs cannot hide that a deadline has
passed.

A lease is renewed after a third of its remaining time. Leases that fall due soon after are renewed in the same batch.
Each lease stands in one of two agendas: that of leases to look at later, and that of leases that are due, by their
deadline. So the cost of a look depends on how many leases have changed since the last look, not on how many there are.
If the store does not answer or fails, the renewal is repeated with a growing delay until the local deadline. If the
store refuses a renewal, the lease is lost.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from tenure.contracts.deadlines import NEVER
from tenure.contracts.messages import RenewReply, RenewRequest
from tenure.contracts.runtime import Runtime, ShuttingDown, SpawnedTask
from tenure.contracts.store import Store
from tenure.core.agenda import Agenda
from tenure.core.lease import CoreLease, report_loss, why_refused
from tenure.escaping import quoted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tenure.core.events import Events

log = logging.getLogger("tenure")

BATCH = 100
"""The most leases that one request renews."""

DUE_SOON = 1.25
"""How much earlier than planned a lease may be renewed together with others, as a factor of its wait."""

IDLE = 60.0
"""The longest sleep of the renewer, in seconds."""

SHORTEST_SLEEP = 0.01
"""The shortest sleep of the renewer, in seconds, unless a lease falls due or ends before."""


class Renewer:
    """The renewer of all leases of one client."""

    def __init__(self, runtime: Runtime, store: Store, request_timeout: Callable[[int], float]) -> None:
        """Renew leases of `store`; `request_timeout(ttl in microseconds)` returns the seconds a request may take."""
        self._runtime = runtime
        self._store = store
        self._request_timeout = request_timeout
        self._mutex: AbstractContextManager[Any] = runtime.mutex()
        self._signal = runtime.event()
        self.events: Events | None = None
        """Where renewals are reported; None if nobody listens."""
        self.collect: Callable[[float], float] | None = None
        """Takes the replies to releases that were sent, and returns when to look again."""
        self._leases: dict[str, CoreLease] = {}
        """All leases that are kept, by the id of their request."""
        self._moved: dict[str, CoreLease] = {}
        """The leases whose instants have changed since the last look. So an acquisition or release changes no heap."""
        self._order: AbstractContextManager[Any] = runtime.mutex()
        """Held to change the agendas and lists below, and never for long."""
        self._later = Agenda()
        """When each lease that is not due yet falls due or ends."""
        self._due = Agenda()
        """When each lease ends that is due and whose renewal has not begun."""
        self._asked: Sequence[CoreLease] = ()
        """The leases that are being renewed."""
        self._ended: deque[CoreLease] = deque()
        """The leases that were found to have ended, for the renewer task."""
        self._chores: deque[Callable[[], None]] = deque()
        """Work that the garbage collector has left to the renewer task."""
        self._looks_at = NEVER
        self._pace = IDLE
        self._task: SpawnedTask | None = None
        self._renewal: SpawnedTask | None = None
        self._renewing = False
        self._stopping = False

    def add(self, lease: CoreLease) -> None:
        """Renew a lease from now on."""
        self._leases[lease.grant.request.request_id] = lease
        self.plan(lease)

    def plan(self, lease: CoreLease) -> None:
        """Plan the next renewal of a lease. Wakes the renewer only if its own next look would be too late."""
        wait = lease.schedule(self._runtime.random())
        self._moved[lease.grant.request.request_id] = lease
        if wait < self._pace:  # noqa: PLR1730 - min() costs more
            self._pace = wait
        if lease.due_at < self._looks_at or lease.valid_until < self._looks_at:
            self._wake()

    def replaceable(self, lease: CoreLease) -> bool:
        """Return whether a released lease may have a successor: it was not found lost. Call it with its mutex held."""
        return not (lease.lost_because or lease.void)

    def replace(self, successor: CoreLease) -> None:
        """Put a successor in the place of its predecessor: from now on a loss of that lease is a loss of this one."""
        self._leases[successor.grant.request_id] = successor

    def replaced(self, successor: CoreLease) -> None:
        """Plan the renewal of a successor: when its predecessor was due, or anew if that had no further renewal."""
        if successor.due_at == NEVER:
            self.plan(successor)
        self.moved(successor)

    def moved(self, lease: CoreLease) -> None:
        """Note that the deadline or linger time of a lease has changed."""
        self._moved[lease.grant.request_id] = lease
        if min(lease.valid_until, lease.lingers_until) < self._looks_at:
            self._wake()

    def look_by(self, instant: float) -> None:
        """Have the renewer look again by a local instant."""
        if instant < self._looks_at:
            self._wake()

    def lose(self, lease: CoreLease, because: str) -> CoreLease | None:
        """Declare a lease, or its successor after a local hand-off, lost; return the one it was, None if neither."""
        lost = lease.lose(because)
        while not lost and (successor := self._now_held(lease)) is not lease:
            lease = successor
            lost = lease.lose(because)
        self.discard(lease)
        return lease if lost else None

    def hurry(self, within: float) -> None:
        """Renew every lease within so many seconds, because the store may have forgotten some."""
        now = self._runtime.now()
        for lease in self.kept():
            lease.due_at = min(lease.due_at, now + within * self._runtime.random())
            self._moved[lease.grant.request_id] = lease
        if self._leases:
            self._wake()

    def discard(self, lease: CoreLease) -> None:
        """Stop renewing a lease, but not its successor after a local hand-off."""
        with lease.mutex:
            self.discard_released(lease)

    def discard_released(self, lease: CoreLease) -> None:
        """Stop renewing a lease. Call it with its mutex held."""
        request_id = lease.grant.request.request_id
        if self._leases.get(request_id) is lease:
            del self._leases[request_id]
            self._moved.pop(request_id, None)
            self._later.entries.pop(request_id, None)  # the same as `drop`, without the cost of a call
            self._due.entries.pop(request_id, None)

    def drop(self, leases: Sequence[CoreLease], where: str | None = None) -> None:
        """Stop renewing leases whose holder is gone, and let the next local waiters send requests to the store.

        `where` is the line that acquired them, for the log; None if they never got to a holder. The garbage collector
        may call this at any point, so it takes no mutex: the renewer task does the rest.
        """
        for lease in leases:
            lease.dropped = True
        self.soon(partial(self.give_up, leases, where))

    def soon(self, chore: Callable[[], None]) -> None:
        """Have the renewer task run `chore`. The garbage collector may call this, like `drop`."""
        self._chores.append(chore)
        if not self._runtime.post(self._signal.set):  # the event loop is closed, and its renewer is gone
            self.do_chores()

    def do_chores(self) -> None:
        """Do what the garbage collector has left to do."""
        while self._chores:
            try:
                chore = self._chores.popleft()
            except IndexError:  # another thread took the last one
                return
            chore()

    def find(self, request_id: str) -> CoreLease | None:
        """Return the lease that was granted to a request, if it is still renewed."""
        return self._leases.get(request_id)

    def kept(self) -> list[CoreLease]:
        """Return all leases that are renewed, without those whose holder is gone."""
        return [lease for lease in self.unreleased() if not lease.dropped]

    def unreleased(self) -> list[CoreLease]:
        """Return all leases that have not ended in the store, also those whose holder is gone."""
        return list(self._leases.values())

    async def stop(self, until: float) -> None:
        """End the renewer, and wait for that until a local instant."""
        self._stopping = True
        self._signal.set()
        for task in (self._task, self._renewal):
            if task is not None:
                await task.join(until)

    def _wake(self) -> None:
        if self._task is None or self._task.ended():
            with self._mutex:
                if (self._task is None or self._task.ended()) and not self._stopping:  # no other thread was faster
                    with suppress(ShuttingDown):  # the lease lasts for its ttl, and who looks at it finds its end
                        self._task = self._runtime.spawn(self._run, "renewer")
        self._signal.set()

    async def _run(self) -> None:
        try:
            while not self._stopping:
                self._looks_at = NEVER  # so that a lease that is added during the look wakes the renewer again
                next_look = self._look(self._runtime.now())
                self._looks_at = next_look
                await self._signal.wait(next_look)
                self._signal.clear()  # before the next look, so that what changes during it leads to another
        finally:
            self._looks_at = NEVER  # after a cancellation, the next lease starts another task
            self.do_chores()

    def _look(self, now: float) -> float:
        """Report losses, start the renewal of the leases that are due, and return when to look again."""
        pace = max(self._pace, SHORTEST_SLEEP)  # a lease may have ended before it was planned: its process stood still
        next_look = now + pace
        self._pace = min(pace * 2, IDLE)  # `add` shortens it again
        self.do_chores()
        with self._order:
            self._sort(now)
        while self._ended:
            self._end(self._ended.popleft(), now)
        next_look = min(next_look, self._next_look(now))
        if self.collect is not None:
            next_look = min(next_look, self.collect(now))
        if self._due and not self._renewing:
            self._start_renewal()
        return next_look

    def _sort(self, now: float) -> None:
        """Put each lease that has changed, or whose instant has come, into its agenda. Call it with `_order` held."""
        while self._moved:
            try:
                moved = self._moved.popitem()[0]
            except KeyError:  # the lease was released just now
                break
            self._place(moved, now)
        for agenda in (self._later, self._due):
            while (request_id := agenda.take(now)) is not None:
                self._place(request_id, now)

    def _place(self, request_id: str, now: float) -> None:
        """Put the lease of a request, or its successor, into the right agenda. Call it with `_order` held."""
        lease = self._leases.get(request_id)
        if lease is None:
            return
        if lease.dropped:
            lease.due_at = NEVER
            self._due.drop(request_id)
            if lease.kept_until <= now:
                self._ended.append(lease)
            else:
                self._later.put(request_id, lease.kept_until)
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
        """Return when the next lease falls due or ends. A lease that falls due during a renewal is not urgent."""
        with self._order:
            falls_due, ends = self._later.first(), self._due.first()
        soonest = NEVER if ends is None else ends[0]
        if falls_due is not None:
            soonest = min(soonest, max(falls_due[0], now + SHORTEST_SLEEP) if self._renewing else falls_due[0])
        for asked in self._asked:
            lease = self._leases.get(asked.grant.request_id)
            if lease is None or lease.dropped:
                continue
            if lease.trusted():
                soonest = min(soonest, lease.valid_until)
            else:
                self._forget(lease)
        return soonest

    def _end(self, lease: CoreLease, now: float) -> None:
        """Handle a lease that is lost, is released, or has lingered long enough."""
        if lease.dropped:
            self.discard(lease)
            return
        if not lease.trusted():
            self._forget(lease)
            return
        if lease.lingers_until <= now and lease.local_queue is not None:
            lease.local_queue.on_linger_end(lease)
        with self._order:
            if self._leases.get(lease.grant.request_id) is lease and lease.lingers_until <= now:
                self._later.put(lease.grant.request_id, lease.valid_until)  # the lease is being released
            else:
                self._place(lease.grant.request_id, now)  # the lease was just taken up or renewed

    def give_up(self, leases: Sequence[CoreLease], where: str | None) -> None:
        """Leave leases without a holder to their ttl, and log that. Until then the end of the client releases them."""
        kept = [lease for lease in leases if self._leases.get(lease.grant.request_id) is lease]
        for lease in kept:
            lease.dropped = True
            with self._order:
                self._place(lease.grant.request_id, self._runtime.now())
            if lease.local_queue is not None:
                lease.local_queue.lost(lease)
        if kept and where is not None:
            self._report_dropped(kept, where)
        if self.events is not None:
            for lease in kept:
                self.events.dropped(lease, where or "")

    def _report_dropped(self, leases: Sequence[CoreLease], where: str) -> None:
        first, verb = leases[0], f"and {len(leases) - 1} more were" if len(leases) > 1 else "was"
        log.warning(
            "the lease of %r (token %d) %s dropped without release%s: no longer renewed, it ends by itself, and others "
            "may get the name in %.1f s. Keep the lease object for as long as you need the lock, as in `with lock:`.",
            first.grant.title,
            first.token,
            verb,
            f" (acquired at {where})" if where else "",
            max(0.0, first.kept_until - self._runtime.now()),
        )

    def _forget(self, lease: CoreLease) -> None:
        self.discard(lease)
        if lease.lost_because:
            report_loss(lease)
        elif lease.local_queue is not None:  # its release was interrupted, or is about to hand the lease on
            lease.local_queue.lost(lease)

    def _start_renewal(self) -> None:
        with self._mutex:
            if self._stopping:
                return
            self._renewing = True
        try:
            self._renewal = self._runtime.spawn(self._renew_due, "renewal")
        except RuntimeError:  # the interpreter shuts down: it starts no more threads or tasks
            self._renewing = False

    async def _renew_due(self) -> None:
        try:
            while batch := self._take_due():
                await self._renew(batch)
        finally:
            self._renewing = False
            self._signal.set()

    def _take_due(self) -> list[CoreLease]:
        """Take a batch of leases that are due, the earliest deadline first, then leases that will be due soon."""
        now = self._runtime.now()
        with self._order:
            self._sort(now)
            batch: list[CoreLease] = []
            while len(batch) < BATCH and (request_id := self._due.take(NEVER)) is not None:
                self._pick(request_id, batch)
            while batch and len(batch) < BATCH and (first := self._later.first()) is not None:
                lease = self._leases.get(first[1])
                if lease is not None and not _is_due_soon(lease, now):
                    break
                self._later.take(NEVER)
                self._pick(first[1], batch)
            for lease in batch:
                if lease.lingers_until < NEVER:  # the lease is released then, even if its renewal is still under way
                    self._later.put(lease.grant.request_id, lease.lingers_until)
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
        renewals = [lease.background_renewal() for lease in batch]
        until = sent + self._request_timeout(min(renewal.ttl for renewal in renewals))
        if self.events is not None:
            self.events.renewing(batch, sent)
        try:
            replies = await self._store.renew(renewals, until)
        except Exception as error:  # noqa: BLE001 - after any error of a store, the leases must be renewed again
            self._failed([self._now_held(lease) for lease in batch], error)
        else:
            for lease, renewal, reply in zip(batch, renewals, replies, strict=True):
                self._answered(self._now_held(lease), sent, renewal, reply)
        finally:
            with self._order:
                self._asked = ()
                for lease in batch:
                    lease.renewing = self._now_held(lease).renewing = False
                    self._place(lease.grant.request_id, self._runtime.now())

    def _now_held(self, lease: CoreLease) -> CoreLease:
        """Return the successor of a lease that was handed on meanwhile, or the lease itself."""
        return self._leases.get(lease.grant.request_id, lease)

    def _answered(self, lease: CoreLease, sent: float, renewal: RenewRequest, reply: RenewReply) -> None:
        if reply is None:
            at_risk = lease.failures > 0
            if lease.renewed(sent, renewal.ttl):
                lease.schedule(self._runtime.random())
                if self.events is not None:
                    self.events.renewed(lease, recovered=at_risk)
                lease.note_contention(renewal)
        elif lease.grant.is_outdated(renewal.token):
            now = self._runtime.now()  # the detachment finds out what became of the lease
            lease.due_at = now + max(SHORTEST_SLEEP, (lease.valid_until - now) / 4)
        else:
            lost = self.lose(lease, why_refused(reply, renewal))
            if lost is not None:
                report_loss(lost)

    def _failed(self, leases: Sequence[CoreLease], error: Exception) -> None:
        """Plan the next try. For each lease only the first failure is logged, until a renewal of it succeeds."""
        error.__traceback__ = None  # the leases keep the error, and its frames would keep the leases alive
        now = self._runtime.now()
        at_risk: list[CoreLease] = []
        for lease in leases:
            lease.failed(error)
            delay = min(0.05 * 2 ** min(lease.failures, 10), 1.0) * (0.5 + self._runtime.random())
            lease.due_at = now + min(delay, max(0.005, (lease.valid_until - now) / 4))
            if lease.failures == 1:
                at_risk.append(lease)
                if self.events is not None:
                    self.events.at_risk(lease, error)
        if at_risk:
            first = min(at_risk, key=lambda lease: lease.valid_until)
            log.warning(
                "the lease of %r %s at risk: a renewal failed (%s); it is repeated for another %.1f s",
                first.grant.name,
                f"and {len(at_risk) - 1} more are" if len(at_risk) > 1 else "is",
                quoted(error),
                max(0.0, first.valid_until - now),
            )


def _is_due_soon(lease: CoreLease, now: float) -> bool:
    """Return whether a lease falls due so soon that it is renewed together with others."""
    return lease.due_at - now <= (lease.valid_until - now) * (DUE_SOON - 1)
