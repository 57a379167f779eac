"""The link to an ensemble: kazoo's client, one session at a time, and the requests of the store's client.

kazoo's thread calls back. Its events are posted to the runtime in their order. A request is sent only over an existing
connection, and its caller decides how long to wait for the reply. Replies arrive in the order of the requests, within a
session even over several connections. So a request that follows an unanswered one sees the outcome of that.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tenure.contracts.runtime import Event, Runtime
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.zookeeper import library
from tenure.stores.zookeeper.channel import ZooKeeperChannel
from tenure.stores.zookeeper.errors import (
    LOST,
    SASL_REQUIRED,
    answer_of,
    code_of,
    ended,
    refused_login,
    to_store_error,
)
from tenure.stores.zookeeper.handler import Handler
from tenure.stores.zookeeper.library import KazooClient, Result
from tenure.stores.zookeeper.options import ZooKeeperAccess

log = logging.getLogger("tenure")

CLOSE = "tenure-zookeeper-close"
"""The name of a thread that ends a client."""

CLOSING = 2.0
"""How long the orderly end of a session may take, in seconds."""

NUDGE_AFTER = 0.1
"""After how many seconds a server without a reply gets another request; each next pause is twice as long."""

GRACE = 0.25
"""How long, in seconds, a request waits for a server although all refuse: a server may just be starting."""

CHECK_EVERY = 0.1
"""How often a request that waits for a server checks the attempts to reach one, in seconds."""

LONGEST_SILENCE = 1.0
"""How long a server with unanswered requests may be silent, in seconds, before another server is tried."""

SHORTEST_SILENCE = 0.2
"""How long a server may be silent even if the session's timeout is short, in seconds."""

BREAKING = 1.0
"""How long kazoo's thread may take to end after its connection was broken, in seconds."""


@dataclass(slots=True)
class ZooKeeperCallbacks:
    """The callbacks of a link. All are called where the runtime runs its code."""

    began: Callable[[int, float, float], None]
    """A new session began: its id, its timeout, and the instant at which the connection was opened."""
    resumed: Callable[[float], None]
    """The same session has a connection again, opened at this instant."""
    suspended: Callable[[], None]
    """The connection was lost."""
    ended: Callable[[], None]
    """The session has ended."""
    told: Callable[[str], None]
    """A message arrived."""


@dataclass(slots=True)
class Answers:
    """The replies to requests that were sent together."""

    values: list[Any]
    """The replies in the order of the requests; a `Code` for a negative reply."""
    sent: float
    """The instant at which the requests were sent."""
    session: int
    """The session in which the requests were sent."""
    zxid: int
    """The last change at the server at its first reply."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Requests that are sent together."""

    client: KazooClient
    answers: Answers
    send: Callable[[KazooClient], Sequence[Result]]
    done: Event
    """Set when the last reply has arrived, or none will."""
    tell: Callable[[Callable[[], None]], None]
    """Runs a function where the runtime runs its code."""
    results: Sequence[Result] = ()
    error: Exception | None = None
    """The error of a request that could not be made."""
    lost: bool = False
    """Whether the requests were not sent, because their session had no connection."""

    def put(self) -> None:
        """Pass the requests to kazoo, in its thread."""
        session = self.client.client_id
        if not self.client.connected or session is None or session[0] != self.answers.session:
            self.lose()
            return
        try:
            self.results = self.send(self.client)
        except Exception as error:  # noqa: BLE001 - raised in the caller
            self.error = error
        if self.error is not None or not self.results:
            self.tell(self.done.set)
            return
        self.results[0].rawlink(self._first)
        self.results[-1].rawlink(lambda _: self.tell(self.done.set))

    def _first(self, _: Result) -> None:
        self.answers.zxid = self.client.last_zxid

    def lose(self) -> None:
        """Give the requests up, because there is no connection."""
        self.lost = True
        self.tell(self.done.set)


