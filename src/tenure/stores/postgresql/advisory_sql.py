"""The statements on advisory locks. A lease has three locks of its session, so that others can see what it is.

The first is the lock itself: exclusive, on a bigint of 63 bits, a hash of the name. The others are shared, so they
block nobody: the mark, on two integers (another hash of the name, and the ttl in milliseconds), and the token, on the
negative bigint. The mark is taken before the lock and given up after it, so whoever holds the lock for a name has its
mark as well.
"""

from tenure.stores.postgresql.connection import PgStatement
from tenure.stores.sql.sessions import LockKey, LockTerms

MARK_TAKEN = -1
"""The token in the reply to `try_lock` if another program has locked the mark."""

LONGEST_TTL = 2**31 - 1
"""The longest ttl that a mark and the setting can say, in milliseconds: 24 days."""

DEFAULT_SEQUENCE = "tenure_tokens"

UNLOCK = PgStatement(
    "tenure_unlock",
    "SELECT pg_advisory_unlock($1::bigint), pg_advisory_unlock_all(), set_config('idle_session_timeout', '0', false)",
)

OF_SESSION = (
    "locktype = 'advisory' AND objsubid = 1 AND granted AND classid = ($1::bigint >> 32)::oid "
    "AND objid = ($1::bigint & 4294967295)::oid AND database = (SELECT oid FROM pg_database "
    "WHERE datname = current_database())"
)

PROLONG = PgStatement(
    "tenure_prolong",
    "SELECT set_config('idle_session_timeout', $2, false), pg_backend_pid(), "  # noqa: S608 - constants
    f"EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND {OF_SESSION}), "
    "CASE WHEN $4::int <> $5::int AND pg_try_advisory_lock_shared($3::int, $5::int) "
    "THEN pg_advisory_unlock_shared($3::int, $4::int) END",
)
"""Renew a lock. Parameters: lock, idle timeout, mark, the ttl in the mark, the new ttl."""

LOOK = PgStatement(
    "tenure_look",
    "WITH l AS MATERIALIZED (SELECT * FROM pg_locks WHERE locktype = 'advisory' AND database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database())) "
    "SELECT l.pid, l.classid::bigint, l.objid::bigint, l.objsubid, l.granted, a.application_name, "
    "CASE WHEN a.state = 'idle' THEN extract(epoch FROM clock_timestamp() - a.state_change) ELSE 0 END, "
    "extract(epoch FROM clock_timestamp() - l.waitstart) "
    "FROM l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid WHERE l.pid IN (SELECT pid FROM l WHERE objsubid = 1 "
    "AND classid = ($1::bigint >> 32)::oid AND objid = ($1::bigint & 4294967295)::oid) ORDER BY l.pid",
)

END_HOLDER = PgStatement(
    "tenure_end_holder",
    f"SELECT pg_terminate_backend(pid, 2000) FROM pg_locks WHERE pid = $2::int AND {OF_SESSION}",  # noqa: S608 - constants
)

LABEL = PgStatement("tenure_label", "SELECT set_config('application_name', $1, false)")

SEQUENCE = PgStatement(
    "tenure_sequence",
    "SELECT s.seqrelid::regclass, s.seqcache, s.seqincrement, s.seqcycle, has_sequence_privilege(s.seqrelid, 'USAGE') "
    "FROM pg_sequence AS s WHERE s.seqrelid = to_regclass($1)",
)


def try_lock(sequence: str) -> PgStatement:
    """Take a lock if it is free, and return its token or 0. Parameters: lock, mark, ttl, idle timeout, proposal."""
    return PgStatement(
        "tenure_try_lock",
        "SELECT t, pg_backend_pid(), CASE WHEN t > 0 THEN pg_try_advisory_lock_shared(-t) END, "  # noqa: S608 - checked
        "CASE WHEN t > 0 THEN set_config('idle_session_timeout', $4, false) END FROM (SELECT CASE "
        "WHEN pg_try_advisory_lock_shared($2::int, $3::int) THEN CASE "
        f"WHEN pg_try_advisory_lock($1::bigint) THEN {_next(sequence, '$5::bigint')} "
        "WHEN pg_advisory_unlock_shared($2::int, $3::int) THEN $5::bigint * 0 ELSE $5::bigint * 0 END "
        f"ELSE {MARK_TAKEN} END AS t OFFSET 0) AS grant_",
    )


def wait_for_lock(key: LockKey, ttl: int, terms: LockTerms, sequence: str) -> str:
    """Wait in the database's queue for a lock; the last statement returns its token or nothing.

    The block catches its own timeout, so that the server logs no error. It is no prepared statement, because such
    blocks take no parameters: all values are numbers.
    """
    return (
        "DO $tenure$ DECLARE t bigint; BEGIN "
        f"PERFORM set_config('lock_timeout', '{max(1, round(terms.wait * 1000))}', true); "
        f"PERFORM pg_advisory_lock_shared({key.mark}, {ttl}); "
        f"PERFORM pg_advisory_lock({key.number}); "
        f"PERFORM set_config('idle_session_timeout', '{ttl}', false); "
        f"t := {_next(sequence, str(terms.proposal))}; "
        "PERFORM pg_advisory_lock_shared(-t), set_config('tenure.token', t::text, true); "
        "EXCEPTION WHEN lock_not_available THEN "
        f"PERFORM pg_advisory_unlock_all(); END $tenure$; "
        "SELECT current_setting('tenure.token', true), pg_backend_pid()"
    )


def last_token(sequence: str) -> PgStatement:
    """Return the last token of a sequence."""
    return PgStatement("tenure_last_token", f"SELECT coalesce(pg_sequence_last_value('{sequence}'::regclass), 0)")


def next_token(sequence: str) -> PgStatement:
    """Draw a token that no lease gets."""
    return PgStatement("tenure_next_token", f"SELECT nextval('{sequence}'::regclass)")


def _next(sequence: str, proposal: str) -> str:
    return f"nextval('{sequence}'::regclass)" if sequence else proposal
