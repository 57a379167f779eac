"""The SQL store: the grant table in the rows of a database.

The usual grant, renewal and release of a lock are one statement each, which the database carries out alone. Everything
else (somebody waits, a semaphore, a withdrawn request) is a step of the grant table in the client: read the row and the
database's clock, take the step at that instant, and write the row if nobody has written it meanwhile. If somebody has,
the step is taken again on the locked row, so that no client starves; a client that stands still keeps the lock for
a second at most. All ways are atomic at one instant of the database's clock: no other step comes between the read and
the write. What one client does with one name at the same time it does in one step: shared_steps.py.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from tenure.contracts.cells import Cell
from tenure.contracts.findings import Finding, Report, ignore_findings
from tenure.contracts.messages import (
    AcquireRequest,
    Granted,
    NameView,
    NotGranted,
    Notification,
    Page,
    Queued,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities
from tenure.errors import StoreError
from tenure.outcome import Outcome
from tenure.stores.sql.database import SqlDatabase, SqlSnapshot, SqlWrite
from tenure.stores.sql.examining import AnyExaminer, examine
from tenure.stores.sql.rows import SqlRow, is_plain_request, row_of, state_of
from tenure.stores.sql.shared_steps import SharedSteps, acquire_by_polling
from tenure.stores.tabled import Steps, TabledStore, Tried
from tenure.table.state import NameState
from tenure.table.step import Step

T = TypeVar("T")

PAGE = 1000
"""How many names one request lists."""

BATCH = 100
"""How many leases that need a step each are renewed in one transaction."""

NOTED_AT_MOST = 1000
"""Of how many names at most a client notes that their rows are not plain."""

SWEEP_EVERY = 30.0
"""The time between two searches for old rows, in seconds, once all rows were looked at."""
SWEEP_ON = 1.0
"""The time until the search goes on, while there are rows that were not looked at, in seconds."""


class SqlStore(TabledStore):
    """One client's access to the locks in a database."""

    def __init__(
        self,
        title: str,
        runtime: Runtime,
        database: SqlDatabase,
        capabilities: Capabilities,
        examiner: AnyExaminer | None = None,
    ) -> None:
        self.capabilities = capabilities
        self._title = title
        self._runtime = runtime
        self._database = database
        self._examiner = examiner
        self.on_findings: Callable[[Sequence[Finding]], None] = ignore_findings
        self._shared = SharedSteps(runtime, title, self._take_one)
        self._not_plain: set[str] = set()
        """Names whose rows were not plain when this client saw them last: begin with the step that follows anyway."""
        first = runtime.now() + SWEEP_ON * (1 + runtime.random())
        self._rows = _Sweep(runtime, database.sweep, first)
        self._cells = _Sweep(runtime, database.sweep_cells, first)

    def identity(self) -> str:
        """Return the title, which names the database."""
        return self._title

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, and listen to this client's channel."""
        channel = await self._database.open(deliver, until)
        if self._examiner is not None:
            self.on_findings(self._examiner.at_opening())
        return channel

    async def examine(self, ttl: float, timeout: float) -> Report:
        """Look at the settings of the server."""
        return await examine(self._examiner, ttl, timeout)

    async def close(self) -> None:
        """Disconnect."""
        await self._database.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._database.abandon()

    # -- one statement -------------------------------------------------------------------------------------

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant a free name by one statement; else take a step. After a slow step a waiter pauses first.

        A database that `queues` hands over in less time than a waiter needs to be woken: there nobody is passed.
        """
        snapshot = None
        if request.fair_after and self._database.queues:
            request = replace(request, fair_after=0)
        if request.wait:
            await self._shared.pause(request.name, until)
        if is_plain_request(request) and self._may_be_plain(request.name) and not self._shared.under_way(request.name):
            found = await self._database.acquire(request, until)
            if isinstance(found, int):
                return Granted(found, request.ttl)
            if isinstance(found, Queued):
                return found
            snapshot = found
        if request.channel:
            return await self._shared.take(request.name, lambda step: step.acquire(request), until, snapshot)
        return await self._shared.take(request.name, lambda step: acquire_by_polling(step, request), until, snapshot)

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """Release a name for which nobody waits by one statement; else take a step."""
        if release.unsure or release.keep or not self._may_be_plain(release.name):
            outcome = await super().release(release, until)
        else:
            snapshot = await self._database.release(release.name, release.request_id, until)
            if snapshot is None:
                outcome = Outcome.RELEASED
            else:
                outcome = await self._shared.take(release.name, lambda step: step.release(release), until, snapshot)
        await self._rows.go_on(until)
        return outcome

    def send_release(
        self,
        request: AcquireRequest,
        release: ReleaseRequest,
        until: float,  # noqa: ARG002
        told: Callable[[Outcome | None], None],
    ) -> bool:
        """Send the release of a lock by one statement, unless a step would have to follow for certain."""
        if release.unsure or release.keep or not is_plain_request(request) or self._rows.is_due():
            return False

        def heard(found: SqlSnapshot | Outcome | None) -> None:
            if isinstance(found, SqlSnapshot):  # nothing was done: if a step would release the lease, one has to
                outcome = _run(found, lambda steps: steps.on(release.name).release(release), queues=False)[0]
                found = None if outcome is Outcome.RELEASED else outcome
            told(found)

        return self._database.send_release(release.name, release.request_id, heard)

    def collect_replies(self) -> None:
        """Take the replies that have come."""
        self._database.collect_replies()

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        """Renew all leases in plain rows by one statement, and take a step for each of the others."""
        renewed = await self._database.renew(renewals, until)
        others = [each for each in renewals if each.request_id not in renewed]
        replies: dict[str, RenewReply] = dict.fromkeys(renewed)
        for first in range(0, len(others), BATCH):
            batch = others[first : first + BATCH]
            said = await self._renew_by_steps(batch, until)
            replies.update(zip([each.request_id for each in batch], said, strict=True))
        return [replies[each.request_id] for each in renewals]

    async def _renew_by_steps(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        snapshot = await self._database.read(sorted({each.name for each in renewals}), until)
        return await self._take(snapshot, lambda steps: [steps.on(each.name).renew(each) for each in renewals], until)

    def _may_be_plain(self, name: str) -> bool:
        return self._database.queues or name not in self._not_plain

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Remove a waiter from a queue by one statement; else take a step."""
        if (reply := await self._database.withdraw(withdraw, until)) is not None:
            return reply
        return await super().withdraw(withdraw, until)

    # -- steps ---------------------------------------------------------------------------------------------

    async def step(self, name: str, work: Callable[[Step], T], until: float) -> T:
        """Take a step on one name."""
        return await self._shared.take(name, work, until)

    async def steps(self, names: Sequence[str], work: Callable[[Steps], T], until: float) -> T:
        """Take a step on several names, in one transaction."""
        snapshot = await self._database.read(sorted(set(names)), until)
        return await self._take(snapshot, work, until, atomic=True)

    async def _take_one(self, name: str, snapshot: SqlSnapshot | None, work: Callable[[Steps], T], until: float) -> T:
        """Take a step on one name, from a snapshot if there is one."""
        return await self._take(snapshot or await self._database.read([name], until), work, until)

    async def _take(
        self, snapshot: SqlSnapshot, work: Callable[[Steps], T], until: float, *, atomic: bool = False
    ) -> T:
        """Take a step on a snapshot and write what it changed; if another client was faster, take it on locked rows.

        A step that is not `atomic` may be written in parts, and must do no harm if it is taken twice.
        """
        result, write = _run(snapshot, work, queues=self._database.queues)
        self._note(snapshot, write)
        write.atomic = atomic
        if not write.rows or len(await self._database.write(write, until)) == len(write.rows):
            return result
        results = [result]

        def take(locked: SqlSnapshot) -> SqlWrite:
            results[0], write = _run(locked, work, queues=self._database.queues)
            self._note(locked, write)
            write.atomic = atomic
            return write

        names = [each.name for each in snapshot.rows]
        with Tried(unsure=True):
            while not await self._database.transact(names, take, until):
                pass  # another client has made one of the rows: now it is there, and can be locked
        return results[0]

    def _note(self, snapshot: SqlSnapshot, write: SqlWrite) -> None:
        """Note which names have rows that are not plain after a step."""
        for row in (*snapshot.rows, *write.rows):
            if row.plain:
                self._not_plain.discard(row.name)
            else:
                if len(self._not_plain) >= NOTED_AT_MOST:
                    self._not_plain.clear()
                self._not_plain.add(row.name)

    # -- what changes nothing ------------------------------------------------------------------------------

    async def inspect(self, name: str, until: float) -> NameView:
        """Return the state of one name, from a snapshot."""
        snapshot = await self._database.read([name], until)
        return _run(snapshot, lambda steps: steps.on(name).view(name), queues=False)[0]

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use, sorted by their bytes."""
        found = await self._database.names(prefix, rest if isinstance(rest, str) else "", PAGE, until)
        return Page(found, found[-1] if len(found) == PAGE else None)

    async def end_quarantine(self, until: float) -> float:
        """End the quarantine of the database."""
        return await self._database.end_quarantine(until)

    # -- cells ---------------------------------------------------------------------------------------------

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell."""
        return await self._database.read_cell(name, until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell if it has this version."""
        cell = await self._database.write_cell(name, value, version, keep, until)
        await self._cells.go_on(until)
        return cell


class _Sweep:
    """One client's search for rows that nobody has used for long, a part of them at a time."""

    def __init__(self, runtime: Runtime, sweep: Callable[[str, float], Coroutine[Any, Any, str]], at: float) -> None:
        self._runtime = runtime
        self._sweep = sweep
        self._after = ""
        self._at = at

    def is_due(self) -> bool:
        """Return whether `go_on` has something to do."""
        return self._runtime.now() >= self._at

    async def go_on(self, until: float) -> None:
        """Now and then, delete some of them. What fails is tried again later."""
        if not self.is_due():
            return
        now = self._runtime.now()
        self._at = now + SWEEP_EVERY
        with suppress(StoreError):
            self._after = await self._sweep(self._after, until)
            if self._after:
                self._at = now + SWEEP_ON


def _run(snapshot: SqlSnapshot, work: Callable[[Steps], T], *, queues: bool) -> tuple[T, SqlWrite]:
    """Take a step on a snapshot; return its result, and what is to be written."""
    rows = {row.name: row for row in snapshot.rows}
    steps = Steps(
        lambda name: _state_in(snapshot, rows[name]),
        snapshot.now,
        snapshot.now,
        lambda channel: channel not in snapshot.silent,
        (snapshot.quarantined_until, snapshot.quarantined_since),
        long_silence=True,
    )
    result = work(steps)
    changed = [
        row for name, step in steps.taken.items() if (row := _changed_row(rows[name], step, queues=queues)) is not None
    ]
    notifications = {name: step.notifications for name, step in steps.taken.items() if step.notifications}
    replaced = {each.name: rows[each.name] for each in changed}
    return result, SqlWrite(snapshot.now, snapshot.quarantined_since, changed, notifications, replaced=replaced)


def _state_in(snapshot: SqlSnapshot, row: SqlRow) -> NameState:
    """Return the state of a row of a snapshot.

    A lease that has run out without a renewal since the quarantine began may have been renewed before it, and the
    database has forgotten the renewal. So the lock delay of such a lease begins at the end of the quarantine.
    """
    state, now = state_of(row, snapshot.floor), snapshot.now
    for holder in state.holders:
        renewed_at = holder.expires_at - holder.ttl
        if holder.lock_delay and holder.expires_at <= now and renewed_at < snapshot.quarantined_since:
            holder.lock_delay += max(0, snapshot.quarantined_until - holder.expires_at)
    return state


def _changed_row(before: SqlRow, step: Step, *, queues: bool) -> SqlRow | None:
    """Return the row after a step; None if the step changed nothing but the instant of the last step.

    Notifications are sent by the write of their row.
    """
    after = row_of(before.name, before.version, step.state, queues=queues)
    return after if step.notifications or _lasting(after) != _lasting(before) else None


def _lasting(row: SqlRow) -> tuple[object, ...]:
    """Return what a row says, apart from the instant of the last step, which ends the text of a state."""
    state = row.state.removesuffix(f",{row.used_at}]")
    return (
        row.counter,
        row.request_id,
        row.holder,
        row.ttl,
        row.expires_at,
        row.last_released,
        row.tombstones,
        row.queue,
        state,
    )
