"""One connection to PostgreSQL, on libpq: statements and notifications, for both forms of the API.

What may have to wait is a generator that yields READABLE or WRITABLE, and is resumed when its socket is. A thread polls
for that, an event loop awaits it. It stands on psycopg's wrapper of libpq, below its connections: these cannot end a
statement by a deadline in threads, and cost a fifth of a pair.
"""

import os
import re
import socket
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

from psycopg import OperationalError, pq
from psycopg.pq import Escaping

from tenure.stores.postgresql.errors import PgServerError
from tenure.stores.sql.errors import SqlBroken
from tenure.transport.polling import READABLE, WRITABLE

Waits = Generator[int, None, None]
"""Yields what to wait for."""

Cell = bytes | None
Params = Sequence[Cell]
Table = list[tuple[Cell, ...]]

Told = Callable[[Table | None], None]
"""Gets the rows of a statement that no caller waits for; None if they are not known."""

PIPELINES = pq.version() // 10000 >= 14  # noqa: PLR2004 - the first with a pipeline mode
"""Whether this libpq can send a statement before it has read the reply to the last one."""

PLACE = re.compile(r"\$([0-9]+)")
"""The place of a parameter in a statement."""

NOISE = re.compile(r"^connection to server [^\n]*? failed: |\n\tIs the server running[^\n]*", re.MULTILINE)
"""Parts of an error text of libpq that repeat what the error of Tenure says: the address, and whether it runs."""

DONE = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})


class PgStatement:
    """A statement that is prepared once on each connection."""

    __slots__ = ("name", "optional", "text")

    def __init__(self, name: str, text: str, optional: int = 0) -> None:
        """Name it, for the server. If the column `optional` is NULL, so are all after it: they are not read then."""
        self.name = name.encode()
        self.text = text.encode()
        self.optional = optional


