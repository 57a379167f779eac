"""A client's store as the checks follow it: what is asked and heard is traced, and told to the checker."""

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.contracts.messages import (
    Adjust,
    Ask,
    Busy,
    Gone,
    HolderView,
    Leave,
    Left,
    Mismatch,
    NameView,
    Notice,
    NoticeKind,
    Page,
    Release,
    Renewal,
    RenewReply,
    Reply,
)
from holdfast.contracts.store import Store
from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.outcome import Outcome
from simulation.checker import Checker
from simulation.network import Link


class Vanishing(Store, Protocol):
    """A simulated store: its client may die."""

    def vanish(self) -> None:
        """Have the node find that nobody listens."""
        ...


class FollowedStore:
    """What one client asks of its store, and hears."""

    def __init__(self, store: Vanishing, link: Link, checker: Checker) -> None:
        """Pass everything on to `store`."""
        self.capabilities = store.capabilities
        self.inbox = ""
        """Where the node pushes to; empty until it is opened."""
        self.unsure: set[str] = set()
        """Requests that the store may know of."""
        self.released: set[str] = set()
        """Requests that were granted, and released."""
        self._unanswered: set[str] = set()
        """Requests of which an ask had no answer, so that it may still arrive."""
        self._store = store
        self._link = link
        self._checker = checker
        self._deliver: Callable[[Notice], None] = lambda notice: None  # noqa: ARG005

    def identity(self) -> str:
        """Pass on."""
        return self._store.identity()

    async def open(self, deliver: Callable[[Notice], None], until: float) -> str:
        """Open the store, and listen in."""
        self._deliver = deliver
        self.inbox = await self._store.open(self._hear, until)
        return self.inbox

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    def abandon(self) -> None:
        """Do nothing: simulated processes do not fork."""

    def vanish(self) -> None:
        """Have the node find that nobody listens."""
        self._store.vanish()

    async def acquire(self, ask: Ask, until: float) -> Reply:
        """Ask, and note on the asking task whether the store may know of it."""
        task = self._link.world.running
        if task is not None and ask.request not in task.note.split():
            task.note = ask.request
        self.unsure.add(ask.request)
        self._say(f"{ask.request} asks for {ask.name}")
        try:
            reply = await self._store.acquire(ask, until)
        except OutcomeUnknown:
            self._unanswered.add(ask.request)
            raise
        self._say(f"{ask.request} hears {reply}")
        if isinstance(reply, Busy | Mismatch | Gone):
            self.unsure.discard(ask.request)
        return reply

    async def acquire_many(self, asks: Sequence[Ask], until: float) -> list[Reply]:
        """Ask for several names in one step, and note of which the store may know."""
        task = self._link.world.running
        requests = [ask.request for ask in asks]
        if task is not None:
            task.note = " ".join(dict.fromkeys([*task.note.split(), *requests]))
        known = self.unsure.intersection(requests)
        self.unsure.update(requests)
        self._say(f"{', '.join(requests)} ask for {', '.join(ask.name for ask in asks)} together")
        try:
            replies = await self._store.acquire_many(asks, until)
        except OutcomeUnknown:
            self._unanswered.update(requests)
            raise
        except StoreUnavailable:  # nothing was done
            self.unsure.difference_update(set(requests) - known)
            raise
        for request, reply in zip(requests, replies, strict=False):
            self._say(f"{request} hears {reply}")
            if isinstance(reply, Busy | Mismatch | Gone):
                self.unsure.discard(request)
        self.unsure.difference_update(set(requests[len(replies) :]) - self._unanswered)
        return replies

    async def release(self, release: Release, until: float) -> Outcome:
        """Release."""
        self._say(f"{release.request} releases {release.name}")
        self.released.add(release.request)
        self._checker.store.letting_go(release.request)
        sent = self._clock()
        outcome = await self._store.release(release, until)
        self._say(f"{release.request} hears {outcome}")
        if release.request in self._unanswered:
            self._checker.store.gone(release.request, sent)
        return outcome

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewReply]:
        """Renew, and note who is refused."""
        self._say(f"renews {', '.join(renewal.request for renewal in renewals)}")
        for renewal in renewals:
            self._checker.clients.renewing(renewal.request)
        replies = await self._store.renew(renewals, until)
        self._say(f"hears of its renewals: {', '.join(str(reply or 'renewed') for reply in replies)}")
        for renewal, reply in zip(renewals, replies, strict=True):
            self._checker.clients.heard(renewal.request, refused=reply is not None)
        return replies

    async def adjust(self, adjust: Adjust, until: float) -> RenewReply:
        """Change a holding."""
        self._say(f"{adjust.request} makes do with {adjust.weight} of {adjust.name}")
        reply = await self._store.adjust(adjust, until)
        self._say(f"{adjust.request} hears {reply or 'adjusted'}")
        return reply

    async def leave(self, leave: Leave, until: float) -> Left:
        """Leave, and note when it is acknowledged."""
        self._checker.leaving(leave.request)
        self._checker.store.letting_go(leave.request)
        self._say(f"{leave.request} leaves {leave.name}")
        sent = self._clock()
        left = await self._store.leave(leave, until)
        self._say(f"{leave.request} has left")
        self._checker.store.gone(leave.request, sent)
        return left

    async def inspect(self, name: str, until: float) -> NameView:
        """Show one name."""
        return await self._store.inspect(name, until)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """List the names in use."""
        return await self._store.names(prefix, until, rest)

    async def ask_back(self, name: str, until: float) -> list[HolderView]:
        """Ask for a name back."""
        return await self._store.ask_back(name, until)

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        """Change the capacity of a name."""
        return await self._store.resize(name, before, after, until)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Take a name by force."""
        return await self._store.revoke(name, until, token)

    def _clock(self) -> int:
        """Return what the store's clock shows."""
        return self._checker.node.clock() if self._checker.node is not None else 0

    def _hear(self, notice: Notice) -> None:
        if self._link.when_granted is not None and notice.kind is NoticeKind.GRANTED:
            self._link.when_granted()
            return
        what = f"granted, token {notice.token}" if notice.token else f"{notice.kind}, in {notice.after / 1e6:.3f} s"
        self._say(f"{notice.request or 'everybody'} is told by a push: {what}")
        self._deliver(notice)

    def _say(self, text: str) -> None:
        self._checker.trace(self._link.process.name, text)
