"""What an error of PostgreSQL means: whether the statement was carried out, whether a retry helps, and what to do."""

from tenure.contracts import forms
from tenure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from tenure.stores.sql.errors import SqlServerError


class PgServerError(SqlServerError):
    """An error reply of PostgreSQL."""

    def __init__(self, code: str, message: str, *, fatal: bool) -> None:
        """Keep the SQLSTATE, the message, and whether the server has closed the session."""
        super().__init__(code, message)
        self.fatal = fatal


CONFLICTS = frozenset({"40001", "40P01", "55P03"})
"""A serialization conflict, a deadlock, a lock that was not available: nothing was done, and a retry helps at once."""

ADVICE = {
    "25006": "it is read-only: a standby, or set so by default_transaction_read_only, which counts behind a pooler; "
    "name the primary, or all hosts in one URL",
    "55000": "it is a standby in recovery; name the primary, or all hosts in one URL",
    "53100": "its disk is full; make room",
    "53200": "it has no memory left",
    "53300": "it has no connection left; raise its max_connections, or set fewer with ?connections= in the URL",
    "57014": "it cancelled the statement; raise its statement_timeout if that is the reason",
    "57P01": "it closes, or an administrator ended the session",
    "57P02": "it restarts after a crash",
    "57P03": "it starts, or shuts down",
}
"""States that may pass, and what the server says by them."""

LASTING = {
    "28000": "check the user and the host in its pg_hba.conf",
    "28P01": "check the user and the password of the URL, where a password has %40 for `@` and %25 for `%`",
    "3D000": "create the database, or name another one in the URL",
    "3F000": "the schema is missing; `tenure schema postgresql` prints the SQL that makes it",
    "42501": "the role lacks rights; `tenure schema postgresql --role NAME` prints the least GRANTs",
    "42P01": "a table of Tenure is missing; `tenure schema postgresql` prints the SQL that makes it",
    "42883": "a function of Tenure is missing; `tenure schema postgresql` prints the SQL that makes it",
    "42704": "a type of Tenure is missing; `tenure schema postgresql` prints the SQL that makes it",
}
"""States for which a retry is useless, and what to do."""

NO_SUCH_CHARACTER = "22P05"
"""The state of a server whose database has an encoding without a character that it was sent."""

LATER = "TN001"
"""The state by which our own functions refuse a later form."""

SESSION_ENDED = ("57P01", "57P02", "57P05", "08")
"""States after which the outcome of the statement is unknown: it may have been committed before the session ended."""


def to_store_error(place: str, error: SqlServerError) -> StoreError:
    """Return what an error reply of the server at `place` means to users."""
    state = str(error.code)
    said = f"the PostgreSQL server at {place} answered: {error} ({state})"
    if state == LATER:
        _, form, needed = str(error).split()[:3]
        return forms.later(form, needed, f"the table of locks at {place}")
    if state in LASTING:
        return StoreError(f"{said}; {LASTING[state]}")
    if state.startswith(SESSION_ENDED):
        return OutcomeUnknown(f"{said}; {ADVICE.get(state, 'the session has ended')}")
    if state in ADVICE or state in CONFLICTS or state[:2] in {"53", "57", "58"}:
        return StoreUnavailable(f"{said}; {ADVICE.get(state, 'try again')}")
    return StoreError(said)


def cannot_connect(place: str, error: BaseException) -> StoreUnavailable:
    """Return what it means that no connection to the server at `place` was made."""
    said = f"cannot connect to the PostgreSQL server at {place} ({error}); check"
    if any(word in str(error) for word in OF_TLS):
        return StoreUnavailable(f"{said} the options of the URL that begin with ssl")
    return StoreUnavailable(f"{said} that it runs, and the host and the port of the URL")


OF_TLS = ("support SSL", "SSL error", "certificate")
"""Words of libpq's errors by which TLS settings are at fault."""