class PgConnection:
    """One connection. Used by one caller at a time."""

    def __init__(self, pgconn: pq.abc.PGconn, place: str, owner: object = None) -> None:
        """Use a connection of libpq that is being made, or that belongs to an `owner`, which must live as long."""
        self.place = place
        """The server, for messages."""
        self.used = 0.0
        self.pooled = False
        """Whether a pooler is between: then a statement may run in any session, and nothing can be prepared."""
        self.label = ""
        """The application name that was set for the session, if it was set after the connection was made."""
        self._pgconn = pgconn
        self._owner = owner
        self._prepared: set[bytes] = set()
        self._piped = False
        """Whether libpq is in pipeline mode: then each statement ends with a Sync, to which the server replies, too."""
        self.owed: deque[tuple[PgStatement, Told]] = deque()
        """The statements that were sent and whose replies are taken later, in their order."""
        self._taking: Waits | None = None
        """What takes these replies, and waits for the rest of one."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._pgconn.socket

    # -- life ----------------------------------------------------------------------------------------------

    def set_up(self) -> Waits:
        """Connect, or take over a connection that the user's code has made. Raises PgServerError or SqlBroken."""
        pgconn = self._pgconn
        while self._owner is None and (status := pgconn.connect_poll()) != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED:
                raise _connect_error(pgconn)
            yield READABLE if status == pq.PollingStatus.READING else WRITABLE
        pgconn.nonblocking = 1
        if self._owner is None:
            return
        if pgconn.transaction_status != pq.TransactionStatus.IDLE:
            raise SqlBroken("the connection is in a transaction, which the code that made it must end")
        if pgconn.parameter_status(b"client_encoding") != b"UTF8":
            yield from self.run_script("SET client_encoding TO 'UTF8'")

    @property
    def backend_pid(self) -> int:
        """The id of the server's process that the greeting named: that of the session, unless a pooler has answered."""
        return self._pgconn.backend_pid

    @property
    def server_version(self) -> int:
        """The version of the server, as 150004 for 15.4."""
        return self._pgconn.server_version

    def is_stale(self) -> bool:
        """Tell whether the server has closed the connection.

        libpq notices the end only by a second read if the server's reason for it came first.
        """
        with suppress(OperationalError):
            for _ in range(2):
                if self._pgconn.status != pq.ConnStatus.OK:
                    return True
                self._pgconn.consume_input()
            return self._pgconn.status != pq.ConnStatus.OK
        return True

    def close(self) -> None:
        """Close it, and tell that the replies which are owed never come."""
        self._pgconn.finish()
        while self.owed:
            self.owed[0][1](None)
            self.owed.popleft()  # after the call: if that is interrupted, `close` calls again

    def abandon(self) -> None:
        """In a forked child: close this copy, without a word to the server."""
        with suppress(OSError, OperationalError), socket.socket() as blank:
            os.dup2(blank.fileno(), self._pgconn.socket, inheritable=False)
        self.owed.clear()
        self._pgconn.finish()

    # -- statements ----------------------------------------------------------------------------------------

    def execute(self, statement: PgStatement, params: Params) -> Generator[int, None, Table]:
        """Run a statement in a transaction of its own; return its rows. Raises PgServerError or SqlBroken."""
        pgconn = self._pgconn
        try:
            if self._piped:
                if self._is_prepared(statement):
                    return (yield from self._execute_behind(statement, params))
                yield from self._end_pipeline()
            if self.pooled:
                pgconn.send_query_params(statement.text, params)
            else:
                if statement.name not in self._prepared:
                    pgconn.send_prepare(statement.name, statement.text)
                    yield from self._result()
                    self._prepared.add(statement.name)
                pgconn.send_query_prepared(statement.name, params)
            result = yield from self._result()
        except OperationalError as error:
            raise SqlBroken(_text(error)) from error
        return _rows(statement, result)

    def execute_once(self, statement: PgStatement, params: Params) -> Generator[int, None, Table]:
        """Run a statement that is rarely used, without preparing it. Raises PgServerError or SqlBroken."""
        try:
            if self._piped:
                yield from self._end_pipeline()
            self._pgconn.send_query_params(statement.text, params)
            result = yield from self._result()
        except OperationalError as error:
            raise SqlBroken(_text(error)) from error
        return _table(result)

    def run_script(self, text: str) -> Generator[int, None, Table]:
        """Run several statements that have no parameters, in one transaction unless they say otherwise.

        Return the rows of the last one that has any. Raises PgServerError or SqlBroken.
        """
        try:
            if self._piped:
                yield from self._end_pipeline()
            self._pgconn.send_query(text.encode())
            result = yield from self._result()
        except OperationalError as error:
            raise SqlBroken(_text(error)) from error
        return _table(result)

    def spell_out(self, statement: PgStatement, params: Params) -> str:
        """Write the parameters into the text of a statement, for `run_script`."""
        escape = Escaping(self._pgconn).escape_literal
        literals = ["NULL" if each is None else escape(each).decode() for each in params]
        return PLACE.sub(lambda found: literals[int(found[1]) - 1], statement.text.decode())

    def _result(self) -> Generator[int, None, pq.abc.PGresult]:
        """Wait for the end of the reply, and return the last result, or raise the first error."""
        pgconn = self._pgconn
        while pgconn.flush():
            yield WRITABLE | READABLE
            pgconn.consume_input()
        last = failed = None
        while True:
            while pgconn.is_busy():
                yield READABLE
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            if result.status not in DONE:
                failed = failed or result
            if last is None or result.nfields:
                last = result
        if failed is not None:
            raise _reply_error(failed)
        if last is None:
            raise SqlBroken("the server closed the connection")
        return last

    # -- statements whose replies are taken later ----------------------------------------------------------

    def send_owed(self, statement: PgStatement, params: Params, told: Told) -> bool:
        """Send a statement whose reply is taken before that to another one; False if it cannot be sent at once.

        The server carries it out before whatever is sent on this connection later. Raises SqlBroken.
        """
        if not (PIPELINES and self._is_prepared(statement)):
            return False
        try:
            self._send_piped(statement, params)
            self._pgconn.flush()  # what the system does not take now, `collect` or the next statement sends
        except OperationalError as error:
            raise SqlBroken(_text(error)) from error
        self.owed.append((statement, told))
        return True

    def collect(self) -> None:
        """Take the replies that are owed and have come. It never waits. Raises PgServerError or SqlBroken."""
        work, self._taking = self._taking or self._take_owed(), None
        try:
            self._pgconn.consume_input()
            next(work)
        except StopIteration:
            return
        except OperationalError as error:
            raise SqlBroken(_text(error)) from error
        self._taking = work

    def _is_prepared(self, statement: PgStatement) -> bool:
        return not self.pooled and statement.name in self._prepared

    def _send_piped(self, statement: PgStatement, params: Params) -> None:
        """Send a statement in libpq's pipeline mode, as a transaction of its own."""
        if not self._piped:
            self._pgconn.enter_pipeline_mode()
            self._piped = True
        self._pgconn.send_query_prepared(statement.name, params)
        self._pgconn.pipeline_sync()

    def _execute_behind(self, statement: PgStatement, params: Params) -> Generator[int, None, Table]:
        """Run a statement behind those whose replies are owed, which are taken first."""
        self._send_piped(statement, params)
        yield from self._finish_owed()
        return _rows(statement, (yield from self._piped_result()))

    def _end_pipeline(self) -> Waits:
        """Take the replies that are owed, and leave the pipeline mode, in which not every statement can be sent."""
        yield from self._finish_owed()
        self._pgconn.exit_pipeline_mode()
        self._piped = False

    def _finish_owed(self) -> Waits:
        work, self._taking = self._taking or self._take_owed(), None
        yield from work

    def _take_owed(self) -> Waits:
        """Take all replies that are owed, each by the one who is told."""
        while self.owed:
            statement, told = self.owed[0]
            rows: Table | None = None
            try:
                rows = _rows(statement, (yield from self._piped_result()))
            except PgServerError as error:
                if error.fatal:
                    raise
            told(rows)
            self.owed.popleft()  # after the call: if that is interrupted, `close` calls again

    def _piped_result(self) -> Generator[int, None, pq.abc.PGresult]:
        """Return the result of a statement in pipeline mode, or raise its error, when its Sync is answered, too."""
        try:
            result = yield from self._result()
        except PgServerError as error:
            if not error.fatal:
                yield from self._synced()
            raise
        yield from self._synced()
        return result

    def _synced(self) -> Waits:
        """Take the reply to a Sync."""
        while self._pgconn.is_busy():
            yield READABLE
            self._pgconn.consume_input()
        synced = self._pgconn.get_result()
        if synced is None or synced.status != pq.ExecStatus.PIPELINE_SYNC:
            raise SqlBroken("the server closed the connection")

    # -- notifications -------------------------------------------------------------------------------------

    def hear(self) -> list[bytes]:
        """Return the payloads that have arrived. Raises SqlBroken."""
        try:
            self._pgconn.consume_input()
        except OperationalError as error:
            raise SqlBroken(_text(error)) from error
        heard: list[bytes] = []
        while (notify := self._pgconn.notifies()) is not None:
            heard.append(notify.extra)
        return heard


