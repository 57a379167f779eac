"""The tables of Tenure in a MySQL or MariaDB database: each operation is one round trip as a rule."""

from collections.abc import Callable, Sequence
from typing import Any

from tenure.contracts.cells import Cell
from tenure.contracts.deadlines import MICROS
from tenure.contracts.messages import AcquireRequest, Notification, Queued, RenewRequest, WithdrawRequest
from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown
from tenure.stores import table_codec
from tenure.stores.mysql.channel import MySqlChannel
from tenure.stores.mysql.errors import CONFLICTS, DENIED, MISSING, MySqlResult, MySqlServerError, Row
from tenure.stores.mysql.link import BEGIN, COMMIT, MakeMySqlLink, MySqlLink
from tenure.stores.mysql.options import MySqlDeployment
from tenure.stores.mysql.schema import ddl_statements
from tenure.stores.mysql.snapshots import is_known, mark_of, read_snapshot, read_text, split
from tenure.stores.mysql.statements import CELL_KNOWN, MySqlStatements, end_sleep, note_written
from tenure.stores.sql.database import NEW_FOR, REMOVED_FOR, SqlSnapshot, SqlWrite, join_version, split_version
from tenure.stores.sql.deployment import OFF
from tenure.stores.sql.tables import SWEEP_AT_MOST, SqlTables
from tenure.stores.tabled import RETENTION, Tried

MESSAGE_RETENTION = 600_000_000
"""How long a message stays that nobody reads, in microseconds."""

BATCH = 100
"""How many leases are renewed in one transaction."""

SCHEMA_LOCK = "SELECT GET_LOCK('tenure schema', 20)"


