"""A client's store under observation: every request, reply and notification is traced and reported to the checker."""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from simulation.checker import Checker
from simulation.invariants import Invariant
from simulation.network import Link
from tenure.contracts.cells import Cell, CellStore
from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Busy,
    CapacityMismatch,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    NotificationKind,
    Page,
    ReleaseRequest,
    RenewReplies,
    RenewReply,
    RenewRequest,
    Reply,
    Withdrawn,
    WithdrawRequest,
)
from tenure.contracts.store import SendsReleases, Store
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.outcome import Outcome


class Vanishing(Store, Protocol):
    """A simulated store whose client may die."""

    def vanish(self) -> None:
        """Close the channel at the node, as the death of the client does."""
        ...


class FollowedStore:
    """The store of one client, which traces and reports its operations."""

    def __init__(self, store: Vanishing, link: Link, checker: Checker) -> None:
        """Forward all operations to `store`."""
        self.capabilities = store.capabilities
        self.channel = ""
        """The notification channel; empty until the store is opened."""
        self.unsure: set[str] = set()
        """Requests that the store may know."""
        self.released: set[str] = set()
        """Requests that were granted and released."""
        self._unanswered: set[str] = set()
        """Requests without a reply, which may still arrive at the store."""
        self._store = store
        self._link = link
        self._checker = checker
        self._deliver: Callable[[Notification], None] = lambda notification: None  # noqa: ARG005

    def identity(self) -> str:
        """Return the identity of the store."""
        return self._store.identity()

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Open the store, and observe its notifications."""
        self._deliver = deliver
        self.channel = await self._store.open(self._hear, until)
        return self.channel

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    def abandon(self) -> None:
        """Do nothing: simulated processes do not fork."""

    def vanish(self) -> None:
        """Close the channel at the node, as the death of the client does."""
        self._store.vanish()

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Send an acquire request, and record on the running task that the store may know it."""
        task = self._link.world.running
        if task is not None and request.request_id not in task.note.split():
            task.note = request.request_id
        self.unsure.add(request.request_id)
        self._checker.store.sent(request.request_id, self._clock() + request.waiter_ttl)
        if request.fair_after:
            self._checker.store.may_be_passed(request.request_id, request.fair_after)
        self._say(f"{request.request_id} requests {request.name}")
        try:
            reply = await self._store.acquire(request, until)
        except OutcomeUnknown:
            self._unanswered.add(request.request_id)
            raise
        self._say(f"{request.request_id} receives {reply}")
        if isinstance(reply, Busy | CapacityMismatch | Withdrawn):
            self.unsure.discard(request.request_id)
        return reply

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Send requests for several names in one step, and record which the store may know."""
        task = self._link.world.running
        request_ids = [request.request_id for request in requests]
        if task is not None:
            task.note = " ".join(dict.fromkeys([*task.note.split(), *request_ids]))
        known = self.unsure.intersection(request_ids)
        self.unsure.update(request_ids)
        self._say(f"{', '.join(request_ids)} request {', '.join(request.name for request in requests)} in one step")
        try:
            replies = await self._store.acquire_many(requests, until)
        except OutcomeUnknown:
            self._unanswered.update(request_ids)
            raise
        except StoreUnavailable:  # nothing was done
            self.unsure.difference_update(set(request_ids) - known)
            raise
        for request_id, reply in zip(request_ids, replies, strict=False):
            self._say(f"{request_id} receives {reply}")
            if isinstance(reply, Busy | CapacityMismatch | Withdrawn):
                self.unsure.discard(request_id)
        self.unsure.difference_update(set(request_ids[len(replies) :]) - self._unanswered)
        return replies

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Release a lease."""
        self._say(f"{release.request_id} releases {release.name}")
        self.released.add(release.request_id)
        self._checker.store.letting_go(release.request_id)
        sent = self._clock()
        outcome = await self._store.release(release, until)
        self._say(f"{release.request_id} receives {outcome}")
        if outcome is Outcome.RELEASED:
            self._checker.released(release.name, release.request_id)
        if release.request_id in self._unanswered:
            self._checker.store.gone(release.request_id, sent)
        return outcome

    def send_release(
        self, request: AcquireRequest, release: ReleaseRequest, until: float, told: Callable[[Outcome | None], None]
    ) -> bool:
        """Send a release whose reply comes later, if the store can."""
        if not isinstance(self._store, SendsReleases):
            return False
        sent = self._clock()

        def heard(outcome: Outcome | None) -> None:
            self._say(f"{release.request_id} hears of its release: {outcome}")
            if outcome is Outcome.RELEASED:
                self._checker.released(release.name, release.request_id)
            if outcome is not None and release.request_id in self._unanswered:
                self._checker.store.gone(release.request_id, sent)
            told(outcome)

        if not self._store.send_release(request, release, until, heard):
            return False
        self._say(f"{release.request_id} sends the release of {release.name}, and does not wait")
        self.released.add(release.request_id)
        self._checker.store.letting_go(release.request_id)
        self._link.happened["release sent"] += 1
        return True

    def collect_replies(self) -> None:
        """Take the replies to the releases that were sent."""
        if isinstance(self._store, SendsReleases):
            self._store.collect_replies()

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Renew leases, and record which renewals are refused."""
        self._say(f"renews {', '.join(renewal.request_id for renewal in renewals)}")
        for renewal in renewals:
            self._checker.clients.renewing(renewal.request_id)
        replies = await self._store.renew(renewals, until)
        self._say(f"receives the replies to its renewals: {', '.join(str(reply or 'renewed') for reply in replies)}")
        for renewal, reply in zip(renewals, replies, strict=True):
            if not isinstance(reply, StoreError):
                self._checker.clients.heard(renewal.request_id, renewal.token, refused=reply is not None)
        return replies

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Change a held lease."""
        raised = self._checker.clients.raised
        raised[adjust.request_id] = max(raised.get(adjust.request_id, 0), adjust.raise_to)
        if adjust.successor:
            self._hand_over(adjust)
        elif adjust.raise_to:
            self._say(f"{adjust.request_id} raises its token of {adjust.name} to {adjust.raise_to}")
        else:
            self._say(f"{adjust.request_id} reduces its weight of {adjust.name} to {adjust.weight}")
        reply = await self._store.adjust(adjust, until)
        self._say(f"{adjust.request_id} receives {reply or 'adjusted'}")
        if reply is None and adjust.successor and adjust.successor not in self._checker.store.successors.values():
            self._checker.broken(Invariant.HANDOVER, f"{adjust.request_id} does not go on as {adjust.successor}")
        return reply

    def _hand_over(self, adjust: AdjustRequest) -> None:
        """Record on the running task which request a lease is to have, and check that it is not the task's already."""
        task = self._link.world.running
        self._say(f"{adjust.request_id} of {adjust.name} is to go on as {adjust.successor}, token {adjust.raise_to}")
        self._checker.store.handing_over(adjust.request_id, adjust.successor)
        if task is not None:
            noted = task.note.split()
            if adjust.request_id in noted:
                self._checker.broken(Invariant.HANDOVER, f"{adjust.request_id} is adopted twice by one adoption")
            task.note = " ".join(dict.fromkeys([*noted, adjust.successor]))

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Withdraw a request, and record when the withdrawal is acknowledged."""
        self._checker.withdrawing(withdraw.request_id)
        self._checker.store.letting_go(withdraw.request_id)
        self._say(f"{withdraw.request_id} withdraws from {withdraw.name}")
        sent = self._clock()
        reply = await self._store.withdraw(withdraw, until)
        self._say(f"{withdraw.request_id} is withdrawn")
        self._checker.store.gone(withdraw.request_id, sent)
        return reply

    async def inspect(self, name: str, until: float) -> NameView:
        """Return the view of a name."""
        return await self._store.inspect(name, until)

    async def read_cell(self, name: str, until: float) -> Cell:
        """Read a cell."""
        return await cast("CellStore", self._store).read_cell(name, until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell, and trace that."""
        self._say(f"writes the cell {name}, version {version}")
        cell = await cast("CellStore", self._store).write_cell(name, value, version, keep, until)
        self._say(f"the cell {name} is {'written' if cell.written else 'not written'}")
        return cell

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return the names in use."""
        return await self._store.names(prefix, until, rest)

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Send a revocation request for a name."""
        return await self._store.request_revocation(name, until)

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name."""
        return await self._store.resize(name, before, after, until)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Revoke a name by force."""
        return await self._store.revoke(name, until, token)

    def _clock(self) -> int:
        """Return the time of the store's clock."""
        return self._checker.node.clock() if self._checker.node is not None else 0

    def _hear(self, notification: Notification) -> None:
        if self._link.when_granted is not None and notification.kind is NotificationKind.GRANTED:
            self._link.when_granted()
            self._link.process.end_here()
            return
        what = (
            f"granted, token {notification.token}"
            if notification.token
            else f"{notification.kind}, in {notification.after / 1e6:.3f} s"
        )
        self._say(f"{notification.request_id or 'every request'} is notified: {what}")
        self._deliver(notification)

    def _say(self, text: str) -> None:
        self._checker.trace(self._link.process.name, text)
