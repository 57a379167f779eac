"""The statements of one deployment, with their values in them.

The SQL is what MySQL 8 and MariaDB 10.5 have in common. Every text in it is ASCII: what is not plain is written in
hexadecimal. So neither the character set of a connection nor its modes change what a value means.
"""

import re
from collections.abc import Iterable
from functools import partial

from tenure.contracts.messages import AcquireRequest, RenewRequest
from tenure.stores.mysql.schema import expand
from tenure.stores.mysql.snapshots import READ
from tenure.stores.sql.database import split_version
from tenure.stores.sql.rows import COLUMNS, SqlRow, pack_holder

PLAIN = re.compile(r"[A-Za-z0-9\n _.,:;/+=<>(){}\[\]\"|*!#^~-]*")
"""The texts that are written as they are."""

SAME = "@tenure_same"
"""The variable of a session that tells how many rows of an atomic write have the versions that it replaces."""


def text(value: str) -> str:
    """Write a text."""
    return f"'{value}'" if PLAIN.fullmatch(value) else raw(value.encode())


def literal(value: bytes) -> str:
    """Write a text, of which only the bytes are known: a part of one may begin within a character."""
    return text(value.decode()) if value.isascii() else raw(value)


def raw(value: bytes) -> str:
    """Write bytes."""
    return f"X'{value.hex()}'"


def texts(values: Iterable[str]) -> str:
    """Write a list of texts."""
    return ", ".join(map(text, values))


NEWLINE = b"\n"

LONG = 2_000
"""A text is patched if so many bytes of it stay: the server looks at each byte of a text in a statement."""


def patch(column: str, before: bytes, after: bytes) -> str:
    """Write a text where a column has another: what changes, and what stays of the lines but the first and the last.

    Of the state of a long queue, one or two lines change besides those.
    """
    first, _, rest = after.partition(NEWLINE)
    lines, _, last = rest.rpartition(NEWLINE)
    start, end = before.find(NEWLINE) + 1, before.rfind(NEWLINE)
    old = before[start:end] if start else b""
    head = _common(old, lines)
    tail = _common(old[head:][::-1], lines[head:][::-1])
    if head + tail < LONG:
        return literal(after)
    kept = [f"SUBSTRING({column}, {at + 1}, {size})" for at, size in ((start, head), (end - tail, tail))]
    new = [literal(each) for each in (first + NEWLINE, lines[head : len(lines) - tail], NEWLINE + last)]
    return f"CONCAT({new[0]}, {kept[0]}, {new[1]}, {kept[1]}, {new[2]})"


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


ACQUIRE = (
    "UPDATE $names AS n JOIN $meta AS m ON m.one = 1 SET n.version = IF(n.version = 0, $now, n.version + 1), "
    "n.counter = LAST_INSERT_ID(GREATEST(n.counter + 1, m.floor + 1, IF($now <= $latest, $now, 0), "
    "LEAST(%(proposal)d, LEAST($now, $latest) + $proposal_bound)) + %(more)d), n.request_id = %(request_id)s, "
    "n.holder = %(holder)s, n.ttl = %(ttl)d, n.lock_delay = %(lock_delay)d, n.granted_at = $now, "
    "n.expires_at = $now + %(ttl)d, n.used_at = $now, n.idle_after = $now + %(ttl)d + %(lock_delay)d "
    "WHERE n.name = %(name)s AND n.plain = 1 AND n.used_at <= $now "
    "AND (n.request_id = '' OR (n.expires_at <= $now AND n.lock_delay = 0)) "
    "AND n.last_released <> %(request_id)s AND LOCATE(%(request_id)s, n.tombstones) = 0 "
    "AND m.timeline = $timeline AND (m.started = $started OR $started = 0) AND m.quarantined_until <= $now "
    "AND m.form <= $reads"
)
"""Grants a plain row that is free. The token is what LAST_INSERT_ID(...) is given. An UPDATE of two tables assigns in
no certain order, so no expression reads a column that another one sets."""

MAKE = (
    "INSERT IGNORE INTO $names SELECT %(name)s, 0, m.floor, 1, '', '', 0, 0, 0, 0, '', '', 0, $now, '', '' "
    "FROM $meta AS m WHERE m.one = 1 AND m.form <= $reads AND $now < %(before)d LOCK IN SHARE MODE"
)
"""Makes an idle row if there is none. It locks the row of the floor, so that no sweep raises the floor meanwhile."""

RELEASE = (
    "UPDATE $names SET version = version + 1, request_id = '', holder = '', last_released = %(request_id)s, "
    "used_at = $now, idle_after = $now "
    "WHERE name = %(name)s AND plain = 1 AND request_id = %(request_id)s AND expires_at > $now AND used_at <= $now"
)