class MySqlDatabase(SqlTables[MySqlDeployment, MySqlLink]):
    """One client's access to the tables."""

    queues = False
    conflicts, missing, denied = CONFLICTS, MISSING, DENIED
    may_not_make = "the tables of Tenure are missing, and the user"
    _do: MySqlStatements
    _channel: MySqlChannel

    def __init__(self, runtime: Runtime, deployment: MySqlDeployment, make_link: MakeMySqlLink) -> None:
        link = make_link(runtime, deployment)
        self._do = MySqlStatements(deployment.prefix)
        super().__init__(runtime, deployment, link, MySqlChannel(runtime, link, self._do))

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, make the tables if there are none, and listen; return the channel."""
        if self._deployment.notify == OFF:
            await self._open_tables(until)
            return ""
        return await super().open(deliver, until)

    # -- operations ----------------------------------------------------------------------------------------

    async def acquire(self, request: AcquireRequest, until: float) -> int | Queued | SqlSnapshot:
        """Grant a plain row that is free."""
        acquire = self._do.acquire(request)
        if (result := (await self._run([acquire], until))[0]).changed:
            return result.last_id
        snapshot = await self.read([request.name], until)
        if snapshot.rows[0].version or snapshot.quarantined_until > snapshot.now:
            return snapshot
        make = self._do.make(request.name, snapshot.now + NEW_FOR)
        if (result := (await self._run([make, acquire], until))[1]).changed:
            return result.last_id
        return await self.read([request.name], until)

    async def release(self, name: str, request_id: str, until: float) -> SqlSnapshot | None:
        """End the lease of a request in a plain row."""
        released = (await self._run([self._do.release(name, request_id)], until))[0].changed
        return None if released else await self.read([name], until)

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> frozenset[str]:
        """Renew the leases in plain rows that last: in one transaction, so that the log is written once."""
        renewed: list[str] = []
        inorder = sorted(renewals, key=lambda each: each.name.encode())
        for first in range(0, len(inorder), BATCH):
            batch = inorder[first : first + BATCH]
            work = [self._do.renew(each) for each in batch]
            if len(work) == 1:
                results = await self._run(work, until)
            else:
                results = (await self._run([BEGIN, *work, COMMIT], until))[1:-1]
            renewed += [each.request_id for each, result in zip(batch, results, strict=True) if result.changed]
        return frozenset(renewed)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> None:
        """Leave it to a step."""

    async def read(self, names: Sequence[str], until: float) -> SqlSnapshot:
        """Return a snapshot of the rows of some names."""
        read = self._do.read(names, self._longest_ttl)
        lines = split((await self._run([read], until))[0])
        for _ in range(2):
            if is_known(lines):
                break
            self._tables_missing = self._tables_missing or not lines
            lines = split((await self._run([*self._do.begin_quarantine(self._longest_ttl), read], until))[-1])
        snapshot = self._snapshot(lines, names)
        if _needs_clock(snapshot):
            snapshot.now = int((await self._run([self._do.clock], until))[0].rows[0][0])
        return snapshot

    def _snapshot(self, lines: Sequence[Sequence[bytes]], names: Sequence[str]) -> SqlSnapshot:
        if not lines:
            raise self._no_settings()
        self._check(mark_of(lines))
        snapshot = read_snapshot(lines, names)
        if self._unguarded:
            snapshot.quarantined_until = 0
        return snapshot

    async def names(self, prefix: str, after: str, most: int, until: float) -> list[str]:
        """Return names in use."""
        result = (await self._run([self._do.names(prefix, after, most)], until))[0]
        for mark, _ in result.rows[:1]:
            self._check(mark)
        return [read_text(name) for _, name in result.rows if name is not None]

    async def end_quarantine(self, until: float) -> float:
        """End the quarantine at once."""
        snapshot = await self.read([""], until)  # one that was not noticed yet begins now
        left = max(0.0, (snapshot.quarantined_until - snapshot.now) / MICROS)
        await self._run([self._do.end_quarantine], until)
        return left

    # -- writing -------------------------------------------------------------------------------------------

    async def write(self, write: SqlWrite, until: float) -> frozenset[str]:
        """Write rows, leave messages for their notifications, and wake those who sleep for them."""
        makes, work, places, kills = self._work_of(
            write, len(write.rows) if write.atomic and len(write.rows) > 1 else 0
        )
        if len(work) > 1:
            work = [BEGIN, *work, COMMIT]
        before = len(makes) + (len(work) > 1)
        results = await self._repeated(lambda: self._link.run([*makes, *work], until, kills=kills), until)
        return frozenset(name for name, place in places.items() if results[before + place].changed)

    async def transact(self, names: Sequence[str], work: Callable[[SqlSnapshot], SqlWrite], until: float) -> bool:
        """Lock rows, and write what `work` makes of them."""
        read = [self._do.lock(names), self._do.read(names, self._longest_ttl)]
        write, places, before, known = SqlWrite(0, 0, []), dict[str, int](), 0, True

        def then(results: list[MySqlResult]) -> tuple[Sequence[str], Sequence[str]]:
            nonlocal write, places, before, known
            lines = split(results[1])
            snapshot = self._snapshot(lines, names)
            if not (known := is_known(lines)):
                return (), ()
            write = work(snapshot)
            makes, rest, places, kills = self._work_of(write, len(write.rows))
            before = len(makes)
            return (*makes, *rest), kills

        results = await self._repeated(lambda: self._link.transact(read, then, until), until)
        if not known:
            await self.read(names, until)  # which begins the quarantine
            return False
        return sum(results[before + place].changed for place in places.values()) == len(write.rows)

    def _work_of(self, write: SqlWrite, atomic: int) -> tuple[list[str], list[str], dict[str, int], list[str]]:
        """Return four things: inserts of missing rows, updates, the place of each row's update among those, and kills.

        The rows come in the order of their names, so that two writers do not wait for each other. `atomic` is the
        number of rows if all must be written or none, else 0. A kill wakes those who have a message now; what fails
        costs them the rest of their sleep, of a second.
        """
        rows = sorted(write.rows, key=lambda row: row.name.encode())
        makes = [self._do.make(row.name, write.as_of + NEW_FOR) for row in rows if not row.version]
        work = [self._do.lock_all(rows)] if atomic else []
        places: dict[str, int] = {}
        kills: dict[str, None] = {}
        for number, row in enumerate(rows):
            places[row.name] = len(work)
            replaced = write.replaced.get(row.name)
            state = replaced.state if replaced is not None else ""
            work.append(self._do.write(row, write.quarantined_since, state, atomic))
            if told := write.notifications.get(row.name):
                work.append(note_written(number))
                work += [self._do.send(each.channel, table_codec.dump_notification(each), number) for each in told]
                kills |= dict.fromkeys(end_sleep(each.channel, number) for each in told)
        return makes, work, places, list(kills)

    async def sweep(self, after: str, until: float) -> str:
        """Delete old rows among some that follow a name."""
        await self._run([self._do.forget_messages(MESSAGE_RETENTION, SWEEP_AT_MOST)], until)
        found = (await self._run([self._do.next(after, SWEEP_AT_MOST)], until))[0].rows
        last = read_text(found[0][0]) if found else ""
        old = (await self._run([self._do.old(after, last, RETENTION, SWEEP_AT_MOST)], until))[0].rows
        if old:
            counter = max(int(each[1]) for each in old)
            forget = self._do.forget([read_text(each[0]) for each in old], RETENTION, counter)
            await self._run([BEGIN, self._do.raise_floor(counter), forget, COMMIT], until)
        return last

    # -- cells ---------------------------------------------------------------------------------------------

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell."""
        read = self._do.read_cell(name)
        return await self._cell((await self._run([read], until))[0], read, until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell if it has this version. The row of a removed one stays, so that its version does not recur."""
        make = [] if version else [self._do.make_cell(name, REMOVED_FOR)]
        write = self._do.write_cell(name, value, version, keep if value else REMOVED_FOR)
        read = self._do.read_cell(name)
        *_, written, found = await self._repeated(lambda: self._write_and_read([*make, write], read, until), until)
        with Tried(unsure=bool(written.changed)):
            cell = await self._cell(found, read, until)
        if not written.changed:
            return cell
        since, _ = split_version(cell.version)
        return Cell(value, join_version(since, written.last_id) if value else 0, cell.now, written=True)

    async def _write_and_read(self, writes: Sequence[str], read: str, until: float) -> list[MySqlResult]:
        """Run writes and a read, one after the other. Raises OutcomeUnknown if the read alone fails."""
        try:
            return await self._link.run([*writes, read], until)
        except MySqlServerError as error:
            if len(error.results) < len(writes):
                raise
            raise OutcomeUnknown(str(self._to_store_error(error))) from error

    async def sweep_cells(self, after: str, until: float) -> str:
        """Remove cells whose time is over among some that follow a name."""
        found = (await self._run([self._do.next_cell(after, SWEEP_AT_MOST)], until))[0].rows
        last = read_text(found[0][0]) if found else ""
        old = (await self._run([self._do.old_cells(after, last, SWEEP_AT_MOST)], until))[0].rows
        if old:
            version = max(int(each[1]) for each in old)
            forget = self._do.forget_cells([read_text(each[0]) for each in old], version)
            await self._run([BEGIN, self._do.raise_floor(version), forget, COMMIT], until)
        return last

    async def _cell(self, result: MySqlResult, read: str, until: float) -> Cell:
        """Return the cell that was read; if this server may have forgotten others, read it again in a quarantine."""
        if result.rows and not result.rows[0][CELL_KNOWN]:
            result = (await self._run([*self._do.begin_quarantine(self._longest_ttl), read], until))[-1]
        if not result.rows:
            raise self._no_settings()
        at, mark, _, since, version, value = result.rows[0]
        self._check(mark)
        return Cell(bytes(value), join_version(int(since), int(version)), int(at)) if value else Cell(b"", 0, int(at))

    # -- statements ----------------------------------------------------------------------------------------

    async def _run(self, statements: Sequence[str], until: float) -> list[MySqlResult]:
        return await self._repeated(lambda: self._link.run(statements, until), until)

    async def _query(self, statement: Any, until: float) -> Sequence[Row]:  # noqa: ANN401
        return (await self._link.run([statement], until))[0].rows

    def _lengthen(self) -> str:
        return self._do.lengthen(self._longest_ttl)

    async def _run_ddl(self, until: float, *, doubted: bool) -> None:
        work = ddl_statements(self._deployment.prefix, doubted=doubted)
        await self._link.run([SCHEMA_LOCK, *work], until, keep=False)  # the lock ends with the connection


def _needs_clock(snapshot: SqlSnapshot) -> bool:
    """Tell whether the instant of a snapshot may lie before the read.

    It is when the statement began. A row that was written since then, or before the clock stepped back, lies ahead of
    it. A step must not take that for a step back, by which it would shorten a lease.
    """
    return any(row.used_at > snapshot.now for row in snapshot.rows)
