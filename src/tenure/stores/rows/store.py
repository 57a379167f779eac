"""The store over a table: each operation is a step of the grant table on a row that is written if it is unchanged.

**The clock.** A step needs an instant, and a table has no clock. So a row has a time of its own: the time that its last
writer wrote into it, and since then what this client has seen pass, by its steady clock, since it first saw this
version of the row. Between two writes at least as much time passes as the second writer has seen, because it saw the
first write's version only after it was written, and its own write is refused if that version is gone. So the time of a
row never runs faster than real time, whoever writes and however wrong the wall clocks are: no lease is taken for dead
too soon. It may run slower. docs/adr/0023-the-time-of-a-row.md has the whole argument.

What a client wrote or read last it remembers, and writes on top of it without a read: the write is refused if anybody
was faster. What needs no write rests on a read.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import count
from operator import methodcaller
from typing import Any, TypeVar

from tenure.contracts.cells import Cell
from tenure.contracts.findings import Finding, Report, ignore_findings
from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    Granted,
    NameView,
    NotGranted,
    Notification,
    NotificationKind,
    Page,
    Queued,
    ReleaseRequest,
    RenewReplies,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities, StoreSource
from tenure.doctor.rows import RULES
from tenure.errors import StoreError
from tenure.outcome import Outcome
from tenure.stores import table_codec
from tenure.stores.renewing import renew_apart
from tenure.stores.rows.access import SeenRow, TableAccess
from tenure.stores.rows.bounded import InThreads
from tenure.stores.rows.contract import AsyncRowTable, Row, RowTable, first_key, safe_key
from tenure.stores.rows.values import CELL, DELAY, LOCK, LockRow, cell_head, lasting, load_row
from tenure.stores.sql.shared_steps import LONGEST_POLL, SharedSteps, acquire_by_polling
from tenure.stores.tabled import Steps, TabledStore, Tried
from tenure.table.state import NameState
from tenure.table.step import Step

T = TypeVar("T")

PAGE = 100
"""How many rows one page of a listing reads."""

AT_ONCE = 16
"""How many leases are renewed side by side, in asyncio."""

NEWS_FOR, MOST_NEWS = 10_000_000, 32
"""How long a row keeps a notification, in microseconds of its time, and how many. Whoever misses one asks in time."""

CONTEND = 3
"""After so many refused writes in a row a step pauses before the next, and longer each time."""

MOST_PAUSE = 1.0
"""The longest of these pauses, in seconds."""

CAPABILITIES = Capabilities(
    min_ttl=1.0, queue=True, weights=True, runs_in_caller=False, barging=True, cells=True, hands_over=True
)


def row_source(
    title: str,
    make: Callable[[], RowTable],
    make_async: Callable[[], AsyncRowTable] | None = None,
    *,
    poll: float = LONGEST_POLL / 1e6,
    capabilities: Capabilities = CAPABILITIES,
) -> StoreSource:
    """Return a store over tables, for `Client(store=...)` and `AsyncClient(store=...)`.

    Args:
        title: the store in a few words, without secrets, for errors and `repr`.
        make: makes a table for threads; called when a client first needs it, and again after a fork.
        make_async: makes a table for asyncio. Without it, an AsyncClient calls that of threads in threads.
        poll: the longest time between two looks of a waiter, in seconds, if the table tells of no changes.
        capabilities: what the store can do.
    """
    awaited = make_async or (lambda: InThreads(title, make()))

    def open_table(form: str) -> RowTable | AsyncRowTable:
        return make() if form == "threads" else awaited()

    return StoreSource(title, capabilities, partial(RowStore, title, open_table, poll, capabilities))


@dataclass(slots=True)
class _Interest:
    """The requests of this client for a name, of which it hears."""

    requests: set[str] = field(default_factory=set[str])
    number: int = 0
    """The row whose news were delivered last."""


class _PromisingStep(Step):
    """A step that knows which leases it promised from now on: their pulses are written, even if nothing else changes.

    The time of a row may stand where it was at the last write. A renewal then finds a lease that ends no later than
    before, though others count from when they first saw that write.
    """

    __slots__ = ("promised",)
    promised: set[str]

    def acquire(self, request: AcquireRequest) -> Reply:
        """Grant the name, or queue the request, or refuse it."""
        reply = super().acquire(request)
        if isinstance(reply, Granted):
            self.promised.add(request.request_id)
        return reply

    def renew(self, renewal: RenewRequest) -> RenewReply:
        """Prolong a lease."""
        reply = super().renew(renewal)
        if reply is None:
            self.promised.add(renewal.request_id)
        return reply


class RowStore(TabledStore):
    """One client's access to locks in a table."""

    def __init__(
        self,
        title: str,
        make: Callable[[str], RowTable | AsyncRowTable],
        poll: float,
        capabilities: Capabilities,
        runtime: Runtime,
    ) -> None:
        self.capabilities = capabilities
        self._title = title
        self._access = TableAccess(title, make, runtime, self._tell)
        self._poll = round(poll * 1e6)
        self._runtime = runtime
        self._client = runtime.new_id()
        self._mutex = runtime.mutex()
        self._shared = SharedSteps(runtime, title, lambda name, _, work, until: self._take(name, work, until))
        self._channel = ""
        self._deliver: Callable[[Notification], None] = lambda _: None
        self.on_findings: Callable[[Sequence[Finding]], None] = ignore_findings
        self._interests: dict[str, _Interest] = {}
        """By the keys of names: what this client hears of them, if it watches the table."""

    def identity(self) -> str:
        """Return the title."""
        return self._title

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Make the table, and watch it if it can be watched."""
        self._deliver = deliver
        if self._access.open(self._heard) and not self._channel:
            self._channel = self._runtime.new_id()
        await self._access.read(safe_key(LOCK, "open"), until)  # so that a client that cannot reach it says so
        return self._channel

    async def examine(self, ttl: float, timeout: float) -> Report:  # noqa: ARG002
        """Look whether the table honours the conditions of writes."""
        self._access.open(self._heard)
        report = Report(self._title)
        report.add(await self._access.examine(self._runtime.now() + timeout), RULES)
        return report

    async def close(self) -> None:
        """Disconnect."""
        await self._access.close()

    def abandon(self) -> None:
        """In a forked child: forget the table of the parent."""
        self._access.abandon()

    # -- steps ---------------------------------------------------------------------------------------------

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant, queue or refuse the request."""
        key = safe_key(LOCK, request.name)
        work: Callable[[Step], Reply] = methodcaller("acquire", request)
        if request.wait:
            await self._shared.pause(request.name, until)
        if self._channel:
            with self._mutex:
                self._interests.setdefault(key, _Interest()).requests.add(request.request_id)
        else:
            work = lambda step: acquire_by_polling(step, request, self._poll, refresh=self._fades(key, request))  # noqa: E731
        reply = await self._shared.take(request.name, work, until)  # after an error it may have been granted
        if not isinstance(reply, Granted | Queued):
            self._leave(key, request.request_id)
        return reply

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Release the lease, and grant the name to the next waiter in the same step."""
        outcome = await super().release(release, until)
        self._leave(safe_key(LOCK, release.name), release.request_id)
        return outcome

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Remove a waiter from the queue."""
        reply = await super().withdraw(withdraw, until)
        self._leave(safe_key(LOCK, withdraw.name), withdraw.request_id)
        return reply

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Change a lease without a gap."""
        if adjust.successor and adjust.channel and adjust.channel == self._channel:
            with self._mutex:
                self._interests.setdefault(safe_key(LOCK, adjust.name), _Interest()).requests.add(adjust.successor)
        return await super().adjust(adjust, until)

    def _fades(self, key: str, request: AcquireRequest) -> bool:
        """Tell whether a waiter has to write again that it lives: for a quarter of its life it has not."""
        seen = self._access.seen(key)
        _, since = seen.parts.get(request.request_id, (None, 0.0)) if seen is not None else (None, 0.0)
        return (self._runtime.now() - since) * 1e6 > request.waiter_ttl // 4

    def _leave(self, key: str, request_id: str) -> None:
        """Hear no more of a request."""
        with self._mutex:
            interest = self._interests.get(key)
            if interest is not None:
                interest.requests.discard(request_id)
                if not interest.requests:
                    del self._interests[key]

    def _heard(self, key: str, row: Row) -> None:
        """Take the news of a change, in any thread."""
        self._runtime.post(partial(self._changed, key, row))

    def _changed(self, key: str, row: Row) -> None:
        """Deliver what a row has for this client; if changes may have been missed, say so."""
        if not key:
            self._deliver(Notification(self._channel, NotificationKind.GAP, ""))
        elif key in self._interests:
            with suppress(StoreError):  # whoever sends a request hears of it
                self._access.remember(key, row)

    def _tell(self, key: str, row: LockRow) -> None:
        """Deliver the news of a row that are newer than those that were delivered."""
        with self._mutex:
            interest = self._interests.get(key)
            if interest is None:
                return
            heard, interest.number = interest.number, max(interest.number, row.number)
        for number, _, *notification in row.news:
            if number > heard and notification[0] == self._channel:
                channel, kind, *rest = notification
                self._deliver(Notification(channel, NotificationKind(kind), *rest))
                if kind == NotificationKind.REVOKED:  # nobody releases it: it was taken by force, or handed over
                    self._leave(key, rest[0])

    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Take a step on one name."""
        return await self._shared.take(name, work, until)

    async def steps(self, names: Sequence[str], work: Callable[[Steps], T], until: float) -> T:
        """Refuse: a table writes one row at a time, so the store has no capability multi_acquire (ADR 25)."""
        raise NotImplementedError

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> RenewReplies:
        """Renew leases, name by name; in an event loop several at a time."""
        numbers, at_once = count(), AT_ONCE if self._runtime.goes_on else 1
        return await renew_apart(
            renewals, lambda _: next(numbers) // at_once, self._renew_batch, self._runtime.now, until
        )

    async def _renew_batch(self, _: int, renewals: Sequence[RenewRequest], until: float) -> list[Any]:
        works = [self._shared.take(each.name, methodcaller("renew", each), until) for each in renewals]
        results: list[RenewReply | Exception] = [None] * len(works)
        await self._runtime.race(works, results, len(works), lambda: True)
        return results

    async def _take(self, name: str, work: Callable[[Steps], T], until: float) -> T:
        """Take a step on a row, again until nobody else has written it meanwhile."""
        key, refused = safe_key(LOCK, name), 0
        seen, fresh = self._access.seen(key), False
        with Tried() as tried:
            while True:
                if seen is None or not seen.last:
                    seen, fresh = await self._access.read(key, until), True
                result, value = self._run(name, seen, work)
                if value is None and fresh:
                    return result
                if value is not None:
                    if await self._access.write(key, value, seen.row.version, until):
                        return result
                    tried.unsure = True
                refused += value is not None and fresh
                seen = None
                if refused >= CONTEND:
                    longest = min(MOST_PAUSE, 0.005 * 2 ** (refused - CONTEND), (until - self._runtime.now()) / 2)
                    await self._runtime.sleep(max(0.0, longest * self._runtime.random()))

    def _run(self, name: str, seen: SeenRow, work: Callable[[Steps], T]) -> tuple[T, bytes | None]:
        """Take a step on a row as it was seen; return its result, and the value to write, or None."""
        row = load_row(name, seen.row)
        state = row.state
        now = wall = self._runtime.wall()
        before, counter = table_codec.dump(state), state.counter
        if row.number:
            now = state.used_at + max(1, int((self._runtime.now() - seen.since) * 1e6))
            self._age(state, seen, now)
        step = _PromisingStep(state, now, wall, lambda _: True)
        step.promised = set()
        steps = Steps(lambda _: state, now, wall, lambda _: True)
        steps.taken[name] = step
        result = work(steps)
        after = table_codec.dump(step.state)
        told = [each for each in step.notifications if each.channel]
        if not (told or step.promised or lasting(after) != lasting(before) or step.state.counter != counter):
            return result, None
        number = row.number + 1
        fresh = [[number, now, *astuple(each)] for each in told]
        again = {(each[3], each[4]) for each in fresh}
        news = [each for each in row.news if each[1] > now - NEWS_FOR and (each[3], each[4]) not in again]
        pulses = {each.request_id: row.pulses.get(each.request_id, number) for each in step.state.holders}
        pulses |= dict.fromkeys(step.promised & pulses.keys(), number)
        head = [number, step.state.counter, self._client, name, pulses, [*news, *fresh][-MOST_NEWS:]]
        return result, f"{json.dumps(head, separators=(',', ':'))}\n{after}".encode()

    def _age(self, state: NameState, seen: SeenRow, now: int) -> None:
        """End what this client has seen as it is for as long as it may last.

        While others write a row again and again, its time may stand still: each counts from when it saw the last write.
        """

        def over(part: str, length: int) -> bool:
            return part in seen.parts and (local - seen.parts[part][1]) * 1e6 >= length

        local = self._runtime.now()
        for holder in state.holders:
            if over(holder.request_id, holder.ttl):
                holder.expires_at = min(holder.expires_at, now)
        for waiter in state.queue:
            if over(waiter.request.request_id, waiter.request.waiter_ttl):
                waiter.fresh_until = min(waiter.fresh_until, now - 1)
        if state.blocked_until and over(DELAY, state.block):
            state.blocked_until = min(state.blocked_until, now)

    # -- what changes nothing ------------------------------------------------------------------------------

    async def inspect(self, name: str, until: float) -> NameView:
        """Return the state of one name."""
        seen = await self._access.read(safe_key(LOCK, name), until)
        return self._run(name, seen, lambda steps: steps.on(name).view(name))[0]

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use. Each row of it is read."""
        start = first_key(LOCK, prefix)
        after = rest if isinstance(rest, str) else ""
        keys = await self._access.call(lambda table, left: table.keys(start, after, PAGE, left), until)
        found: list[str] = []
        for key in keys:
            seen = await self._access.read(key, until)
            row = load_row("", seen.row)
            if row.name.startswith(prefix) and row.state.idle_after() > row.state.used_at:
                found.append(row.name)
        return Page(sorted(found), keys[-1] if len(keys) == PAGE else None)

    # -- cells ---------------------------------------------------------------------------------------------

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell. Its time is this client's wall clock, but never before the last write of the cell."""
        return self._cell((await self._access.read(safe_key(CELL, name), until)).row)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:  # noqa: ARG002
        """Write a cell if it has this version. A cell that is removed keeps the number of its version."""
        key = safe_key(CELL, name)
        seen = self._access.seen(key)
        if seen is None or not seen.last:
            seen = await self._access.read(key, until)
        with Tried() as tried:
            while True:
                cell, number = self._cell(seen.row), cell_head(seen.row)[0]
                if cell.version == version:
                    text = f"{number + 1} {cell.now} {self._client}\n".encode() + value
                    if await self._access.write(key, text, seen.row.version, until):
                        return Cell(value, number + 1 if value else 0, cell.now, written=True)
                    tried.unsure = True
                seen = await self._access.read(key, until)
                if self._cell(seen.row).version != version:
                    return self._cell(seen.row)

    def _cell(self, row: Row) -> Cell:
        number, written, value = cell_head(row)
        return Cell(value, number if value else 0, max(written, self._runtime.wall()))
