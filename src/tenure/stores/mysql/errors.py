"""What an error of MySQL means: whether the statement was carried out, whether a retry helps, and what to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.sql.errors import SqlBroken, SqlServerError

Row = tuple[Any, ...]


@dataclass(slots=True)
class MySqlResult:
    """The result of one statement."""

    rows: Sequence[Row]
    changed: int
    """How many rows it changed."""
    last_id: int
    """What LAST_INSERT_ID(...) was given in the statement."""


class MySqlServerError(SqlServerError):
    """An error reply of MySQL."""

    def __init__(self, code: int, message: str, results: Sequence[MySqlResult] = ()) -> None:
        """Keep the number of the error, the message, and the results of the statements before, of several."""
        super().__init__(code, message)
        self.results = results


CONFLICTS = frozenset({1213, 1205, 1020})
"""A deadlock, a lock that was not free in time, a row that changed meanwhile: nothing was done, and a retry helps."""

INTERRUPTED = 1317
"""The statement was ended by KILL QUERY."""

NO_SESSION, NOT_ITS_OWN = 1094, 1095
NOBODY = frozenset({NO_SESSION, NOT_ITS_OWN})
"""There is no such session, or it belongs to another user."""

NO_DATABASE = 1046
"""The database of the session was dropped, perhaps to be made again: only a new session can use it then."""

MISSING = frozenset({1146, NO_DATABASE})
"""There is no such table."""

DENIED = frozenset({1044, 1142, 1227})

READ_ONLY = frozenset({1290, 1836, 1792})

SESSION_ENDED = frozenset({1053, 1152, 1184, 1158, 1159, 1160, 1161, 1927, 3169, 4031})
"""After these the outcome of the statement is unknown: it may have been committed before the session ended."""

USELESS = READ_ONLY | SESSION_ENDED | {1047, NO_DATABASE}
"""After these another connection may lead to another server, or to the same one in another state."""

_READ_ONLY_ADVICE = "it is read-only: a replica, or set so; name the primary, or all hosts in one URL"
_SCHEMA_ADVICE = "`tenure schema mysql --role NAME` prints the SQL that makes the tables, and the least GRANTs"

ADVICE = {
    **dict.fromkeys(READ_ONLY, _READ_ONLY_ADVICE),
    1021: "its disk is full; make room",
    1114: "the table or its disk is full; make room",
    1026: "it cannot write to its disk; check the disk",
    1030: "its storage engine failed; check its disk and its log",
    1037: "it has no memory left",
    1038: "it has no memory left",
    1040: "it has no connection left; raise its max_connections, or set fewer with ?connections= in the URL",
    1203: "the user has no connection left; raise max_user_connections, or set fewer with ?connections= in the URL",
    1226: "the user has used up what its limits allow; raise them",
    1047: "this node of the cluster does not serve now",
    1129: "it refuses this host after errors; run FLUSH HOSTS on it",
    1317: "somebody ended the statement with KILL QUERY",
    1969: "it ended the statement; raise its max_statement_time",
    3024: "it ended the statement; raise its max_execution_time",
    1053: "it shuts down",
    1927: "somebody ended the session",
}
"""Errors that may pass, and what the server says by them."""

LASTING = {
    1044: "the user may not use the database; GRANT it, or name another database in the URL",
    1045: "check the user and the password of the URL, where a password has %40 for `@` and %25 for `%`",
    1046: "the database was dropped; create it again, or name another one in the URL",
    1049: "create the database, or name another one in the URL",
    1054: f"the tables are not those of this version of Tenure; {_SCHEMA_ADVICE}",
    1130: "the server accepts no connection from this host; create the user for this host",
    1142: f"the tables are missing, or the user lacks rights; {_SCHEMA_ADVICE}",
    1146: f"a table of Tenure is missing; {_SCHEMA_ADVICE}",
    1153: "raise its max_allowed_packet: the queue of one name is one packet",
    1227: f"the user lacks rights; {_SCHEMA_ADVICE}",
    1251: "the server demands an authentication that the driver does not know",
    1665: "set its binlog_format to ROW or MIXED, or GRANT the user the right to do so for its sessions (BINLOG ADMIN, "
    "in MySQL SESSION_VARIABLES_ADMIN): Tenure works at the isolation level READ COMMITTED",
    1698: "the user may log in through the Unix socket only; use ?unix_socket= or a user with a password",
    1820: "the password of the user has expired; set a new one",
    1862: "the password of the user has expired; set a new one",
}
"""Errors for which a retry is useless, and what to do."""


def to_store_error(place: str, error: SqlServerError) -> StoreError:
    """Return what an error reply of the server at `place` means to users."""
    said = f"the MySQL server at {place} answered: {error} ({error.code})"
    if error.code in LASTING:
        return StoreError(f"{said}; {LASTING[error.code]}")
    if error.code in SESSION_ENDED:
        return OutcomeUnknown(f"{said}; {ADVICE.get(error.code, 'the session has ended')}")
    if error.code in ADVICE or error.code in CONFLICTS:
        return StoreUnavailable(f"{said}; {ADVICE.get(error.code, 'try again')}")
    return StoreError(said)


FIRST_OF_CLIENT, LAST_OF_CLIENT = 2000, 2999
"""The errors that drivers raise by themselves: the connection is lost, or was not made."""


def of_driver(error: Exception, results: Sequence[MySqlResult] = ()) -> Exception:
    """Return what an exception of any driver is: MySqlServerError or SqlBroken; a bug of ours as it is."""
    code, message = getattr(error, "errno", None), _one_line(str(error.args[-1]) if error.args else str(error))
    if not isinstance(code, int):
        code = error.args[0] if error.args and isinstance(error.args[0], int) else None
    if isinstance(error, OSError):
        return SqlBroken(_one_line(str(error)) or type(error).__name__)
    if code is None or code == 0 or FIRST_OF_CLIENT <= code <= LAST_OF_CLIENT:
        return SqlBroken(message or type(error).__name__)
    return MySqlServerError(code, message, results)


def text_of(value: object) -> str:
    """Return a text that a driver may return as bytes."""
    return bytes(value).decode() if isinstance(value, (bytes, bytearray)) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())