RENEW = (
    "UPDATE $names SET version = version + 1, expires_at = GREATEST(expires_at, $now + %(ttl)d), "
    "idle_after = GREATEST(expires_at, $now + %(ttl)d) + lock_delay, ttl = GREATEST(ttl, %(ttl)d), used_at = $now "
    "WHERE name = %(name)s AND plain = 1 AND request_id = %(request_id)s AND counter = %(token)d "
    "AND expires_at > $now AND used_at <= $now AND expires_at <= $now + ttl "
    "AND EXISTS (SELECT 1 FROM $meta AS m WHERE m.one = 1 AND m.form <= $reads)"
)
"""Renews one lease. It leaves a lease alone that ends later than its ttl from now: the clock has stepped back, or a
later renewal came first."""

WRITE = (
    "UPDATE $names SET version = %(version)s, counter = %(counter)d, plain = %(plain)d, request_id = %(request_id)s, "
    "holder = %(holder)s, ttl = %(ttl)d, lock_delay = %(lock_delay)d, granted_at = %(granted_at)d, "
    "expires_at = %(expires_at)d, last_released = %(last_released)s, tombstones = %(tombstones)s, "
    "used_at = %(used_at)d, idle_after = %(idle_after)d, state = %(state)s, heads = %(heads)s "
    "WHERE name = %(name)s AND version = %(before)d%(if)s AND EXISTS (SELECT 1 FROM $meta AS m WHERE m.one = 1 "
    "AND m.form <= $reads AND m.quarantined_since = %(since)d AND m.timeline = $timeline "
    "AND (m.started = $started OR $started = 0))"
)

SEND = (
    "INSERT INTO $messages (channel, payload, sent_at) SELECT %(channel)s, %(payload)s, $now FROM $meta AS m "
    "WHERE m.one = 1 AND %(if)s"
)
"""Leaves a message after the write of its row."""

WRITTEN = "@tenure_written_%d"
"""The variable of a session that tells whether the row of this number was written."""


READ_CELL = (
    "SELECT $now, $mark, m.timeline = $timeline AND (m.started = $started OR $started = 0), m.quarantined_since, "
    "c.version, c.content FROM $meta AS m LEFT JOIN $cells AS c ON c.name = %(name)s WHERE m.one = 1"
)

CELL_KNOWN = 2
"""The column that tells whether this is the server that wrote what the tables say."""

MAKE_CELL = (
    "INSERT IGNORE INTO $cells SELECT %(name)s, GREATEST($now, m.floor), '', $now + %(keep)d FROM $meta AS m "
    "WHERE m.one = 1 AND m.form <= $reads LOCK IN SHARE MODE"
)
"""Makes the row of a removed cell if there is none. It locks the row of the floor, as MAKE does."""

WRITE_CELL = (
    "UPDATE $cells SET version = LAST_INSERT_ID(GREATEST(version + 1, $now)), content = %(value)s, "
    "kept_until = %(until)s WHERE name = %(name)s AND %(if)s AND EXISTS (SELECT 1 FROM $meta AS m WHERE m.one = 1 "
    "AND m.form <= $reads AND %(since)s AND m.timeline = $timeline AND (m.started = $started OR $started = 0))"
)
"""Writes a cell: not at a server that may have forgotten others, nor after a quarantine that the reader has not seen.

A version is at least the clock: of two servers that have parted, the one that is behind does not count up to the
versions that the other one gave.
"""


