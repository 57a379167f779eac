"""The notification channel of one client: a session that listens, and connects again when it is lost."""

import logging
from collections.abc import Callable

from tenure.contracts.messages import Notification, NotificationKind
from tenure.contracts.runtime import NoThreadLeft, Runtime, SpawnedTask
from tenure.errors import StoreError
from tenure.stores import table_codec
from tenure.stores.postgresql.connection import PgConnection, PgStatement
from tenure.stores.postgresql.link import PgLink
from tenure.stores.postgresql.schema import quote
from tenure.stores.sql.errors import SqlBroken, SqlServerError

log = logging.getLogger("tenure")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""The shortest and the longest pause between attempts to connect, in seconds."""

CONNECTING = 5.0
"""How long one attempt may take, in seconds."""

SELF_TEST = b""
"""The payload by which a session tests that it hears itself."""


class PgChannel:
    """The channel of one client. While its session lives, it holds an advisory lock, so that others see it listen."""

    def __init__(self, runtime: Runtime, link: PgLink) -> None:
        self.name = ""
        """The channel; empty if the client has none."""
        self._runtime = runtime
        self._link = link
        self._deliver: Callable[[Notification], None] = _ignore
        self._mutex = runtime.mutex()
        self._connection: PgConnection | None = None
        self._stop: Callable[[], None] | None = None
        self._reconnecting: SpawnedTask | None = None
        self._closed = False
        self._closing = runtime.event()

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Listen; return the channel, or "" if a pooler is between, through which no notification comes."""
        self._deliver = deliver
        self.name = f"tenure_{self._runtime.new_id()}"
        if not await self._listen(until):
            self.name = ""
            if self._link.facts is not None:
                self._link.facts.hears = False
        return self.name

    async def close(self) -> None:
        """Stop listening, and disconnect."""
        self._closed = True
        self._closing.set()
        self._deliver = _ignore
        self._end()
        if self._reconnecting is not None:
            await self._reconnecting.join(self._runtime.now() + 1.0)

    def abandon(self) -> None:
        """In a forked child: close its copy. The thread that listens is not here."""
        self._closed = True
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None

    # -- a session -----------------------------------------------------------------------------------------

    async def _listen(self, until: float) -> bool:
        """Have a new session listen, and hand its socket to the runtime. Raises StoreError.

        Return False if a pooler is between, or if the session does not hear itself: then it is closed.
        """
        connection = await self._link.dial(until)
        if connection.pooled:  # nothing may be left in its sessions
            connection.close()
            return False
        lock = PgStatement("tenure_lock", "SELECT pg_advisory_lock(hashtextextended($1, 0)), pg_notify($1, '')")
        listen = PgStatement("tenure_listen", f"LISTEN {quote(self.name)}")
        try:
            await self._link.run(connection, connection.execute(listen, ()), until)
            await self._link.run(connection, connection.execute(lock, (self.name.encode(),)), until)
            payloads = connection.hear()
        except (SqlServerError, SqlBroken) as error:
            connection.close()
            raise self._link.meaning(connection.place, error) from error
        except BaseException:
            connection.close()
            raise
        if SELF_TEST not in payloads:
            connection.close()
            return False
        self._hear_all(payloads)
        try:
            with self._mutex:  # the thread that listens may find the session lost before `_stop` is set
                self._connection = connection
                self._stop = self._runtime.listen(PgNotificationSource(connection, self._take), _never)
        except NoThreadLeft:
            self._end()
            raise
        return True

    def _take(self) -> None:
        """Deliver what has arrived."""
        connection = self._connection
        if connection is None:
            return
        try:
            payloads = connection.hear()
        except SqlBroken as error:
            self._lost(error)
            return
        self._hear_all(payloads)

    def _hear_all(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            if payload != SELF_TEST:
                self._hear(payload)

    def _hear(self, payload: bytes) -> None:
        try:
            notification = table_codec.load_notification(self.name, payload)
        except (ValueError, TypeError, RecursionError):
            log.warning("ignored a message on a channel of PostgreSQL that is no notification of Tenure")
            return
        self._deliver(notification)

    def _lost(self, error: Exception) -> None:
        """Close the session, and connect again in the background."""
        self._end()
        if self._closed:
            return
        log.warning("the channel of PostgreSQL has no connection (%s); until it has one again, waiters poll", error)
        # Only the thread that has listened calls this, and has nothing else to do.
        self._reconnecting = self._runtime.spawn(self._reconnect, "postgresql-channel", or_here=True, again=True)

    def _end(self) -> None:
        with self._mutex:
            connection, self._connection = self._connection, None
            stop, self._stop = self._stop, None
        if stop is not None:
            stop()
        if connection is not None:
            connection.close()

    async def _reconnect(self) -> None:
        """Connect until that succeeds; then report that notifications may have been missed."""
        pause = FIRST_PAUSE
        while not self._closed:
            try:
                until = self._runtime.now() + CONNECTING
                listens = await self._listen(until)
            except StoreError as error:
                log.debug("the channel of PostgreSQL cannot connect: %s", error)
                listens = False
            if not listens:
                await self._closing.wait(self._runtime.now() + pause * (0.5 + self._runtime.random()))
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            self._deliver(Notification(self.name, NotificationKind.GAP, ""))
            break
        if self._closing.is_set():  # meanwhile
            self._end()


class PgNotificationSource:
    """The socket of a session, as a runtime listens to it. libpq reads what has come, so there is never a message."""

    def __init__(self, connection: PgConnection, take: Callable[[], None]) -> None:
        """Call `take` whenever something has come."""
        self._connection = connection
        self._take = take

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._connection.fileno()

    def recv(self, _size: int, /) -> bytes:
        """Have the channel take what has come."""
        self._take()
        raise BlockingIOError


def _ignore(_notification: Notification) -> None:
    """Ignore what comes while the channel is closed."""


def _never(_message: bytes) -> None:
    """Take nothing: the source has no messages."""
