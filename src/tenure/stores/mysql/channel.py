"""The notification channel of one client: a session that sleeps in the server, and is woken by KILL QUERY.

MySQL pushes nothing by itself. So a sender leaves a message in a table, and ends the sleep of the session that listens.
This session holds a named lock of the server, whose name is the channel: by it a sender finds the session, and others
see whether the client still listens.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tenure.contracts.messages import Notification, NotificationKind
from tenure.contracts.runtime import Event, Runtime, ShuttingDown, SpawnedTask
from tenure.errors import StoreError
from tenure.escaping import shown
from tenure.stores import table_codec
from tenure.stores.mysql.connection import MySqlConnection
from tenure.stores.mysql.errors import INTERRUPTED, NOBODY, MySqlResult, MySqlServerError, to_store_error
from tenure.stores.mysql.link import MySqlLink
from tenure.stores.mysql.statements import MySqlStatements, end_sleep, text
from tenure.stores.sql.errors import SqlBroken

log = logging.getLogger("tenure")

SLEEP = 1.0
"""How long one sleep lasts if nobody ends it, in seconds: a client of another user may not, and must be heard, too."""

MESSAGES = 500
"""How many messages are read at once."""

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""The shortest and the longest pause between attempts to connect, in seconds."""

ANSWERING = 5.0
"""How long one attempt to connect, or a statement besides its sleep, may take, in seconds."""

ENDING = 2.0
"""For how long `close` waits for the end of the session, in seconds, before it breaks the connection."""

WAKE_AGAIN = 0.1
"""How long `close` waits before it ends the sleep again, in seconds."""

TEST_SLEEP = 1.0
"""How long a sleep of the self-test lasts at most if nothing ends it, in seconds."""

LEAST_LEFT = 0.1
"""With less time, in seconds, the self-test does not sleep again; a reply that is due then was too late."""

LOOKS = 10
"""After so many replies that show no sleep, no other sleep is tried: the server does not show it."""

LONGEST_LOOK = 0.05
"""The longest pause between two looks whether the sleep of the self-test has begun, in seconds."""

FIRST_RETEST = 0.1
LONGEST_RETEST = 60.0
"""The shortest and the longest pause before a self-test that failed is repeated, in seconds."""

SLEEPING = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = %d AND STATE LIKE 'User sleep%%'"
"""Tells whether a session of this user sleeps."""


