"""The thread that receives a server's messages, on a connection of its own.

Other threads note a subscription, wake this thread, and wait for the server to confirm it. When the connection is lost,
the thread makes another one, subscribes again, and then reports that messages may have been missed.

One thread at a time reads the connection. That is the listener's thread, but while a single thread of the client waits
for its grants again and again, the listener lets that thread read them itself, which saves it from being woken by
another thread each time. See `DirectReading`.
"""

import logging
from collections import deque
from collections.abc import Callable

from tenure.contracts.runtime import ShuttingDown
from tenure.errors import StoreError, StoreUnavailable
from tenure.runtimes.threads import ThreadsRuntime
from tenure.stores.redis.links import wire
from tenure.stores.redis.links.direct_reading import DirectReading
from tenure.stores.redis.links.link import RedisAddress, RedisCallbacks
from tenure.stores.redis.links.sockets import BROKEN, RedisConnection
from tenure.stores.redis.links.subscriptions import Subscriptions, SubscriptionWaiter
from tenure.transport.listener_thread import ListenerThread
from tenure.transport.polling import READABLE, new_poll

log = logging.getLogger("tenure")

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
"""The shortest and the longest pause between attempts to connect, in seconds."""


class RedisListener(ListenerThread):
    """Receives the messages of one server for one client. Its thread runs from the first `listen` to `close`."""

    quiet = 5.0
    """After how many seconds of silence the listener sends a PING, and for how many it waits for the reply."""

    def __init__(
        self,
        runtime: ThreadsRuntime,
        address: RedisAddress,
        callbacks: RedisCallbacks,
        dial: Callable[[Callable[[OSError], None]], RedisConnection],
        *,
        sharded: bool,
    ) -> None:
        """Prepare. `dial` connects, and passes on at each step the error that applies if that step never ends."""
        super().__init__("redis-channel")
        self._runtime = runtime
        self._address = address
        self._callbacks = callbacks
        self._dial = dial
        self._subscriptions = Subscriptions(sharded=sharded)
        self.direct = DirectReading(runtime.now, self._take_for_waiters, self._wakeup_pipe)
        """Waits for an event of a thread, and reads meanwhile."""
        self._left: deque[bytes] = deque()
        """The messages that a thread which reads has left to the listener's thread."""
        # Only the thread uses what follows.
        self._connection: RedisConnection | None = None
        self._lacking: OSError | None = None
        """While there is no connection: the error that applies if the step under way never ends."""
        self._failures = 0
        self._heard = 0.0
        self._probed = False

    async def listen(self, channel: str, until: float) -> None:
        """Subscribe, and return once the server has confirmed it."""
        done = self._runtime.event()
        waiter = SubscriptionWaiter(done.set)
        if not self._demand(channel.encode(), waiter):
            return
        told = False
        try:
            told = await done.wait(until)
        finally:
            if not told:
                self._change(lambda: self._subscriptions.stop_waiting(channel.encode(), waiter))
        if not told:
            raise self._too_late()
        if waiter.error is not None:
            raise waiter.error

    def _too_late(self) -> StoreError:
        if (lacking := self._lacking) is not None:
            return wire.cannot_connect(self._address, lacking)
        return StoreUnavailable(
            f"the Redis server at {self._address} did not confirm a subscription in time; "
            "ask again, and check the server and the network"
        )

    def ignore(self, channel: str) -> None:
        """End a subscription."""
        self._change(lambda: self._subscriptions.drop(channel.encode()))

    def abandon(self) -> None:
        """In a forked child: close its copies. The thread is not here."""
        super().abandon()
        self.direct.close()
        if self._connection is not None:
            self._connection.abandon()

    def _close_pipes(self) -> None:
        super()._close_pipes()
        self.direct.close()

    def _demand(self, channel: bytes, waiter: SubscriptionWaiter) -> bool:
        with self._mutex:
            if self._stopped:
                raise StoreUnavailable(f"the link to the Redis server at {self._address} is closed; make a new client")
            if not self._subscriptions.demand(channel, waiter):
                return False
            try:
                self._start()
            except ShuttingDown:  # nobody listens: the waiters repeat their requests
                return False
        self._wakeup_pipe.wake()
        return True

    def _change(self, change: Callable[[], None]) -> None:
        with self._mutex:
            change()
        self._wakeup_pipe.wake()

    # What the thread does

    def _work(self) -> None:
        while not self._stopped:
            try:
                self._attend()
            except StoreError as error:
                with self._mutex:
                    self._subscriptions.refuse(error)
                self._start_over(error)
            except BROKEN as error:
                self._start_over(error)
            except Exception as error:
                log.exception("the channel at %s met an error that it should have handled", self._address)
                self._start_over(error)
        self._disconnect()

    def _attend(self) -> None:
        """Connect once there is a subscription, and listen until stopped. Raises StoreError or BROKEN."""
        while not self._subscriptions:
            if self._stopped:
                return
            self._pause(None)
        self._connection = connection = self._dial(self._lack)
        self._lacking = None
        connection.never_wait()
        self._notify()
        self.direct.begin(connection)
        try:
            self._hear(connection)
        finally:
            self.direct.end()

    def _lack(self, error: OSError) -> None:
        self._lacking = error

    def _hear(self, connection: RedisConnection) -> None:
        ready = new_poll()
        ready.register(connection, READABLE)
        ready.register(self._wakeup_pipe, READABLE)
        pipe = self._wakeup_pipe.fileno()
        news = True
        while not self._stopped:
            if news:
                self._request(connection)
            events = ready.poll(self._patience())
            news = not events
            for descriptor, _ in events:
                if descriptor == pipe:
                    self._wakeup_pipe.drain()
                    news = True
                else:
                    news |= self._take(connection)
                    if self.direct.may_begin():
                        self._lend()
                        news = True

    def _lend(self) -> None:
        """Let other threads read; then push the messages that they have left."""
        try:
            self.direct.lend(lambda: self._stopped)
        finally:
            while self._left:
                self._push(self._left.popleft())
            self._catch_up()

    def _request(self, connection: RedisConnection) -> None:
        """Send what has changed in the subscriptions, and a PING if the server has been silent."""
        with self._mutex:
            packed = self._subscriptions.requests()
            if self._is_suspect():
                packed += self._subscriptions.probe()
        if packed:
            connection.post(packed, self.quiet)

    def _is_suspect(self) -> bool:
        """Tell whether it is time for a PING. Raises TimeoutError if the last one had no answer."""
        if self._runtime.now() - self._heard < self.quiet:
            return False
        if self._probed:
            raise TimeoutError("the server fell silent")
        self._notify()
        self._probed = True
        return True

    def _notify(self) -> None:
        """Note that the server was heard now."""
        self._heard = self._runtime.now()
        self._probed = False

    def _patience(self) -> float:
        """Return after how many milliseconds the silence calls for a PING."""
        return max(0.0, self._heard + self.quiet - self._runtime.now()) * 1000 + 1

    def _take(self, connection: RedisConnection) -> bool:
        """Take what came, and return whether any of it was more than a message."""
        answered = self._receive(connection, self._push)
        if answered:
            self._catch_up()
        return answered

    def _take_for_waiters(self, connection: RedisConnection) -> bool:
        """Push the messages for waiters, and leave all others; return whether the listener's thread has to go on.

        The thread of a waiter calls this. A message for a holder may call a callback of the user, which may lock what
        this thread has locked; or it may change a lease, which an interrupt of this thread would leave half done.
        Errors are raised: a signal handler may have raised them.
        """
        return self._receive(connection, self._push_to_waiter) or bool(self._left)

    def _receive(self, connection: RedisConnection, push: Callable[[bytes], None]) -> bool:
        """Push the messages that came, and return whether anything else came."""
        self._notify()
        answered = False
        for reply in connection.heard():
            with self._mutex:
                payload = self._subscriptions.take(reply)
            if payload is None:
                answered = True
            else:
                push(payload)
        return answered

    def _push_to_waiter(self, payload: bytes) -> None:
        if self._callbacks.is_for_waiter(payload):
            self._callbacks.on_push(payload)
        else:
            self._left.append(payload)

    def _push(self, payload: bytes) -> None:
        try:
            self._callbacks.on_push(payload)
        except Exception:
            log.exception("a message could not be taken; whoever waits for it asks again by itself")

    def _catch_up(self) -> None:
        """Report a gap in the messages, once the server has confirmed all subscriptions."""
        with self._mutex:
            if self._subscriptions.is_complete():
                self._failures = 0
            over = self._subscriptions.gap_is_over()
        if not over:
            return
        try:
            self._callbacks.on_gap()
        except Exception:
            log.exception("a gap could not be told; whoever waits asks again by itself")

    def _start_over(self, error: Exception) -> None:
        """Close the connection, and pause before the next one: longer each time, up to LONGEST_PAUSE."""
        log.log(
            logging.WARNING if self._subscriptions and not self._failures else logging.DEBUG,
            "the channel at %s has no connection (%s); until it has one again, waiters ask by themselves",
            self._address,
            error,
        )
        self._disconnect()
        longest = min(FIRST_PAUSE * 2**self._failures, LONGEST_PAUSE)
        self._failures = min(self._failures + 1, 16)
        self._pause(longest * (1 + self._runtime.random()) / 2)

    def _pause(self, seconds: float | None) -> None:
        """Wait until woken, for so many seconds at most."""
        ready = new_poll()
        ready.register(self._wakeup_pipe, READABLE)
        ready.poll(None if seconds is None else seconds * 1000)
        self._wakeup_pipe.drain()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        with self._mutex:
            self._subscriptions.lost()