class MySqlStatements:
    """The statements on the tables of one prefix."""

    def __init__(self, prefix: str) -> None:
        """Fill in the names of the tables."""
        make = partial(expand, schema="", prefix=prefix)
        self._read, self._acquire, self._make = make(READ), make(ACQUIRE), make(MAKE)
        self._release, self._renew, self._write, self._send = make(RELEASE), make(RENEW), make(WRITE), make(SEND)
        self._same = make("SELECT COUNT(*) INTO @tenure_same FROM $names WHERE %s FOR UPDATE")
        self._lock = make("SELECT 1 FROM $names WHERE name IN (%s) ORDER BY name FOR UPDATE")
        self.look = make("SELECT $mark, m.longest_ttl FROM $meta AS m")
        self.raise_form = make("UPDATE $meta SET form = $form, needs = $needed WHERE form < $form")
        self._lengthen = make(
            "UPDATE $meta SET started = IF(longest_ttl = 0 AND started = 0, $started, started), longest_ttl = %d "
            "WHERE longest_ttl < %d"
        )
        self._begin_quarantine = make(
            "UPDATE $meta SET quarantined_since = $now, quarantined_until = $now + GREATEST(longest_ttl, %d), "
            "timeline = $timeline, started = IF($started = 0, started, $started) "
            "WHERE one = 1 AND form <= $reads AND NOT (timeline = $timeline AND (started = $started OR $started = 0))"
        )
        self._shorten_quarantine = make(
            "UPDATE $meta SET quarantined_until = $now + GREATEST(longest_ttl, %d) "
            "WHERE one = 1 AND form <= $reads AND quarantined_until > $now + GREATEST(longest_ttl, %d)"
        )
        self.clock = make("SELECT $now")
        self._read_cell, self._make_cell, self._write_cell = make(READ_CELL), make(MAKE_CELL), make(WRITE_CELL)
        self._kept_until = make("$now + %d")
        self._next_cell = make("SELECT name FROM $cells WHERE name > %s ORDER BY name LIMIT 1 OFFSET %d")
        self._old_cells = make(
            "SELECT name, version FROM $cells JOIN $meta ON form <= $reads "
            "WHERE name > %s%s AND kept_until BETWEEN 1 AND $now "
            "ORDER BY name LIMIT %d"
        )
        self._forget_cells = make(
            "DELETE FROM $cells WHERE name IN (%s) AND kept_until BETWEEN 1 AND $now AND version <= %d"
        )
        self.doubt = make("UPDATE $meta SET timeline = ''")
        self.end_quarantine = make("UPDATE $meta SET quarantined_until = $now WHERE quarantined_until > $now")
        self._names = make(
            "SELECT $mark, name FROM $meta AS m LEFT JOIN (SELECT name FROM $names WHERE idle_after > $now "
            "AND name > %s AND name >= %s AND name < %s ORDER BY name LIMIT %d) AS n ON 1 = 1 ORDER BY name"
        )
        self._next = make("SELECT name FROM $names WHERE name > %s ORDER BY name LIMIT 1 OFFSET %d")
        self._old = make(
            "SELECT name, counter FROM $names JOIN $meta ON form <= $reads "
            "WHERE name > %s%s AND idle_after < $now - %d ORDER BY name LIMIT %d"
        )
        self._raise_floor = make("UPDATE $meta SET floor = GREATEST(floor, %d) WHERE one = 1")
        self._forget = make(
            "DELETE FROM $names WHERE name IN (%s) AND idle_after < $now - %d AND version > 0 AND counter <= %d"
        )
        self._forget_messages = make("DELETE FROM $messages WHERE sent_at < $now - %d ORDER BY id LIMIT %d")
        self._messages = make("SELECT id, payload FROM $messages WHERE channel = %s ORDER BY id LIMIT %d")
        self._delete_messages = make("DELETE FROM $messages WHERE id IN (%s)")
        self._sleep = make("SELECT SLEEP(%s) FROM $meta WHERE NOT EXISTS (SELECT 1 FROM $messages WHERE channel = %s)")

    # -- names -------------------------------------------------------------------------------------------------

    def read(self, names: Iterable[str], longest_ttl: int) -> str:
        """Return a snapshot of some names."""
        return self._read % {"names": texts(names), "longest": longest_ttl}

    def acquire(self, request: AcquireRequest) -> str:
        """Grant a plain row that is free."""
        return self._acquire % {
            "proposal": request.proposal,
            "more": request.span - 1,
            "request_id": text(request.request_id),
            "holder": text(pack_holder(request.channel, request.owner, notify_contended=request.span > 1)),
            "ttl": request.ttl,
            "lock_delay": request.lock_delay,
            "name": text(request.name),
        }

    def make(self, name: str, before: int) -> str:
        """Make an idle row if there is none, and the clock does not show the instant `before` yet."""
        return self._make % {"name": text(name), "before": before}

    def release(self, name: str, request_id: str) -> str:
        """End the lease of a request in a plain row."""
        return self._release % {"name": text(name), "request_id": text(request_id)}

    def renew(self, renewal: RenewRequest) -> str:
        """Renew the lease in a plain row."""
        return self._renew % {
            "name": text(renewal.name),
            "request_id": text(renewal.request_id),
            "token": renewal.token,
            "ttl": renewal.ttl,
        }

    def write(self, row: SqlRow, since: int, state: str = "", of: int = 0) -> str:
        """Write a row that still has its version; if it is one `of` several, only if all of them have theirs.

        `since` is the quarantine of the snapshot: a server that may have forgotten grants since then writes nothing.
        `state` is that of the row of this version.
        """
        cells = {name: getattr(row, name) for name in COLUMNS if name != "state"}
        return self._write % {
            **{name: text(cell) if isinstance(cell, str) else cell for name, cell in cells.items()},
            "version": "version + 1" if row.version else expand("$now", "", ""),
            "state": patch("state", state.encode(), row.state.encode()),
            "before": row.version,
            "since": since,
            "if": f" AND {SAME} = {of}" if of else "",
        }

    def lock(self, names: Iterable[str]) -> str:
        """Lock the rows of some names, in the order of the names."""
        return self._lock % texts(names)

    def lock_all(self, rows: Iterable[SqlRow]) -> str:
        """Lock some rows, and count those that still have their versions."""
        return self._same % " OR ".join(f"(name = {text(row.name)} AND version = {row.version})" for row in rows)

    def send(self, channel: str, payload: bytes, number: int) -> str:
        """Leave a message for a channel, if the row of this number was written."""
        return self._send % {"channel": text(channel), "payload": raw(payload), "if": f"{WRITTEN % number} = 1"}

    def names(self, prefix: str, after: str, most: int) -> str:
        """Return names in use that start with a prefix. No UTF-8 has a byte 255, so that one is after all of them."""
        start = prefix.encode()
        return self._names % (text(after), text(prefix), raw(start + b"\xff"), most)

    # -- cells -------------------------------------------------------------------------------------------------

    def read_cell(self, name: str) -> str:
        """Return the time, and a cell."""
        return self._read_cell % {"name": text(name)}

    def make_cell(self, name: str, keep: int) -> str:
        """Make the row of a removed cell if there is none."""
        return self._make_cell % {"name": text(name), "keep": keep}

    def write_cell(self, name: str, value: bytes, version: int, keep: int) -> str:
        """Write a cell that has this version (0: that is removed)."""
        since, before = split_version(version)
        return self._write_cell % {
            "name": text(name),
            "value": raw(value),
            "until": self._kept_until % keep if keep else "0",
            "if": f"version = {before} AND content <> ''" if version else "content = ''",
            "since": f"m.quarantined_since = {since}" if version else "1",
        }

    def next_cell(self, after: str, most: int) -> str:
        """Return the last of the next names of cells, if there are `most`."""
        return self._next_cell % (text(after), most - 1)

    def old_cells(self, after: str, last: str, most: int) -> str:
        """Return the cells whose time is over, after a name and up to the last one, and their versions."""
        return self._old_cells % (text(after), f" AND name <= {text(last)}" if last else "", most)

    def forget_cells(self, names: Iterable[str], version: int) -> str:
        """Delete cells whose time is over, and whose versions are no larger than this one."""
        return self._forget_cells % (texts(names), version)

    # -- old rows ----------------------------------------------------------------------------------------------

    def next(self, after: str, most: int) -> str:
        """Return the last of the next names, if there are `most`."""
        return self._next % (text(after), most - 1)

    def old(self, after: str, last: str, retention: int, most: int) -> str:
        """Return the old names that follow a name, up to the last one, and their counters."""
        return self._old % (text(after), f" AND name <= {text(last)}" if last else "", retention, most)

    def raise_floor(self, counter: int) -> str:
        """Raise the floor to a counter."""
        return self._raise_floor % counter

    def forget(self, names: Iterable[str], retention: int, counter: int) -> str:
        """Delete old rows whose counters are no larger than this one."""
        return self._forget % (texts(names), retention, counter)

    def forget_messages(self, retention: int, most: int) -> str:
        """Delete messages that nobody has read."""
        return self._forget_messages % (retention, most)

    # -- the server --------------------------------------------------------------------------------------------

    def lengthen(self, longest_ttl: int) -> str:
        """Note the longest ttl of a client; the first one of all also notes when the server started."""
        return self._lengthen % (longest_ttl, longest_ttl)

    def begin_quarantine(self, longest_ttl: int) -> tuple[str, str]:
        """Begin a quarantine, unless another client has done so; shorten one that a clock's step back has stretched."""
        return self._begin_quarantine % longest_ttl, self._shorten_quarantine % (longest_ttl, longest_ttl)

    # -- messages ----------------------------------------------------------------------------------------------

    def sleep(self, channel: str, seconds: float) -> str:
        """Wait until the statement is ended by KILL QUERY, or this time has passed; not while there is a message.

        A sender leaves its message first. If its KILL QUERY comes before this statement, this statement sees the
        message; otherwise it is ended.
        """
        return self._sleep % (f"{seconds:g}", text(channel))

    def messages(self, channel: str, most: int) -> str:
        """Return the first messages of a channel."""
        return self._messages % (text(channel), most)

    def delete_messages(self, ids: Iterable[int]) -> str:
        """Delete messages."""
        return self._delete_messages % ", ".join(map(str, ids))


def note_written(number: int) -> str:
    """Note whether the statement before this one wrote its row, as that of a number."""
    return f"SET {WRITTEN % number} = ROW_COUNT()"


def end_sleep(channel: str, number: int | None = None) -> str:
    """End the sleep of the session of a channel; if `number` is given, only if the row of this number was written.

    This fails if there is no such session.
    """
    session = f"IS_USED_LOCK({text(channel)})"
    return f"KILL QUERY {session if number is None else f'IF({WRITTEN % number} = 1, {session}, NULL)'}"
