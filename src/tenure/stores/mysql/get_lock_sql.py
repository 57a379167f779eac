"""The statements on named locks.

A named lock belongs to the whole server, and its name has at most 64 characters. So its name here is a hash of the
database, the prefix and the name. All statements are what MySQL 8 and MariaDB have in common, but for a `wait` that is
no whole number: MySQL would round it.
"""

from collections.abc import Sequence
from hashlib import blake2b

LONGEST_TIMEOUT = 2_147_483
"""The longest `wait_timeout` that servers of all systems take, in seconds: 24 days."""

SERVER = (
    "SELECT CONNECTION_ID(), VERSION(), DATABASE(), @@lower_case_table_names",
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'group_replication_single_primary_mode')",
)
"""Statements that show whether named locks exclude everybody at this server."""

FORGET_TIMEOUT = "SET SESSION wait_timeout = DEFAULT"
"""Let the session be idle for as long as any other."""


def lock_name(database: str, prefix: str, name: str) -> str:
    """Return the name of a lock at the server: `tenure:` and 32 hexadecimal digits of BLAKE2b."""
    parts = b"".join(b"%d:%b" % (len(part), part) for part in (text.encode() for text in (database, prefix, name)))
    return f"tenure:{blake2b(parts, digest_size=16, person=b'tenure').hexdigest()}"


def set_timeout(timeout: int) -> str:
    """Have the server end the session once it has sent nothing for so many seconds."""
    return f"SET SESSION wait_timeout = {timeout}"


OTHER_SESSION = -1
"""The reply to `lock` in another session than the one for which it was meant: nothing was done."""


def lock(name: str, wait: float, session: int) -> str:
    """Take a lock, or wait for it for so many seconds; return 1 if it was granted, 0 if not, NULL after an error."""
    get_lock = f"GET_LOCK('{name}', {f'{wait:.3f}' if wait else 0})"
    return f"SELECT IF(CONNECTION_ID() = {session}, {get_lock}, {OTHER_SESSION})"


def unlock(name: str) -> Sequence[str]:
    """Free a lock; the first result is 1 if the session held it."""
    return f"SELECT RELEASE_LOCK('{name}')", FORGET_TIMEOUT


def holder(name: str) -> str:
    """Return the session that holds a lock, or NULL; and the session that this statement runs in.

    For the session itself, it is a renewal: the server counts its idle time anew.
    """
    return f"SELECT IS_USED_LOCK('{name}'), CONNECTION_ID()"


def describe(session: int) -> str:
    """Return the user and the host of a session. Without the right PROCESS, a user sees the sessions of its own."""
    return f"SELECT USER, HOST FROM information_schema.PROCESSLIST WHERE ID = {session}"  # noqa: S608 - a number


def kill(name: str, session: int) -> str:
    """End a session if it holds a lock; else there is no session 0, which is error 1094."""
    return f"KILL {kill_operand(name, session)}"


def kill_operand(name: str, session: int) -> str:
    """Return the operand of KILL: looked up by the statement itself, so that no session is ended for a lock it had."""
    return f"IF(IS_USED_LOCK('{name}') = {session}, {session}, 0)"
