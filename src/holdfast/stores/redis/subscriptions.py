"""What is wanted of a server's channels, what it was asked, and what it says: no socket, no thread, no clock.

What is wanted outlives connections. A server answers requests in their order, so what was asked first is what an
answer is about, an error too, which does not say so itself.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.stores.redis import wire
from holdfast.stores.redis.link import ReplyError


class SubscriptionWaiter:
    """Somebody who waits for a subscription."""

    __slots__ = ("_wake", "error")

    def __init__(self, wake: Callable[[], None]) -> None:
        """Note how to wake it."""
        self._wake = wake
        self.error: StoreError | ReplyError | None = None

    def tell(self, error: StoreError | ReplyError | None) -> None:
        """End the wait: all is well, or an error of its own, as each that is raised has its own traceback."""
        if error is not None:
            self.error = type(error)(str(error))
            self.error.__cause__ = error.__cause__
        self._wake()


@dataclass(slots=True, eq=False)
class Subscription:
    """A channel that somebody wants to hear."""

    channel: bytes
    asked: bool = False
    """The server was asked, on the connection in force."""
    confirmed: bool = False
    """It has confirmed that."""
    settled: bool = False
    """It was confirmed on some connection: it is now wanted until it is given up."""
    waiters: list[SubscriptionWaiter] = field(default_factory=list[SubscriptionWaiter])

    def tell(self, error: StoreError | ReplyError | None = None) -> None:
        """End the wait of all waiters."""
        for waiter in self.waiters:
            waiter.tell(error)
        self.waiters.clear()


@dataclass(slots=True)
class SubscriptionRequest:
    """Something that the server has yet to answer."""

    verb: bytes
    subscription: Subscription | None = None

    def pack(self) -> bytes:
        """Return it as it travels."""
        return wire.command(self.verb, self.subscription.channel) if self.subscription else wire.command(self.verb)


class Subscriptions:
    """All channels of one server that one client wants to hear. Not made for two threads at once."""

    def __init__(self, *, sharded: bool) -> None:
        """Want nothing yet. `sharded` channels belong to a slot of a cluster."""
        kind = b"S" if sharded else b""
        self._subscribe = kind + b"SUBSCRIBE"
        self._unsubscribe = kind + b"UNSUBSCRIBE"
        self._message = kind.lower() + b"message"
        self._demanded: dict[bytes, Subscription] = {}
        self._unwanted: list[Subscription] = []
        self._expected: deque[SubscriptionRequest] = deque()
        self._missed = False

    def __bool__(self) -> bool:
        """Tell whether anything is wanted."""
        return bool(self._demanded)

    # What others want.

    def demand(self, channel: bytes, waiter: SubscriptionWaiter) -> bool:
        """Want a channel; return whether `waiter` will be told about it, or it is heard already."""
        subscription = self._demanded.setdefault(channel, Subscription(channel))
        if not subscription.confirmed:
            subscription.waiters.append(waiter)
        return not subscription.confirmed

    def stop_waiting(self, channel: bytes, waiter: SubscriptionWaiter) -> None:
        """Leave nothing of a waiter: a channel that nobody else ever wanted is given up."""
        subscription = self._demanded.get(channel)
        if subscription is not None and waiter in subscription.waiters:
            subscription.waiters.remove(waiter)
            if not subscription.waiters and not subscription.settled:
                self.drop(channel)

    def drop(self, channel: bytes) -> None:
        """Want a channel no longer."""
        subscription = self._demanded.pop(channel, None)
        if subscription is None:
            return
        subscription.tell(StoreUnavailable("the subscription was given up meanwhile; ask again"))
        if subscription.asked:
            self._unwanted.append(subscription)

    # What to ask.

    def requests(self) -> bytes:
        """Return what the server is to be told of what has changed, as it travels."""
        fresh = [each for each in self._demanded.values() if not each.asked]
        requests = [SubscriptionRequest(self._unsubscribe, each) for each in self._unwanted]
        requests += [SubscriptionRequest(self._subscribe, each) for each in fresh]
        self._unwanted.clear()
        for each in fresh:
            each.asked = True
        return self._expect(*requests)

    def probe(self) -> bytes:
        """Return a PING, as it travels."""
        return self._expect(SubscriptionRequest(b"PING"))

    def _expect(self, *requests: SubscriptionRequest) -> bytes:
        self._expected.extend(requests)
        return b"".join(each.pack() for each in requests)

    # What the server says.

    def take(self, reply: Any) -> bytes | None:  # noqa: ANN401 - whatever the server says
        """Take one reply; return the payload if it is a message. Raises ConnectionRefusedError at an error unasked."""
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
                request.subscription.confirmed = request.subscription.settled = True
                request.subscription.tell()
        elif verb == self._unsubscribe and (ended := self._demanded.get(channel)):
            self._forget(ended)  # the channel has moved to another node, which the server says when asked again

    def _refused(self, error: ReplyError) -> None:
        if not self._expected:
            raise ConnectionRefusedError(str(error))
        request = self._expected.popleft()
        refused = request.subscription
        if refused is not None and request.verb == self._subscribe:
            if self._demanded.get(refused.channel) is refused:
                del self._demanded[refused.channel]
            refused.tell(error)
            self._missed |= refused.settled

    # What becomes of it.

    def is_complete(self) -> bool:
        """Tell whether the server has answered for all that is wanted."""
        return all(each.confirmed for each in self._demanded.values())

    def gap_is_over(self) -> bool:
        """Tell, once, that messages may have been missed, and that all is heard again."""
        over = self._missed and self.is_complete()
        self._missed &= not over
        return over

    def lost(self) -> None:
        """Note that the connection is gone."""
        self._expected.clear()
        self._unwanted.clear()
        for each in self._demanded.values():
            self._forget(each)

    def refuse(self, error: StoreError) -> None:
        """Tell all who wait that there is no connection. What was heard before stays wanted."""
        for channel, each in list(self._demanded.items()):
            each.tell(error)
            if not each.settled:
                del self._demanded[channel]

    def _forget(self, subscription: Subscription) -> None:
        self._missed |= subscription.confirmed
        subscription.asked = subscription.confirmed = False