class ZooKeeperLink:
    """A client of kazoo for a runtime."""

    def __init__(self, runtime: Runtime, access: ZooKeeperAccess, callbacks: ZooKeeperCallbacks) -> None:
        self._runtime = runtime
        self._access = access
        self._callbacks = callbacks
        self._mutex = runtime.mutex()
        self._up = runtime.event()
        self._error: StoreError | None = None
        self._closed = False
        self._silence = min(LONGEST_SILENCE, max(SHORTEST_SILENCE, access.options["timeout"] / 8))
        self._requested_at = float("-inf")
        """The instant since which a reply of the server is due, if the server has sent nothing since."""
        self._timeout = float(access.options["timeout"])
        """The timeout of the session, in seconds."""
        self._connected_at = runtime.now()
        """The last instant at which a session had a connection, as far as this class knows."""
        self._drops = 0
        """How often the connection was lost, as far as this class knows."""
        self._client: KazooClient | None = None
        self._handler: Handler | None = None
        self._dropped: list[tuple[KazooClient, Handler]] = []
        """Clients that are to end, and for which no thread could be started."""
        self.session = 0
        """The id of the session; 0 if there is none, or its channel does not exist yet."""

    # -- requests --------------------------------------------------------------------------------------------

    async def ready(self, until: float) -> KazooClient:
        """Return the client once it has a connection and a session.

        Raises StoreError if that takes longer than `until`, or if all servers were tried meanwhile and refused.
        """
        while True:
            self._replace_outdated()
            client, drops = self._begin(), self._drops
            came = await self._await(self._up, client, until)
            if self._error is not None:
                raise self._error
            if came and client is self._client and self.session:
                if client.connected:
                    return client
                self._lost(drops)  # kazoo would send a request over the next connection, whenever that opens
            if not came or self._runtime.now() >= until:
                raise self._unreached()

    def _unreached(self) -> StoreError:
        handler = self._handler
        if handler is None or handler.attempts.one_was_reached():  # a server accepted the session, then fell silent
            hint = ", and whether they accept SASL logins" if self._access.sasl else ""
            return StoreUnavailable(
                f"beginning a session at {self._access.title} timed out; try again, and check the servers{hint}"
            )
        return handler.attempts.error()

    async def exchange(self, until: float, send: Callable[[KazooClient], Sequence[Result]], *, writes: bool) -> Answers:
        """Send requests together, and return the replies.

        Raises OutcomeUnknown if a reply is missing, or StoreUnavailable if the requests change nothing.
        """
        client, handler = await self.ready(until), self._handler
        answers, drops = Answers([], self._runtime.now(), self.session, 0), self._drops
        batch = _Batch(client, answers, send, self._runtime.event(), self._post)
        if handler is not None:
            handler.post(batch.put)
        if handler is None or (not client.connected and handler.withdraw(batch.put)):
            batch.lose()
        try:
            came = await self._await(batch.done, client, until)
        except StoreError as error:
            if not writes:
                raise
            raise OutcomeUnknown(f"{error}; a request may or may not have been carried out") from None
        if not came:
            self._suspect(answers.sent)
            message = f"{self._access.title} did not answer in time; try again, and check the servers and the network."
            raise OutcomeUnknown(message) if writes else StoreUnavailable(message)
        if batch.error is not None:
            raise batch.error
        if batch.lost:
            self._lost(drops)
            raise StoreUnavailable(f"the connection to {self._access.title} was lost; try again.")
        results = batch.results
        if any(code_of(each.exception) == LOST for each in results if each.exception):
            self._lost(drops)
        answers.values = [self._answer(result, writes=writes) for result in results]
        return answers

    def _lost(self, drops: int) -> None:
        """Let later requests wait for the next connection, unless kazoo reported the loss meanwhile.

        In that case there may be another connection already; a client that took that one for lost would wait for ever.
        """
        with self._mutex:
            if drops == self._drops:
                self._up.clear()

    async def _await(self, event: Event, client: KazooClient, until: float) -> bool:
        """Wait for an event, and send the server another request if the event is late.

        An idle server of an ensemble may leave a request unanswered until the next request wakes it. Raises StoreError
        if all servers were tried meanwhile and refused.
        """
        began, pause = self._runtime.now(), NUDGE_AFTER
        nudge_at = began + pause
        while not await event.wait(min(until, nudge_at, self._runtime.now() + CHECK_EVERY)):
            now = self._runtime.now()
            if now >= until:
                return False
            self._refuse_if_refused(began)
            if now >= nudge_at:
                self._nudge(client)
                pause *= 2
                nudge_at = now + pause
        return True

    def _refuse_if_refused(self, began: float) -> None:
        """Raise StoreError if all servers have refused since `began`."""
        handler = self._handler
        if handler is not None:
            handler.hurry(began)
            refusal = handler.attempts.refusal(began)
            if refusal is not None and self._runtime.now() >= began + GRACE:
                raise refusal

    def _nudge(self, client: KazooClient) -> None:
        def nudge() -> None:
            if client.connected:
                client.exists_async(self._access.root)

        if self._handler is not None:
            self._handler.post(nudge)

    def _suspect(self, sent: float) -> None:
        """Leave a server that has been silent since the first unanswered request.

        kazoo would leave it only after most of the session's timeout. Single requests may time out much sooner.
        """
        handler = self._handler
        if handler is not None:
            if handler.heard_since(self._requested_at):
                self._requested_at = sent
            if self._runtime.now() - self._requested_at >= self._silence:
                handler.break_if_silent(self._requested_at)

    def _answer(self, result: Result, *, writes: bool) -> Any:  # noqa: ANN401 - whatever was asked for
        if not result.ready():  # kazoo refused a later request at once, because the connection was just lost
            raise OutcomeUnknown(f"the connection to {self._access.title} was lost; try again.")
        if result.exception is not None:
            return answer_of(self._access, result.exception, writes=writes)
        return result.value

    def _post(self, action: Callable[[], None]) -> None:
        self._runtime.post(action)

    # -- life ------------------------------------------------------------------------------------------------

    def _begin(self) -> KazooClient:
        """Return the client, and create one if there is none."""
        client: KazooClient | None = None
        try:
            with self._mutex:
                self._refuse_if_closed()
                if self._client is not None:
                    return self._client
                self._end_dropped()
                self._error = None
                self._up.clear()
                self._client = client = self._make()
            client.start_async()
        except BaseException:
            if client is not None and client is self._client:  # an interrupt: no later call would start this client
                self._drop()
            raise
        return client

    def _replace_outdated(self) -> None:
        """Drop a client that no server accepts although its session is over.

        Servers that have lost their data turn a client away, for ever, if it has seen a later change than theirs. A
        client that has seen nothing is not turned away.
        """
        client, handler = self._client, self._handler
        if client is None or handler is None or client.connected or not client.last_zxid:
            return
        if self._runtime.now() < self._connected_at + self._timeout or not handler.attempts.turned_away():
            return
        log.warning(
            "%s has turned this client away for longer than a session lasts, as servers do that lost their data: it "
            "begins anew",
            self._access.title,
        )
        self._drop(client)
        self._post(self._end_session)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"the connection to {self._access.title} is closed; create a new client")

    def _make(self) -> KazooClient:
        access, logger = self._access, library.QuietLogger()
        self._handler = handler = Handler(access, self._runtime)
        client = library.make_client(access.hosts, handler, logger, access.options, private=access.private)
        channel = ZooKeeperChannel(
            client, access.root, lambda message: self._post(partial(self._callbacks.told, message))
        )
        channel.on_ready = partial(self._from_thread, client, handler, channel)
        channel.on_error = lambda error: self._post(partial(self._failed, client, error))
        client.add_listener(partial(self._listen, client, handler, channel, logger))
        return client

    def _listen(
        self, client: KazooClient, handler: Handler, channel: ZooKeeperChannel, logger: library.QuietLogger, state: str
    ) -> None:
        """Process a change of kazoo's state, in kazoo's thread."""
        if state != library.CONNECTED:
            handler.carry_out()  # without a connection this sends nothing
        if state == library.CONNECTED:
            channel.connected()
        elif state == library.SUSPENDED:
            channel.suspended()
            self._post(partial(self._suspended, client))
        else:
            channel.suspended()
            self._post(partial(self._ended, client, client.client_state, logger.raised))

    def _from_thread(self, client: KazooClient, handler: Handler, channel: ZooKeeperChannel) -> None:
        wire = handler.wire
        if wire is not None:
            self._post(partial(self._ready, client, channel.session, wire.session_timeout(), wire.opened_at))

    def _ready(self, client: KazooClient, session: int, timeout: float, opened_at: float) -> None:
        """Record that there is a connection and that the session's channel exists."""
        if client is not self._client or self._closed:
            return
        self._timeout = timeout
        if session == self.session:
            self._callbacks.resumed(opened_at)
        else:
            self._end_session()
            self.session = session
            self._callbacks.began(session, timeout, opened_at)
        self._up.set()

    def _suspended(self, client: KazooClient) -> None:
        if client is self._client and not self._closed:
            log.log(
                logging.WARNING if self.session else logging.DEBUG,
                "the connection to %s is lost; trying to reach a server",
                self._access.title,
            )
            with self._mutex:
                self._drops += 1
                self._up.clear()
            self._connected_at = self._runtime.now()
            self._callbacks.suspended()

    def _ended(self, client: KazooClient, state: str, error: BaseException | None) -> None:
        """Record that the session has ended. kazoo begins another session, or has given up."""
        if client is not self._client or self._closed:
            return
        self._up.clear()
        if state in library.CLOSED:
            login_failed = state == "AUTH_FAILED" or (bool(self._access.sasl) and code_of(error) == SASL_REQUIRED)
            self._let_go(refused_login(self._access.title) if login_failed else ended(self._access, error))
        self._end_session()

    def _end_session(self) -> None:
        had, self.session = self.session, 0
        if had:
            self._callbacks.ended()

    def _failed(self, client: KazooClient, error: Exception) -> None:
        """Drop a client whose session can't be used, and raise the reason in the waiting requests."""
        if client is self._client and not self._closed:
            self._let_go(to_store_error(self._access, error, writes=False))

    def _let_go(self, error: StoreError) -> None:
        """Drop a client that has given up, and raise the reason in the waiting requests.

        The next request creates another.
        """
        self._error = error
        self._drop()

    def _drop(self, client: KazooClient | None = None) -> None:
        """Drop the client, or only this client. The next request creates another."""
        stuck = self._take(client)
        self._up.set()
        if stuck is not None:
            self._dropped.append(stuck)
            self._end_dropped()

    def _end_dropped(self) -> None:
        """End the clients that were dropped, each in a thread. If none starts, the next call tries again."""
        with self._mutex, contextlib.suppress(RuntimeError):
            while self._dropped:
                threading.Thread(target=_stop, args=self._dropped[-1], name=CLOSE, daemon=True).start()
                self._dropped.pop()

    def _take(self, only: KazooClient | None = None) -> tuple[KazooClient, Handler] | None:
        with self._mutex:
            client, handler = self._client, self._handler
            if only not in {None, client}:
                return None
            self._client = self._handler = None
            self._drops += 1  # later events of this connection say nothing of the next one
            return None if client is None or handler is None else (client, handler)

    async def close(self) -> None:
        """End the session and kazoo's thread."""
        with self._mutex:
            self._closed = True
        self._up.set()
        self._end_dropped()
        taken = self._take()
        if taken is None:
            return
        done = self._runtime.event()

        def stop() -> None:
            _stop(*taken)
            self._post(done.set)

        try:
            threading.Thread(target=stop, name=CLOSE, daemon=True).start()
        except RuntimeError:  # the interpreter exits
            _stop(*taken)
            return
        if not await done.wait(self._runtime.now() + CLOSING):
            taken[1].break_off()
            await done.wait(self._runtime.now() + BREAKING)

    def abandon(self) -> None:
        """In a forked child: close what was inherited."""
        self._closed = True
        if self._handler is not None:
            self._handler.abandon()


def _stop(client: KazooClient, handler: Handler) -> None:
    """End a session, and release the client; it ends by itself otherwise, but maybe late."""
    try:
        client.stop()
        client.close()
    except Exception:
        handler.break_off()
        log.debug("a session did not end in an orderly way", exc_info=True)
