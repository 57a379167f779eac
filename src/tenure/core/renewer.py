"""The renewer: it renews all leases of a client in the background, and tells their holders when one is lost.

Each client has one renewer task or thread, which starts with the first lease. It only watches the clock: the agendas
(`agenda.py`) know which lease is looked at when, and the renewals (`renewals.py`) send the requests. A lease is renewed
after a third of its remaining time. Leases that fall due soon after are renewed in the same batch.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from tenure.contracts.deadlines import NEVER
from tenure.contracts.runtime import Runtime, ShuttingDown, SpawnedTask
from tenure.contracts.store import Store
from tenure.core.agenda import SHORTEST_SLEEP, Agendas
from tenure.core.lease import CoreLease, report_loss
from tenure.core.renewals import Renewals

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tenure.core.events import Events

log = logging.getLogger("tenure")

IDLE = 60.0
"""The longest sleep of the renewer, in seconds."""


class Renewer:
    """The renewer of all leases of one client."""

    def __init__(
        self, runtime: Runtime, store: Store, request_timeout: Callable[[int], float], events: "Events | None"
    ) -> None:
        """Renew leases of `store`; `request_timeout(ttl in microseconds)` returns the seconds a request may take."""
        self._runtime = runtime
        self._mutex: AbstractContextManager[Any] = runtime.mutex()
        self._signal = runtime.event()
        agendas = self._agendas = Agendas(runtime.mutex())
        self._renewals = Renewals(
            runtime, store, agendas, request_timeout, events, lose=self.lose, look=self._signal.set
        )
        self._events = events
        self._leases, self._moved = agendas.leases, agendas.moved
        self.discard_released = agendas.discard
        """Stops renewing a lease. It is called in each release, with the mutex of the lease held."""
        self.collect: Callable[[float], float] | None = None
        """Goes on with releases of which no caller waits for the end, and returns when to look again."""
        self._chores: deque[Callable[[], None]] = deque()
        """Work that the garbage collector has left to the renewer task."""
        self._looks_at = NEVER
        self._pace = IDLE
        self._task: SpawnedTask | None = None
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
        while not lost and (successor := self._agendas.now_held(lease)) is not lease:
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
        if self._task is not None:
            await self._task.join(until)
        await self._renewals.join(until)

    def _wake(self) -> None:
        if self._task is None or self._task.ended():
            with self._mutex:
                if (self._task is None or self._task.ended()) and not self._stopping:  # no other thread was faster
                    with suppress(ShuttingDown):  # the lease lasts for its ttl, and who looks at it finds its end
                        self._task = self._runtime.spawn(self._run, "renewer", again=True)
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
        agendas, renewals = self._agendas, self._renewals
        agendas.sort(now)
        while agendas.ended:
            self._end(agendas.ended.popleft(), now)
        next_look = min(next_look, agendas.next_look(now, renewing=renewals.running))
        while agendas.ended:
            self._end(agendas.ended.popleft(), now)
        if self.collect is not None:
            next_look = min(next_look, self.collect(now))
        if agendas.has_due() and not renewals.running and not self._stopping:
            renewals.start()
        return next_look

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
        self._agendas.place_lingered(lease, now)

    def give_up(self, leases: Sequence[CoreLease], where: str | None) -> None:
        """Leave leases without a holder to their ttl, and log that. Until then the end of the client releases them."""
        kept = [lease for lease in leases if self._leases.get(lease.grant.request_id) is lease]
        for lease in kept:
            lease.dropped = True
            self._agendas.place(lease, self._runtime.now())
            if lease.local_queue is not None:
                lease.local_queue.lost(lease)
        if kept and where is not None:
            self._report_dropped(kept, where)
        if self._events is not None:
            for lease in kept:
                self._events.dropped(lease, where or "")

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
