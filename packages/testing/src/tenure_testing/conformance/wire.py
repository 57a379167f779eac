"""A wire between one client and its store that a check can disturb: cut, stalled, deaf, or losing replies.

The wire uses only the contract of a store, so every store can be disturbed in the same ways.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Granted,
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
    WithdrawRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Store, StoreSource
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.outcome import Outcome

T = TypeVar("T")

MOMENT = 0.01
"""How often a stalled renewal checks whether the stall is over, in seconds."""

LONGEST = 30.0
"""How long a renewal stalls at most, in seconds."""


class FaultyWire:
    """The wire of one client. A check sets its fields to disturb the client, and reads the requests and replies."""

    def __init__(self) -> None:
        """Start without a disturbance."""
        self.cut = False
        """Whether renewals fail at once, so that the holder falls silent."""
        self.stalled = False
        """Whether renewals hang. They fail when the stall is over."""
        self.deaf = False
        """Whether notifications are lost, but for revocations and their requests."""
        self.unaware = False
        """Whether the notification that a name was revoked is lost."""
        self.lose: Counter[str] = Counter()
        """How many replies to "acquire", "release" and "adjust" are still to be lost, after the store has acted."""
        self.counts: Counter[str] = Counter()
        """The number of requests to "acquire", and of those that "granted" something."""
        self.requests: list[AcquireRequest] = []
        self.replies: list[Reply] = []
        self._push: Callable[[Notification], None] | None = None

    def tap(self, source: StoreSource) -> StoreSource:
        """Return `source` with this wire in front of it."""
        return StoreSource(source.title, source.capabilities, lambda runtime: _Tapped(self, source, runtime))

    def push(self, notification: Notification) -> None:
        """Deliver a notification to the client as if the store had sent it."""
        if self._push is not None:
            self._push(notification)

    def note(self, replies: Sequence[Reply]) -> None:
        """Record the replies to one request."""
        self.replies += replies
        self.counts["granted"] += any(isinstance(reply, Granted) for reply in replies)

    def attach(self, push: Callable[[Notification], None]) -> None:
        """Record the function that delivers notifications to the client."""
        self._push = push


class _Tapped:
    """A store behind a wire."""

    def __init__(self, wire: FaultyWire, source: StoreSource, runtime: Runtime) -> None:
        self._wire = wire
        self._runtime = runtime
        self._store: Store = source.make(runtime)
        self.capabilities = source.capabilities

    def identity(self) -> str:
        """Return the identity of the store behind the wire."""
        return self._store.identity()

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        def receive(notification: Notification) -> None:
            wire = self._wire
            if notification.kind is NotificationKind.REVOKED:
                lost = wire.unaware
            else:
                lost = wire.deaf and notification.kind is not NotificationKind.REVOCATION_REQUESTED
            if not lost:
                deliver(notification)

        self._wire.attach(lambda notification: _ignore(self._runtime.post(partial(deliver, notification))))
        return await self._store.open(receive, until)

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        self._wire.counts["acquire"] += 1
        self._wire.requests.append(request)
        reply = await self._store.acquire(request, until)
        self._wire.note([reply])
        return self._carry("acquire", reply)

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        self._wire.counts["acquire"] += 1
        self._wire.requests += requests
        replies = await self._store.acquire_many(requests, until)
        self._wire.note(replies)
        return self._carry("acquire", replies)

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        return self._carry("release", await self._store.release(release, until))

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        stalled, give_up_at = self._wire.stalled, self._runtime.now() + LONGEST
        while self._wire.stalled and self._runtime.now() < give_up_at:
            await self._runtime.sleep(MOMENT)
        if self._wire.cut or stalled:
            message = "the conformance suite has cut the wire"
            raise StoreUnavailable(message)
        return await self._store.renew(renewals, until)

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        return self._carry("adjust", await self._store.adjust(adjust, until))

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        return await self._store.withdraw(withdraw, until)

    async def inspect(self, name: str, until: float) -> NameView:
        return await self._store.inspect(name, until)

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        return await self._store.request_revocation(name, until)

    async def resize(self, name: str, before: int, after: int, until: float) -> int:
        return await self._store.resize(name, before, after, until)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        return await self._store.revoke(name, until, token)

    async def close(self) -> None:
        await self._store.close()

    def abandon(self) -> None:
        self._store.abandon()

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        return await self._store.names(prefix, until, rest)

    def _carry(self, operation: str, reply: T) -> T:
        if self._wire.lose[operation] > 0:
            self._wire.lose[operation] -= 1
            message = "the conformance suite has lost the reply"
            raise OutcomeUnknown(message)
        return reply


def _ignore(_posted: bool) -> None:  # noqa: FBT001 - takes what `post` returns
    """Ignore whether the notification was posted: a closed client receives none."""