def _rows(statement: PgStatement, result: pq.abc.PGresult) -> Table:
    """Return the rows of a statement, without the columns that are optional and NULL."""
    if (optional := statement.optional) and result.get_value(0, optional) is None:
        return [tuple([result.get_value(0, column) for column in range(optional)])]
    return _table(result)


def _table(result: pq.abc.PGresult) -> Table:
    return [tuple(result.get_value(row, column) for column in range(result.nfields)) for row in range(result.ntuples)]


def _connect_error(pgconn: pq.abc.PGconn) -> Exception:
    return refusal(pgconn.error_message.decode("utf-8", "replace"))


def refusal(said: str) -> Exception:
    """Return why a connection was not made. libpq tells no SQLSTATE of that, so the usual sentences stand for one."""
    text = NOISE.sub("", said)
    for sentence, state in SENTENCES:
        if sentence in text:
            return PgServerError(state, _one_line(text), fatal=True)
    return SqlBroken(_one_line(text))


SENTENCES = (
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("no pg_hba.conf entry", "28000"),
    ("authentication failed", "28000"),
    ("too many", "53300"),
    ("remaining connection slots", "53300"),
    ("the database system is", "57P03"),
    ("accepting connections", "57P03"),
    ("session is read-only", "25006"),
    ("server is in hot standby mode", "25006"),
    ("permission denied", "42501"),
    ("role ", "28000"),
    ("database ", "3D000"),
)
"""What servers and libpq say when they refuse a connection, and the SQLSTATE of that. The first that fits counts."""


def _reply_error(result: pq.abc.PGresult) -> Exception:
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or b""
    text = _one_line(message.decode("utf-8", "replace"))
    if not state:
        return SqlBroken(text)
    return PgServerError(state, text, fatal=severity in {b"FATAL", b"PANIC"})


def _text(error: Exception) -> str:
    return _one_line(str(error))


def _one_line(text: str) -> str:
    return " ".join(text.split())