class MySqlChannel:
    """The channel of one client."""

    def __init__(self, runtime: Runtime, link: MySqlLink, statements: MySqlStatements) -> None:
        self.name = ""
        """The channel; empty if the client has none."""
        self._runtime = runtime
        self._link = link
        self._do = statements
        self._deliver: Callable[[Notification], None] = _ignore
        self._connection: MySqlConnection | None = None
        self._listener: SpawnedTask | None = None
        self._closed = False
        self._lost = False
        """Whether it is logged that the channel has no connection, and nothing was heard since."""
        self._closing = runtime.event()
        self._delivered: set[int] = set()
        """The ids of messages that were delivered, and may still be in the table."""

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Listen; return the channel, or "" if no session can be woken here.

        In that case the test is repeated in the background: the server may only have been slow. A channel that opens
        then is told by a GAP notification.
        """
        self._deliver = deliver
        why = await self._begin(until)
        if self._link.facts is not None:
            self._link.facts.why_silent = shown(why)
        work = partial(self._test_again, deliver) if why else self._listen
        try:
            self._listener = self._runtime.spawn(work, "mysql-channel", again=True)
        except RuntimeError:  # no thread can be started; the next try connects anew
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            raise
        return self.name

    async def _begin(self, until: float) -> str:
        """Connect and test the session: return "" and keep it, or return why it cannot be woken, and close it."""
        name = f"tenure_{self._runtime.new_id()}"
        connection = self._connection = await self._link.dial(until)
        why = "the test was given up"
        try:
            why = await self._why_not(connection, name, until)
        finally:
            if why:
                self._connection = None
                connection.close()
        if not why:
            self.name = name
        return why

    async def try_out(self, until: float) -> str:
        """Return why no session can be woken here, or "". Nothing is kept."""
        try:
            return shown(await self._begin(until))
        finally:
            if (connection := self._connection) is not None:
                self._connection = None
                connection.close()

    async def _test_again(self, deliver: Callable[[Notification], None]) -> None:
        """Repeat the self-test until it succeeds; then tell of the channel, and listen."""
        pause = FIRST_RETEST
        while not self._closed:
            await self._closing.wait(self._runtime.now() + pause * (0.5 + self._runtime.random()))
            pause = min(2 * pause, LONGEST_RETEST)
            if self._closing.is_set():
                return
            try:
                why = await self._begin(self._runtime.now() + ANSWERING)
            except StoreError as error:
                why = str(error)
            if not why:
                log.warning("a session of %s can be woken now: new waiters do not poll", self._link.title())
                deliver(Notification(self.name, NotificationKind.GAP, ""))
                await self._listen()
                return
            log.debug("still no session of MySQL can be woken by KILL QUERY: %s", why)

    async def close(self) -> None:
        """Stop listening, and disconnect."""
        self._closed = True
        self._closing.set()
        self._deliver = _ignore
        if self._listener is None:
            return
        until = self._runtime.now() + ENDING
        with suppress(StoreError):
            while not self._listener.ended() and self._runtime.now() < until:
                if self.name:
                    await self.wake(self.name, until)  # again, because it may come just before the sleep
                elif (tested := self._connection) is not None:
                    tested.interrupt()
                await self._listener.join(self._runtime.now() + WAKE_AGAIN)
        if not self._listener.ended() and (connection := self._connection) is not None:
            connection.interrupt()

    def abandon(self) -> None:
        """In a forked child: close its copy. The thread that listens is not here."""
        self._closed = True
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None

    async def wake(self, channel: str, until: float) -> None:
        """End the sleep of the session that listens to a channel. If it fails, that costs it the rest of the sleep."""
        try:
            await self._link.run((end_sleep(channel),), until)
        except MySqlServerError as error:
            if error.code not in NOBODY:
                log.debug("a waiter of MySQL could not be woken: %s", error)

    # -- self-test -----------------------------------------------------------------------------------------

    async def _why_not(self, connection: MySqlConnection, name: str, until: float) -> str:
        """Take the lock, and have another connection end a sleep; return why that does not work, or ""."""
        if connection.thread_id() not in {0, connection.session}:
            return "the id of the session is another one than its greeting said"
        try:
            if not await self._take_lock(connection, name, until):
                return "the lock of the channel was not granted"
            return await self._test(connection, name, until)
        except MySqlServerError as error:
            return str(error)
        except SqlBroken as error:
            raise self._link.meaning(connection.place, error) from error

    async def _take_lock(self, connection: MySqlConnection, name: str, until: float) -> bool:
        ((granted,),) = (await connection.run((f"SELECT GET_LOCK({text(name)}, 0)",), until))[0].rows
        return bool(granted == 1)

    async def _test(self, connection: MySqlConnection, name: str, until: float) -> str:
        """Sleep, and have another connection end the sleep; return "" if the server says that it was ended.

        How long that took decides nothing: a machine may stand still. A sleep that was over before a KILL QUERY could
        end it says nothing, and another follows while there is time.
        """
        while True:
            looks = list[bool]()
            try:
                if await self._is_ended(connection, name, looks, until):
                    return ""
            except ShuttingDown as error:
                return str(error)
            except SqlBroken:
                if self._runtime.now() < until - LEAST_LEFT:
                    raise
            if looks.count(True) > 1 or len(looks) >= LOOKS:
                return "a KILL QUERY did not end its sleep"
            if until - self._runtime.now() < LEAST_LEFT:
                return "its sleep was over before a KILL QUERY came: the server or this machine is slow"

    async def _is_ended(self, connection: MySqlConnection, name: str, looks: list[bool], until: float) -> bool:
        """Sleep; return whether that was ended. `looks` gets what the server shows of it, look by look."""
        length, over = min(TEST_SLEEP, (until - self._runtime.now()) / 2), self._runtime.event()
        wake = partial(self._wake_soon, connection, name, looks, over, until)
        waker = self._runtime.spawn(wake, "mysql-self-test")
        try:
            ((ended,),) = (await connection.run((f"SELECT SLEEP({max(length, 0.0):.3f})",), until))[0].rows
        except MySqlServerError as error:
            if error.code != INTERRUPTED:
                raise
            ended = True
        finally:
            over.set()
        await waker.join(until)
        return bool(ended)

    async def _wake_soon(
        self, connection: MySqlConnection, name: str, looks: list[bool], over: Event, until: float
    ) -> None:
        """End the sleep of the self-test once the server shows that it has begun."""
        pause = 0.001
        with suppress(StoreError):
            while not over.is_set():
                await self._runtime.sleep(pause)
                sleeps = False
                with suppress(MySqlServerError):
                    sleeps = bool((await self._link.run((SLEEPING % connection.session,), until))[0].rows[0][0])
                looks.append(sleeps)
                if sleeps:
                    await self.wake(name, until)
                pause = min(2 * pause, LONGEST_LOOK)

    # -- a session -----------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Listen until closed. Connect again when the session is lost, and report then that something was missed."""
        pause = FIRST_PAUSE
        try:
            while not self._closed:
                try:
                    connection = self._connection or await self._connect()
                    while not self._closed:
                        await self._hear(connection)
                        pause, self._lost = FIRST_PAUSE, False
                except (StoreError, MySqlServerError, SqlBroken) as error:
                    self._lose(error)
                    await self._closing.wait(self._runtime.now() + pause * (0.5 + self._runtime.random()))
                    pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            if self._connection is not None:
                self._connection.close()
                self._connection = None  # after a cancellation this begins again

    async def _connect(self) -> MySqlConnection:
        """Connect again, and report that notifications may have been missed."""
        until = self._runtime.now() + ANSWERING
        connection = await self._link.dial(until)
        self._connection = connection
        if not await self._take_lock(connection, self.name, until):
            raise SqlBroken("the lost session still holds the lock of the channel")
        self._deliver(Notification(self.name, NotificationKind.GAP, ""))
        return connection

    def _lose(self, error: Exception) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.close()
        if not self._closed and not self._lost:
            self._lost = True
            meant = to_store_error(connection.place, error) if isinstance(error, MySqlServerError) else error
            log.warning("the channel of MySQL has no connection (%s); until it has one again, waiters poll", meant)

    async def _hear(self, connection: MySqlConnection) -> None:
        """Delete the messages that were delivered, sleep until another comes, and deliver what has come."""
        until = self._runtime.now() + SLEEP + ANSWERING
        if self._delivered:
            # MariaDB may end a DELETE at such a moment that it deletes nothing and reports no error. So these messages
            # are remembered until they are not read again.
            await _run_alone(connection, self._do.delete_messages(self._delivered), until)
        await _run_alone(connection, self._do.sleep(self.name, SLEEP), until)
        result = await _run_alone(connection, self._do.messages(self.name, MESSAGES), until)
        if result is None:
            return
        self._delivered.intersection_update(number for number, _ in result.rows)
        for number, payload in result.rows:
            if number not in self._delivered:
                self._delivered.add(number)
                self._take(bytes(payload))

    def _take(self, payload: bytes) -> None:
        try:
            notification = table_codec.load_notification(self.name, payload)
        except (ValueError, TypeError, RecursionError):
            log.warning("ignored a message on a channel of MySQL that is no notification of Tenure")
            return
        self._deliver(notification)


async def _run_alone(connection: MySqlConnection, statement: str, until: float) -> MySqlResult | None:
    """Run a statement, which returns nothing if a KILL QUERY has ended it: another message has come.

    It is a request of its own. A server whose session is killed between two statements of one request says that another
    reply comes, and sends none.
    """
    try:
        return (await connection.run((statement,), until))[0]
    except MySqlServerError as error:
        if error.code != INTERRUPTED:
            raise
        return None


def _ignore(_notification: Notification) -> None:
    """Ignore what comes while the channel is closed."""
