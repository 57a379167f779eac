"""The renewals of a renewer: they send the renew requests of the leases that are due, and act on the replies.

A short-lived task sends them, not the renewer, so that a request that hangs cannot hide that a deadline has passed. If
no thread can be started for it, the renewer sends them: then a loss may be told late, but no lease is lost for that. If
the store does not answer or fails, the renewal is repeated with a growing delay until the local deadline: that of the
leases which it failed for, and of no other. If the store refuses a renewal, the lease is lost.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tenure.contracts.messages import RenewReply, RenewRequest
from tenure.contracts.runtime import Runtime, SpawnedTask
from tenure.contracts.store import Store
from tenure.core.agenda import SHORTEST_SLEEP, Agendas
from tenure.core.lease import CoreLease, report_loss, why_refused
from tenure.errors import StoreUnavailable
from tenure.escaping import quoted

if TYPE_CHECKING:
    from tenure.core.events import Events

log = logging.getLogger("tenure")


class Renewals:
    """The renewals of one client, one batch at a time."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        agendas: Agendas,
        request_timeout: Callable[[int], float],
        events: "Events | None",
        *,
        lose: Callable[[CoreLease, str], CoreLease | None],
        look: Callable[[], None],
    ) -> None:
        """Renew leases of `store`; `lose` declares one lost, and `look` has the renewer look again."""
        self._runtime = runtime
        self._store = store
        self._request_timeout = request_timeout
        self._agendas = agendas
        self._lose = lose
        self._look = look
        self._events = events
        self._task: SpawnedTask | None = None
        self.running = False

    def start(self) -> None:
        """Renew all leases that are due, in a task of its own if one can be started."""
        self.running = True
        try:
            self._task = self._runtime.spawn(self._renew_due, "renewal", or_here=True)
        except RuntimeError:  # the event loop is closed: it starts no more tasks
            self.running = False

    async def join(self, until: float) -> None:
        """Wait for the task until a local instant."""
        if self._task is not None:
            await self._task.join(until)

    async def _renew_due(self) -> None:
        try:
            while batch := self._take_due():
                await self._renew(batch)
        finally:
            self.running = False
            self._look()

    def _take_due(self) -> list[CoreLease]:
        batch = self._agendas.take_due(self._runtime.now())
        if self._agendas.ended:
            self._look()
        return batch

    async def _renew(self, batch: Sequence[CoreLease]) -> None:
        batch = sorted(batch, key=lambda lease: lease.failures > 0)
        sent = self._runtime.now()
        renewals = [lease.background_renewal() for lease in batch]
        until = sent + self._request_timeout(min(renewal.ttl for renewal in renewals))
        if self._events is not None:
            self._events.renewing(batch, sent)
        failed: dict[Exception, list[CoreLease]] = {}
        try:
            replies = await self._replies(renewals, until)
            for lease, renewal, reply in zip(batch, renewals, replies, strict=True):
                held = self._agendas.now_held(lease)
                if isinstance(reply, Exception):
                    failed.setdefault(reply, []).append(held)
                else:
                    self._answered(held, sent, renewal, reply)
            for error, leases in failed.items():
                self._failed(leases, error)
        finally:
            self._agendas.put_back(batch, self._runtime.now())

    async def _replies(self, renewals: Sequence[RenewRequest], until: float) -> Sequence[RenewReply | Exception]:
        """Return the store's replies and errors. What is refused as a whole may be so for one lease: it is halved."""
        try:
            return await self._store.renew(renewals, until)
        except Exception as error:  # noqa: BLE001 - after any error of a store, the leases must be renewed again
            half = len(renewals) // 2
            if half == 0 or isinstance(error, StoreUnavailable):
                return [error] * len(renewals)
            return [*await self._replies(renewals[:half], until), *await self._replies(renewals[half:], until)]

    def _answered(self, lease: CoreLease, sent: float, renewal: RenewRequest, reply: RenewReply) -> None:
        if reply is None:
            at_risk = lease.failures > 0
            if lease.renewed(sent, renewal.ttl):
                lease.schedule(self._runtime.random())
                if self._events is not None:
                    self._events.renewed(lease, recovered=at_risk)
                lease.note_contention(renewal)
        elif lease.grant.is_outdated(renewal.token):
            now = self._runtime.now()  # the detachment finds out what became of the lease
            lease.due_at = now + max(SHORTEST_SLEEP, (lease.valid_until - now) / 4)
        else:
            lost = self._lose(lease, why_refused(reply, renewal))
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
                if self._events is not None:
                    self._events.at_risk(lease, error)
        if at_risk:
            first = min(at_risk, key=lambda lease: lease.valid_until)
            log.warning(
                "the lease of %r %s at risk: a renewal failed (%s); it is repeated for another %.1f s",
                first.grant.name,
                f"and {len(at_risk) - 1} more are" if len(at_risk) > 1 else "is",
                quoted(error),
                max(0.0, first.valid_until - now),
            )
