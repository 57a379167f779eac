"""Watches of keys or ranges from a revision on, all on one stream.

A stream is a request whose body continues while the reply arrives: each object in the body begins or ends a watch. Go's
HTTP server would read the whole body before it replies, unless the request asks to close the connection afterwards; so
the stream asks for that.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import cast

from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.runtimes.single import SingleFlight
from tenure.stores.etcd import requests
from tenure.stores.etcd.gateway import Gateway
from tenure.stores.etcd.http import JsonObject
from tenure.stores.etcd.keys import number, packed_json
from tenure.stores.etcd.link import EtcdCallbacks, Stream

DEAF = 1.0
"""For how many seconds a server may leave a watch request unanswered before the stream is given up."""


class EtcdWatch:
    """One watch from its beginning to its end. It reports its end once, unless it was closed."""

    def __init__(self, runtime: Runtime, on_event: Callable[[JsonObject], None], on_end: Callable[[], None]) -> None:
        self.over = False
        self.refusal = ""
        """The reason for which the server refused or lost the watch."""
        self._on_event = on_event
        self._on_end = on_end
        self._mutex = runtime.mutex()
        self._answered = runtime.event()
        self._begun = False
        self._leave: Callable[[], None] | None = None

    async def open(self, stream: "WatchStream", span: tuple[str, str], revision: int, until: float) -> None:
        """Watch a key, or a range from that key on. Raises StoreError; then the watch is over and reports nothing."""
        try:
            self._leave = stream.begin(self, span, revision)
            if not await self._answered.wait(until):
                stream.lose_if_deaf()
            self._raise_refusal()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the watch; it reports nothing any more."""
        with self._mutex:
            self.over = True
        if self._leave is not None:
            self._leave()

    def is_denied(self) -> bool:
        """Return whether the server refused the watch to this user."""
        return "permission denied" in self.refusal or "auth" in self.refusal

    def hear(self, result: JsonObject) -> None:
        """Process a message of the server about this watch."""
        if result.get("created"):
            with self._mutex:
                self._begun = not self.over  # a watch that was lost just now makes `open` raise
            self._answered.set()
        for event in result.get("events", []):
            if not self.over:
                self._on_event(event)

    def lose(self, why: str) -> None:
        """Mark the watch as lost, and report it if it had begun."""
        with self._mutex:
            tells, self.over = self._begun and not self.over, True
        if tells:
            self._on_end()
        self.refusal = why
        self._answered.set()

    def _raise_refusal(self) -> None:
        """Raise the reason for which the watch did not begin. A watch that began and ended has reported its end."""
        if self._begun:
            return
        if self.is_denied():
            raise StoreError(
                "etcd denies this user a watch; grant its role READWRITE on the whole prefix of the URL, or check the "
                "user and the password"
            )
        raise OutcomeUnknown(
            f"etcd did not begin a watch ({self.refusal or 'timed out'}); try again, and if this happens always, check "
            "that no proxy between this client and the server withholds a request until it is complete"
        )


class WatchStream:
    """A stream, and the watches on it."""

    def __init__(self, runtime: Runtime) -> None:
        self.full = False
        """Whether no other watch may begin on this stream."""
        self._now = runtime.now
        self._mutex = runtime.mutex()
        self._stream: Stream | None = None
        self._watches: dict[int, EtcdWatch] = {}
        self._unconfirmed: deque[tuple[int, float]] = deque()
        """The watches whose beginning was not confirmed, with the instant of the request.

        Replies come in that order.
        """
        self._last = 0

    async def open(self, gateway: Gateway, until: float) -> None:
        """Begin the stream. Raises StoreError."""
        self._stream = await gateway.stream("watch", EtcdCallbacks(self._hear, self._end), until)

    def begin(self, watch: EtcdWatch, span: tuple[str, str], revision: int) -> Callable[[], None]:
        """Begin a watch, which receives its events; return the function that ends it."""
        with self._mutex:
            self._last += 1
            place = self._last
            if not self.full:
                self._watches[place] = watch
                self._unconfirmed.append((place, self._now()))
                self._say(requests.watch(place, *span, revision))
        if place not in self._watches:
            watch.lose("the connection was lost")
        return lambda: self._leave(place)

    def lose_if_deaf(self) -> None:
        """Close the stream if the server left a request unanswered for too long, even if each caller waited briefly."""
        with self._mutex:
            deaf = bool(self._unconfirmed) and self._now() - self._unconfirmed[0][1] >= DEAF
        if deaf:
            self.lose("timed out")

    def lose(self, why: str) -> None:
        """Close the stream, and report the loss to all its watches."""
        with self._mutex:
            self.full, lost = True, list(self._watches.values())
            self._watches.clear()
        if self._stream is not None:
            self._stream.close()
        for watch in lost:
            watch.lose(why)

    def _leave(self, place: int) -> None:
        with self._mutex:
            if self._watches.pop(place, None) is not None:
                self._say(requests.end_watch(place))
        self._close_if_unused()

    def _say(self, body: JsonObject) -> None:
        if self._stream is not None:
            self._stream.say(packed_json(body).encode())

    def _close_if_unused(self) -> None:
        if self.full and not self._watches and self._stream is not None:
            self._stream.close()

    def _end(self) -> None:
        self.lose("the connection was lost")

    def _hear(self, said: JsonObject) -> None:
        result = cast("JsonObject", said.get("result", {}))
        if not result:
            self.lose(str(said.get("error") or "it was cancelled"))
            return
        begins = bool(result.get("created"))
        with self._mutex:
            place = self._unconfirmed.popleft()[0] if begins and self._unconfirmed else number(result, "watch_id")
        if result.get("canceled"):
            self._refused(place, result, begins=begins)
        elif (watch := self._watches.get(place)) is not None:
            watch.hear(result)

    def _refused(self, place: int, result: JsonObject, *, begins: bool) -> None:
        """End a refused watch. If its beginning was refused, servers may read nothing more on this stream."""
        with self._mutex:
            watch = self._watches.pop(place, None)
            self.full = self.full or begins
        if watch is not None:
            watch.lose(str(result.get("cancel_reason") or "it was cancelled"))
        self._close_if_unused()


class EtcdWatches:
    """All watches of a client, on one stream, or on a new one once that is full."""

    def __init__(self, runtime: Runtime, gateway: Gateway) -> None:
        self._runtime = runtime
        self.gateway = gateway
        self._stream: WatchStream | None = None
        self._opening = SingleFlight(runtime)

    async def begin(
        self, make: Callable[[], EtcdWatch], span: tuple[str, str], revision: int, until: float
    ) -> EtcdWatch:
        """Begin a watch; try once more if the server denies it to a user, because the token may have expired."""
        first = make()
        try:
            await first.open(await self._open(until), span, revision, until)
            return first
        except StoreError:
            if not (first.is_denied() and self.gateway.forget_token()):
                raise
        second = make()
        await second.open(await self._open(until), span, revision, until)
        return second

    async def _open(self, until: float) -> WatchStream:
        """Return a stream that accepts another watch, and begin one if there is none.

        One caller does, the others wait.
        """
        while (stream := self._stream) is None or stream.full:
            if not await self._opening.run(self._lacks_stream, partial(self._open_stream, until), until):
                raise StoreUnavailable("beginning a stream of watches at etcd timed out: try again")
        return stream

    def _lacks_stream(self) -> bool:
        return self._stream is None or self._stream.full

    async def _open_stream(self, until: float) -> None:
        stream = WatchStream(self._runtime)
        await stream.open(self.gateway, until)
        self._stream = stream
