"""The subscriptions of a client at one server: a state machine without socket, thread and clock.

The set of channels outlives connections. A server replies to requests in their order, so a reply belongs to the first
unanswered request; so does an error, which does not tell its request.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from tenure.errors import StoreError, StoreUnavailable
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.link import ReplyError


class SubscriptionWaiter:
    """A caller that waits for a subscription."""

    __slots__ = ("_wake", "error")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.error: StoreError | ReplyError | None = None

    def tell(self, error: StoreError | ReplyError | None) -> None:
        """End the wait, with an error or without.

        Each waiter gets an error of its own, because raising adds a traceback.
        """
        if error is not None:
            self.error = type(error)(str(error))
            self.error.__cause__ = error.__cause__
        self._wake()


@dataclass(slots=True, eq=False)
class Subscription:
    """A channel that the client listens to."""

    channel: bytes
    requested: bool = False
    """Whether the request was sent on the current connection."""
    confirmed: bool = False
    """Whether the server confirmed it on the current connection."""
    ever_confirmed: bool = False
    """Whether it was confirmed on any connection; then it stays until it is dropped."""
    waiters: list[SubscriptionWaiter] = field(default_factory=list[SubscriptionWaiter])

    def tell(self, error: StoreError | ReplyError | None = None) -> None:
        """End the wait of all waiters."""
        for waiter in self.waiters:
            waiter.tell(error)
        self.waiters.clear()


@dataclass(slots=True)
class SubscriptionRequest:
    """A request that the server has not answered yet."""

    verb: bytes
    subscription: Subscription | None = None

    def pack(self) -> bytes:
        """Encode the request."""
        return wire.command(self.verb, self.subscription.channel) if self.subscription else wire.command(self.verb)


class Subscriptions:
    """The channels of one server that one client listens to. Not safe for several threads."""

    def __init__(self, *, sharded: bool) -> None:
        """Begin without channels. `sharded` channels belong to a slot of a Cluster."""
        kind = b"S" if sharded else b""
        self._subscribe = kind + b"SUBSCRIBE"
        self._unsubscribe = kind + b"UNSUBSCRIBE"
        self._message = kind.lower() + b"message"
        self._channels: dict[bytes, Subscription] = {}
        self._dropped: list[Subscription] = []
        self._expected: deque[SubscriptionRequest] = deque()
        self._missed = False

    def __bool__(self) -> bool:
        """Return whether there are channels."""
        return bool(self._channels)

    # What the client listens to.

    def demand(self, channel: bytes, waiter: SubscriptionWaiter) -> bool:
        """Add a channel; return False if it is confirmed already, so that `waiter` is not told."""
        subscription = self._channels.setdefault(channel, Subscription(channel))
        if not subscription.confirmed:
            subscription.waiters.append(waiter)
        return not subscription.confirmed

    def stop_waiting(self, channel: bytes, waiter: SubscriptionWaiter) -> None:
        """Remove a waiter, and its channel if that was never confirmed and has no other waiter."""
        subscription = self._channels.get(channel)
        if subscription is not None and waiter in subscription.waiters:
            subscription.waiters.remove(waiter)
            if not subscription.waiters and not subscription.ever_confirmed:
                self.drop(channel)

    def drop(self, channel: bytes) -> None:
        """Remove a channel."""
        subscription = self._channels.pop(channel, None)
        if subscription is None:
            return
        subscription.tell(StoreUnavailable("the subscription was dropped while it was under way; try again"))
        if subscription.requested:
            self._dropped.append(subscription)

    # The requests to the server.

    def requests(self) -> bytes:
        """Encode the requests that tell the server of added and removed channels."""
        fresh = [each for each in self._channels.values() if not each.requested]
        requests = [SubscriptionRequest(self._unsubscribe, each) for each in self._dropped]
        requests += [SubscriptionRequest(self._subscribe, each) for each in fresh]
        self._dropped.clear()
        for each in fresh:
            each.requested = True
        return self._expect(*requests)

    def probe(self) -> bytes:
        """Encode a PING."""
        return self._expect(SubscriptionRequest(b"PING"))

    def _expect(self, *requests: SubscriptionRequest) -> bytes:
        self._expected.extend(requests)
        return b"".join(each.pack() for each in requests)

    # The replies of the server.

    def take(self, reply: Any) -> bytes | None:  # noqa: ANN401 - whatever the server says
        """Process a reply; return the payload of a message. Raises ConnectionRefusedError for an unexpected error."""
        if type(reply) is ReplyError:
            self._refused(reply)
        elif isinstance(reply, list):
            said = cast("list[bytes]", reply)
            if said[0] == self._message:
                return said[2]
            self._answered(b"PING" if said[0] == b"pong" else said[0].upper(), said[1])
        else:
            self._answered(b"PING", b"")
        return None

    def _answered(self, verb: bytes, channel: bytes) -> None:
        request = self._expected[0] if self._expected else SubscriptionRequest(b"")
        if request.verb == verb and (request.subscription is None or request.subscription.channel == channel):
            self._expected.popleft()
            if request.subscription is not None and verb == self._subscribe:
                request.subscription.confirmed = request.subscription.ever_confirmed = True
                request.subscription.tell()
        elif verb == self._unsubscribe and (ended := self._channels.get(channel)):
            self._forget(ended)  # the channel has moved to another node, which the reply to a new request will name

    def _refused(self, error: ReplyError) -> None:
        if not self._expected:
            raise ConnectionRefusedError(str(error))
        request = self._expected.popleft()
        refused = request.subscription
        if refused is not None and request.verb == self._subscribe:
            if self._channels.get(refused.channel) is refused:
                del self._channels[refused.channel]
            refused.tell(error)
            self._missed |= refused.ever_confirmed

    # The state of the subscriptions.

    def is_complete(self) -> bool:
        """Return whether the server has confirmed all channels."""
        return all(each.confirmed for each in self._channels.values())

    def gap_is_over(self) -> bool:
        """Return True once after messages may have been missed, as soon as all channels are confirmed again."""
        over = self._missed and self.is_complete()
        self._missed &= not over
        return over

    def lost(self) -> None:
        """Process the loss of the connection."""
        self._expected.clear()
        self._dropped.clear()
        for each in self._channels.values():
            self._forget(each)

    def refuse(self, error: StoreError) -> None:
        """Tell all waiters that there is no connection. Channels that were confirmed before are kept."""
        for channel, each in list(self._channels.items()):
            each.tell(error)
            if not each.ever_confirmed:
                del self._channels[channel]

    def _forget(self, subscription: Subscription) -> None:
        self._missed |= subscription.confirmed
        subscription.requested = subscription.confirmed = False
