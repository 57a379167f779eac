"""The way to an ensemble: one session, made anew when it has ended, and the requests of its client.

kazoo's thread calls back; what it tells is handed to the runtime, in the order in which it came. A request is only sent
over a connection that stands, and no answer is awaited for longer than the asker says. Answers come in the order of the
requests, those of one session even over several connections: so whoever asks after an unanswered request sees what
became of it.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.contracts.runtime import Event, Runtime
from holdfast.errors import OutcomeUnknown, StoreError, StoreUnavailable
from holdfast.stores.zookeeper import library
from holdfast.stores.zookeeper.channel import ZooKeeperChannel
from holdfast.stores.zookeeper.errors import (
    LOST,
    SASL_REQUIRED,
    answer_of,
    code_of,
    ended,
    explain,
    refused_login,
)
from holdfast.stores.zookeeper.handler import Handler
from holdfast.stores.zookeeper.library import KazooClient, Result
from holdfast.stores.zookeeper.options import ZooKeeperAccess

log = logging.getLogger("holdfast")

CLOSING = 2.0
"""How long an orderly end of a session may take, in seconds."""

NUDGE = 0.1
"""After how many seconds a server that does not answer is asked something else; then after twice as many."""

GRACE = 0.25
"""How long, in seconds, an operation waits for a server even if all refuse: one may just be starting."""

LOOK = 0.1
"""How often whoever waits for a server looks what became of the attempts, in seconds."""

SILENCE = 1.0
"""How long a server may be silent that was asked something, in seconds, before another is tried."""

HICCUP = 0.2
"""How long it may be silent even if the session is a short one."""

BREAKING = 1.0
"""How long the thread may take to end once its connection is broken."""


@dataclass(slots=True)
class ZooKeeperHearing:
    """What is done with what is heard. All are called where the runtime runs its code."""

    began: Callable[[int, float, float], None]
    """There is a new session: its number, its timeout, and when we connected."""
    resumed: Callable[[float], None]
    """There is a connection again in the same session, since this instant."""
    suspended: Callable[[], None]
    """There is none."""
    ended: Callable[[], None]
    """The session has ended."""
    told: Callable[[str], None]
    """A message came."""


@dataclass(slots=True)
class Answers:
    """What came of requests that were sent together."""

    values: list[Any]
    """In their order; a `Code` if the answer is no."""
    sent: float
    """When they were sent."""
    session: int
    """The session when they were sent."""
    zxid: int
    """The last change at the server when it answered the first."""


@dataclass(slots=True, eq=False)
class _Question:
    """Requests that are sent together."""

    client: KazooClient
    answers: Answers
    send: Callable[[KazooClient], Sequence[Result]]
    done: Event
    """Set when all came of them that will."""
    tell: Callable[[Callable[[], None]], None]
    """Has something done where the runtime runs its code."""
    results: Sequence[Result] = ()
    error: Exception | None = None
    """What was wrong with the requests."""
    lost: bool = False
    """Whether they were not sent, for want of a connection in their session."""

    def put(self) -> None:
        """Give them to kazoo, in its thread."""
        session = self.client.client_id
        if not self.client.connected or session is None or session[0] != self.answers.session:
            self.lose()
            return
        try:
            self.results = self.send(self.client)
        except Exception as error:  # noqa: BLE001 - raised to who asked
            self.error = error
        if self.error is not None or not self.results:
            self.tell(self.done.set)
            return
        self.results[0].rawlink(self._first)
        self.results[-1].rawlink(lambda _: self.tell(self.done.set))

    def _first(self, _: Result) -> None:
        self.answers.zxid = self.client.last_zxid

    def lose(self) -> None:
        """Give them up: there is no connection."""
        self.lost = True
        self.tell(self.done.set)


class ZooKeeperLink:
    """A client of kazoo for a runtime."""

    def __init__(self, runtime: Runtime, access: ZooKeeperAccess, hearing: ZooKeeperHearing) -> None:
        """Prepare; nothing is connected."""
        self._runtime = runtime
        self._access = access
        self._hearing = hearing
        self._mutex = runtime.mutex()
        self._up = runtime.event()
        self._error: StoreError | None = None
        self._closed = False
        self._silence = min(SILENCE, max(HICCUP, access.options["timeout"] / 8))
        self._requested_at = float("-inf")
        """Since when an answer of the server is due, if nothing was heard of it since."""
        self._drops = 0
        """How many times the connection was lost, as far as it is known here."""
        self._client: KazooClient | None = None
        self._handler: Handler | None = None
        self.session = 0
        """Its number; 0: there is none, or its channel is not made yet."""

    # -- asking ----------------------------------------------------------------------------------------------

    async def ready(self, until: float) -> KazooClient:
        """Return the client once it has a connection and a session.

        Raises StoreError if not in time, or if meanwhile all servers were tried and refused.
        """
        while True:
            client, drops = self._begin(), self._drops
            came = await self._await(self._up, client, until)
            if self._error is not None:
                raise self._error
            if came and client is self._client and self.session:
                if client.connected:
                    return client
                self._lost(drops)  # kazoo would send what is asked now over the next connection, whenever that is
            if not came or self._runtime.now() >= until:
                raise self._unreached()

    def _unreached(self) -> StoreError:
        handler = self._handler
        if handler is None or handler.attempts.one_was_reached():  # and then it fell silent
            hint = ", and whether they take SASL logins" if self._access.sasl else ""
            return StoreUnavailable(
                f"{self._access.title} began no session in time; ask again, and check the servers{hint}"
            )
        return handler.attempts.error()

    async def exchange(self, until: float, send: Callable[[KazooClient], Sequence[Result]], *, writes: bool) -> Answers:
        """Send requests together, and return what comes of them.

        Raises OutcomeUnknown (StoreUnavailable if they change nothing) if an answer is missing.
        """
        client, handler = await self.ready(until), self._handler
        answers, drops = Answers([], self._runtime.now(), self.session, 0), self._drops
        question = _Question(client, answers, send, self._runtime.event(), self._post)
        if handler is not None:
            handler.post(question.put)
        if handler is None or (not client.connected and handler.withdraw(question.put)):
            question.lose()
        try:
            came = await self._await(question.done, client, until)
        except StoreError as error:
            if not writes:
                raise
            raise OutcomeUnknown(f"{error}; a request may or may not have been carried out") from None
        if not came:
            self._suspect(answers.sent)
            message = f"{self._access.title} did not answer in time; ask again, and check the servers and the network."
            raise OutcomeUnknown(message) if writes else StoreUnavailable(message)
        if question.error is not None:
            raise question.error
        if question.lost:
            self._lost(drops)
            raise StoreUnavailable(f"the connection to {self._access.title} was lost; ask again.")
        results = question.results
        if any(code_of(each.exception) == LOST for each in results if each.exception):
            self._lost(drops)
        answers.values = [self._answer(result, writes=writes) for result in results]
        return answers

    def _lost(self, drops: int) -> None:
        """Have whoever asks again wait for the next connection, unless the news of the loss came meanwhile.

        Then there may be another connection already: who took that for lost would wait for ever.
        """
        with self._mutex:
            if drops == self._drops:
                self._up.clear()

    async def _await(self, event: Event, client: KazooClient, until: float) -> bool:
        """Wait for an event, and ask for something else when it is slow to come.

        A server of an ensemble may leave a request lying, with nothing else to do, until the next one wakes it.
        Raises StoreError if meanwhile all servers were tried and refused.
        """
        began, pause = self._runtime.now(), NUDGE
        nudge_at = began + pause
        while not await event.wait(min(until, nudge_at, self._runtime.now() + LOOK)):
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
        """Raise StoreError for who waits since `began`, if there is no server."""
        handler = self._handler
        if handler is not None:
            handler.demand_connection(began)
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
        """Leave a server that has been silent since we first asked: kazoo would only do so after most of the timeout.

        Requests may be given up sooner than that, one after another.
        """
        handler = self._handler
        if handler is not None:
            if handler.heard_since(self._requested_at):
                self._requested_at = sent
            if self._runtime.now() - self._requested_at >= self._silence:
                handler.break_if_silent(self._requested_at)

    def _answer(self, result: Result, *, writes: bool) -> Any:  # noqa: ANN401 - whatever was asked for
        if not result.ready():  # a later one was refused at once, as the connection was just lost
            raise OutcomeUnknown(f"the connection to {self._access.title} was lost; ask again.")
        if result.exception is not None:
            return answer_of(self._access, result.exception, writes=writes)
        return result.value

    def _post(self, action: Callable[[], None]) -> None:
        self._runtime.post(action)

    # -- life ------------------------------------------------------------------------------------------------

    def _begin(self) -> KazooClient:
        """Return the client, made if there is none."""
        client: KazooClient | None = None
        try:
            with self._mutex:
                self._refuse_if_closed()
                if self._client is not None:
                    return self._client
                self._error = None
                self._up.clear()
                self._client = client = self._make()
            client.start_async()
        except BaseException:
            if client is not None and client is self._client:  # interrupted: nobody would start it any more
                self._drop()
            raise
        return client

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"the link to {self._access.title} is closed; make a new client")

    def _make(self) -> KazooClient:
        access, logger = self._access, library.QuietLogger()
        self._handler = handler = Handler(access, self._runtime)
        client = library.make_client(access.hosts, handler, logger, access.options, private=access.private)
        channel = ZooKeeperChannel(
            client, access.root, lambda message: self._post(partial(self._hearing.told, message))
        )
        channel.on_ready = partial(self._from_thread, client, handler, channel)
        channel.on_error = lambda error: self._post(partial(self._failed, client, error))
        client.add_listener(partial(self._listen, client, handler, channel, logger))
        return client

    def _listen(
        self, client: KazooClient, handler: Handler, channel: ZooKeeperChannel, logger: library.QuietLogger, state: str
    ) -> None:
        """Hear of a change, in kazoo's thread."""
        if state != library.CONNECTED:
            handler.carry_out()  # of which nothing is sent without a connection
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
        """Note that there is a connection, and the session's channel."""
        if client is not self._client or self._closed:
            return
        if session == self.session:
            self._hearing.resumed(opened_at)
        else:
            self._end_session()
            self.session = session
            self._hearing.began(session, timeout, opened_at)
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
            self._hearing.suspended()

    def _ended(self, client: KazooClient, state: str, error: BaseException | None) -> None:
        """Note that the session has ended; kazoo begins another, or is at its end."""
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
            self._hearing.ended()

    def _failed(self, client: KazooClient, error: Exception) -> None:
        """Tell who waits for the session that it is of no use."""
        if client is self._client and not self._closed:
            self._let_go(explain(self._access, error, writes=False))

    def _let_go(self, error: StoreError) -> None:
        """Drop a client that does not go on, and tell who waits why; the next request makes another."""
        self._error = error
        self._drop()

    def _drop(self) -> None:
        """Drop a client; the next request makes another."""
        stuck = self._take()
        self._up.set()
        if stuck is not None:
            threading.Thread(target=_stop, args=stuck, name="holdfast-zookeeper-close", daemon=True).start()

    def _take(self) -> tuple[KazooClient, Handler] | None:
        with self._mutex:
            client, handler = self._client, self._handler
            self._client = self._handler = None
            self._drops += 1  # what is heard of its connection from now on is no news of the next one's
            return None if client is None or handler is None else (client, handler)

    async def close(self) -> None:
        """End the session and kazoo's thread."""
        with self._mutex:
            self._closed = True
        self._up.set()
        taken = self._take()
        if taken is None:
            return
        done = self._runtime.event()

        def stop() -> None:
            _stop(*taken)
            self._post(done.set)

        try:
            threading.Thread(target=stop, name="holdfast-zookeeper-close", daemon=True).start()
        except RuntimeError:  # the interpreter shuts down
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
    """End a session, and release what it has; ends by itself, though maybe late."""
    try:
        client.stop()
        client.close()
    except Exception:
        handler.break_off()
        log.debug("a session could not be ended in an orderly way", exc_info=True)
