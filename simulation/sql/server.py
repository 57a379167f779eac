"""The tables and functions of Tenure in a database: what schema.sql does, in Python, each function in one instant.

Property tests hold these functions against the real ones, with the same histories on both.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tenure.contracts.cells import Cell
from tenure.contracts.messages import (
    AcquireRequest,
    NotGranted,
    Notification,
    NotificationKind,
    Queued,
    RenewRequest,
    WithdrawRequest,
)
from tenure.stores import table_codec
from tenure.stores.sql.database import SqlSnapshot, SqlWrite, join_version
from tenure.stores.sql.rows import SqlRow, heads_of, owner_in, pack_holder
from tenure.table.state import Queue, Waiter
from tenure.table.times import RETRY, TOMBSTONE, must_be_told, next_token, retry_in, silence_factor

NEW_FOR = 60_000_000
"""For how long after it was not found a row may be made, in microseconds."""


@dataclass(slots=True, frozen=True)
class SqlRules:
    """How the clients of a database guard it."""

    longest_ttl: int = 0
    """The longest ttl, in microseconds: the length of a quarantine."""
    strict: bool = False
    """Whether any restart of the server begins a quarantine."""
    guarded: bool = True
    """Whether clients heed a quarantine."""
    queues: bool = False
    """Whether `acquire` adds waiters and `release` hands over to them, as in PostgreSQL."""


@dataclass(slots=True)
class SqlMeta:
    """The row of the table `meta`."""

    floor: int = 0
    timeline: int = 1
    started: int = 1
    longest_ttl: int = 0
    quarantined_since: int = 0
    quarantined_until: int = 0


@dataclass(slots=True)
class SqlData:
    """What is replicated. A row is never changed, but replaced."""

    rows: dict[str, SqlRow] = field(default_factory=dict[str, SqlRow])
    meta: SqlMeta = field(default_factory=SqlMeta)
    cells: dict[str, tuple[bytes, int]] = field(default_factory=dict[str, tuple[bytes, int]])
    """By name: the value, and the version. A removed cell stays, without a value."""

    def copy(self) -> "SqlData":
        """Return a copy, which later changes leave as it is."""
        return SqlData(dict(self.rows), replace(self.meta), dict(self.cells))


class SqlServer:
    """A database server: its functions, and the sessions that listen."""

    def __init__(self, clock: Callable[[], int], changed: Callable[[list[str], int, frozenset[str]], None]) -> None:
        """Start empty.

        After each write `changed` is called with the names, the instant of the step, and the requests that the step
        granted by a notification.
        """
        self.data = SqlData()
        self.timeline = 1
        self.started = 1
        self.channels: dict[str, Callable[[Notification], None]] = {}
        self._clock = clock
        self._changed = changed

    def is_new(self, rules: SqlRules) -> bool:
        """Tell whether this server may have forgotten grants, and no quarantine has begun for that."""
        meta = self.data.meta
        return meta.timeline != self.timeline or (rules.strict and meta.started != self.started)

    def lengthen(self, rules: SqlRules) -> None:
        """Note the longest ttl of a client."""
        self.data.meta.longest_ttl = max(self.data.meta.longest_ttl, rules.longest_ttl)

    # -- one statement -------------------------------------------------------------------------------------

    def acquire(self, request: AcquireRequest, rules: SqlRules) -> int | Queued | SqlSnapshot:
        """Grant a plain row that is free, and return the token; or add a waiter; else return a snapshot."""
        now, meta = self._clock(), self.data.meta
        row = self.data.rows.get(request.name) or SqlRow(request.name)
        if (
            row.plain
            and (row.request_id == "" or (row.expires_at <= now and row.lock_delay == 0))
            and row.last_released != request.request_id
            and request.request_id not in row.tombstones
            and not self.is_new(rules)
            and meta.quarantined_until <= now
        ):
            token = next_token(max(row.counter, meta.floor), request.proposal, now) + request.span - 1
            self._store(
                row,
                now,
                **_lease(request, token, now),
                used_at=max(row.used_at, now),
                idle_after=now + request.ttl + request.lock_delay,
            )
            self._changed([row.name], now, frozenset())
            return token
        if rules.queues and request.wait and request.channel and self._may_wait(row, request, rules, now):
            if request.request_id not in row.queue:
                return self._join(row, request, rules, now)
            if f",{table_codec.dump_request(request)}]" in row.queue:
                return self._stay_alive(row, request, rules, now)
        return self.read([request.name], rules)

    def _may_wait(self, row: SqlRow, request: AcquireRequest, rules: SqlRules, now: int) -> bool:
        """Tell whether a waiter can wait behind a holder that lasts, and nothing else has to be done."""
        return (
            (row.plain or row.waiting > 0)
            and row.request_id not in {"", request.request_id}
            and row.last_released != request.request_id
            and request.request_id not in row.tombstones
            and self._lasts(row, rules, now)
        )

    def _lasts(self, row: SqlRow, rules: SqlRules, now: int) -> bool:
        """Tell whether the lease of a row lasts, and neither the clock nor the server is another one."""
        return (
            now < row.expires_at <= now + row.ttl
            and row.used_at <= now
            and not self.is_new(rules)
            and self.data.meta.quarantined_until <= now
        )

    def _join(self, row: SqlRow, request: AcquireRequest, rules: SqlRules, now: int) -> Queued:
        queue = table_codec.load_queue(row.name, row.queue) if row.queue else Queue()
        fresh_until = now + request.waiter_ttl * silence_factor(request, row.waiting)
        queue.join(Waiter(request, now, fresh_until))
        self._store_queue(row, now, queue, idle_after=max(row.idle_after, fresh_until))
        self._changed([row.name], now, frozenset())
        channel, _, notify_contended = json.loads(row.holder)
        if row.waiting == 0 and notify_contended:
            self._tell(Notification(channel, NotificationKind.CONTENDED, row.request_id))
        return self._queued(row, request, row.waiting, rules, now)

    def _stay_alive(self, row: SqlRow, request: AcquireRequest, rules: SqlRules, now: int) -> Queued:
        """Note that a waiter has asked again."""
        queue = table_codec.load_queue(row.name, row.queue)
        place = queue.place(request.request_id)
        fresh_until = queue[place].fresh_until = now + request.waiter_ttl * silence_factor(request, place)
        self._store_queue(row, now, queue, idle_after=max(row.idle_after, fresh_until))
        self._changed([row.name], now, frozenset())
        channel, _, notify_contended = json.loads(row.holder)
        if notify_contended:
            self._tell(Notification(channel, NotificationKind.CONTENDED, row.request_id))
        return self._queued(row, request, place, rules, now)

    def _queued(self, row: SqlRow, request: AcquireRequest, place: int, rules: SqlRules, now: int) -> Queued:
        counter = max(row.counter, self.data.meta.quarantined_until - 1) if rules.longest_ttl else row.counter
        retry = retry_in(request, place, row.expires_at - now, silence_factor(request, place))
        return Queued(counter, retry, place)

    def release(self, name: str, request_id: str, rules: SqlRules) -> SqlSnapshot | None:
        """End the lease of a request in a plain row, or hand it over, and return None; else return a snapshot."""
        now, row = self._clock(), self.data.rows.get(name)
        if row is not None and row.plain and row.request_id == request_id and row.expires_at > now:
            self._store(
                row,
                now,
                request_id="",
                holder="",
                last_released=request_id,
                used_at=max(row.used_at, now),
                idle_after=now,
            )
            self._changed([name], now, frozenset())
            return None
        if row is not None and row.waiting and row.request_id == request_id:
            queue = table_codec.load_queue(name, row.queue)
            if self._may_hand_over(row, queue[0], rules, now):
                self._hand_over(row, queue, now)
                return None
        return self.read([name], rules)

    def _may_hand_over(self, row: SqlRow, first: Waiter, rules: SqlRules, now: int) -> bool:
        """Tell whether the first waiter is alive, and nothing else has to be done."""
        return self._lasts(row, rules, now) and first.fresh_until >= now and first.request.channel in self.channels

    def _hand_over(self, row: SqlRow, queue: Queue, now: int) -> None:
        request = queue[0].request
        queue.drop(request.request_id)
        token = next_token(row.counter, request.proposal, now) + request.span - 1
        self._store_queue(
            row,
            now,
            queue,
            **_lease(request, token, now),
            last_released=row.request_id,
            idle_after=max(row.idle_after, now + request.ttl + request.lock_delay),
        )
        self._changed([row.name], now, frozenset((request.request_id,)))
        kind, contended = NotificationKind.GRANTED, bool(queue)
        self._tell(Notification(request.channel, kind, request.request_id, token, contended=contended))
        self._tell_head(queue, now, now + request.ttl)

    def _tell_head(self, queue: Queue, now: int, expires_at: int) -> None:
        """Tell a new head when to ask, unless it asks again anyway before the lease ends."""
        if queue and must_be_told(queue[0].request, queue[0].fresh_until, expires_at):
            channel, after = queue[0].request.channel, max(expires_at - now, RETRY)
            self._tell(Notification(channel, NotificationKind.HEAD, queue.head, after=after))

    def withdraw(self, withdraw: WithdrawRequest, rules: SqlRules) -> NotGranted | None:
        """Remove a waiter from the queue of a lease that lasts; None if a step has to do that."""
        name, request_id = withdraw.name, withdraw.request_id
        now, row = self._clock(), self.data.rows.get(name)
        if row is None or not row.waiting or row.request_id == request_id or not self._lasts(row, rules, now):
            return None
        queue = table_codec.load_queue(name, row.queue)
        if queue.find(request_id) is None:
            return None
        place = queue.place(request_id)
        queue.drop(request_id)
        idle_after = max(row.expires_at + row.lock_delay, *(waiter.fresh_until for waiter in queue), 0)
        tombstones: dict[str, int] = json.loads(row.tombstones or "{}")
        if withdraw.unsure:
            tombstones = {each: end for each, end in tombstones.items() if end > now and each != request_id}
            tombstones[request_id] = now + TOMBSTONE
        kept = json.dumps(tombstones) if tombstones else ""
        self._store_queue(row, now, queue, idle_after=idle_after, tombstones=kept)
        self._changed([name], now, frozenset())
        if place == 0:
            self._tell_head(queue, now, row.expires_at)
        return NotGranted((owner_in(row.holder),), place)

    def _store_queue(self, row: SqlRow, now: int, queue: Queue, **changes: object) -> None:
        self._store(
            row,
            now,
            plain=not queue,
            queue=table_codec.dump_queue(queue) if queue else "",
            waiting=len(queue),
            used_at=now,
            **changes,
        )

    def renew(self, renewals: Sequence[RenewRequest]) -> frozenset[str]:
        """Renew the leases in plain rows that last; return the ids of their requests."""
        now, renewed = self._clock(), list[str]()
        for each in renewals:
            row = self.data.rows.get(each.name)
            if (
                row is not None
                and (row.plain or (row.waiting > 0 and row.used_at <= now))
                and row.request_id == each.request_id
                and row.counter == each.token
                and row.expires_at > now
            ):
                expires_at = max(min(row.expires_at, now + row.ttl), now + each.ttl)
                self._store(
                    row,
                    now,
                    ttl=max(row.ttl, each.ttl),
                    expires_at=expires_at,
                    used_at=max(row.used_at, now),
                    idle_after=max(row.idle_after if row.waiting else 0, expires_at + row.lock_delay),
                )
                each.contended = row.waiting > 0
                self._changed([each.name], now, frozenset())
                renewed.append(each.request_id)
        return frozenset(renewed)

    # -- steps ---------------------------------------------------------------------------------------------

    def read(self, names: Sequence[str], rules: SqlRules) -> SqlSnapshot:
        """Return a snapshot of some rows. Begin a quarantine if this server may have forgotten grants."""
        now, meta, rows = self._clock(), self.data.meta, self.data.rows
        longest = now + max(meta.longest_ttl, rules.longest_ttl)
        if self.is_new(rules):
            meta.timeline, meta.started = self.timeline, self.started
            meta.quarantined_since = now
            meta.quarantined_until = longest
        meta.quarantined_until = min(meta.quarantined_until, longest)  # the clock may have stepped back
        found = [rows.get(name) or SqlRow(name) for name in names]
        heads = [channel for row in found for channel in (row.heads or _heads_in(row)).split()]
        silent = frozenset(channel for channel in heads if channel not in self.channels)
        until = meta.quarantined_until if rules.guarded else 0
        return SqlSnapshot(now, found, meta.floor, silent, meta.quarantined_since, until)

    def write(self, write: SqlWrite, rules: SqlRules) -> frozenset[str]:
        """Write the rows that still have the version that they replace, and send notifications; return their names."""
        now, rows = self._clock(), self.data.rows
        if self.is_new(rules) or write.quarantined_since != self.data.meta.quarantined_since:
            return frozenset()
        if write.atomic and not all(self._is_current(row, write, now) for row in write.rows):
            return frozenset()
        written = [row for row in write.rows if self._is_current(row, write, now)]
        for row in written:
            rows[row.name] = replace(row, version=row.version + 1 if row.version else now)
        told = [each for row in written for each in write.notifications.get(row.name, ())]
        granted = frozenset(each.request_id for each in told if each.kind is NotificationKind.GRANTED)
        self._changed([row.name for row in written], write.as_of, granted)
        for each in told:
            self._tell(each)
        return frozenset(row.name for row in written)

    def transact(self, names: Sequence[str], work: Callable[[SqlSnapshot], SqlWrite], rules: SqlRules) -> bool:
        """Write what `work` makes of a snapshot; return whether all of it was written."""
        write = work(self.read(names, rules))
        return len(self.write(write, rules)) == len(write.rows)

    def _tell(self, notification: Notification) -> None:
        """Send a notification, if its client listens."""
        if notification.channel in self.channels:
            self.channels[notification.channel](notification)

    def _is_current(self, row: SqlRow, write: SqlWrite, now: int) -> bool:
        """Tell whether a row has the version that it has to be replaced in."""
        present = self.data.rows.get(row.name)
        if present is None:
            return row.version == 0 and now < write.as_of + NEW_FOR
        return present.version == row.version

    def _store(self, row: SqlRow, now: int, **changes: object) -> None:
        """Replace a row by its next version."""
        version = row.version + 1 if row.version else now
        self.data.rows[row.name] = replace(row, version=version, **changes)  # type: ignore[arg-type]  # columns

    # -- others --------------------------------------------------------------------------------------------

    def names(self, prefix: str, after: str, most: int) -> list[str]:
        """Return names in use."""
        now = self._clock()
        found = sorted(
            name
            for name, row in self.data.rows.items()
            if row.idle_after > now and name > after and name.startswith(prefix)
        )
        return found[:most]

    def sweep(self, after: str, most: int, retention: int) -> str:
        """Delete the old rows among those that follow a name; return the last name that was looked at."""
        rows, meta, before = self.data.rows, self.data.meta, self._clock() - retention
        looked_at = sorted(name for name in rows if name > after)[:most]
        for name in [each for each in looked_at if rows[each].idle_after < before]:
            meta.floor = max(meta.floor, rows.pop(name).counter)
        return looked_at[-1] if len(looked_at) == most else ""

    def read_cell(self, name: str, rules: SqlRules) -> Cell:
        """Return a cell. Begin a quarantine if this server may have forgotten grants."""
        since = self.read([], rules).quarantined_since
        value, version = self.data.cells.get(name, (b"", 0))
        return Cell(value, join_version(since, version) if value else 0, self._clock())

    def write_cell(self, name: str, value: bytes, version: int, rules: SqlRules) -> Cell:
        """Write a cell if it has this version, and no quarantine has begun since it was read."""
        if self.read_cell(name, rules).version != version:
            return self.read_cell(name, rules)
        _, before = self.data.cells.get(name, (b"", 0))
        if value or before:
            self.data.cells[name] = value, max(before + 1, self._clock())
        return replace(self.read_cell(name, rules), written=True)

    def end_quarantine(self, rules: SqlRules) -> float:
        """End the quarantine at once; return for how many seconds it would still have lasted."""
        now = self.read([], rules).now
        until = self.data.meta.quarantined_until
        self.data.meta.quarantined_until = min(until, now)
        return max(0, until - now) / 1e6


def _lease(request: AcquireRequest, token: int, now: int) -> dict[str, object]:
    """Return what a row keeps of a lease that begins now."""
    return {
        "counter": token,
        "request_id": request.request_id,
        "holder": pack_holder(request.channel, request.owner, notify_contended=request.span > 1),
        "ttl": request.ttl,
        "lock_delay": request.lock_delay,
        "granted_at": now,
        "expires_at": now + request.ttl,
    }


def _heads_in(row: SqlRow) -> str:
    """Return the channels of the clients that wait first in a row whose waiters are kept apart."""
    return heads_of(table_codec.load_queue(row.name, row.queue)) if row.queue else ""
