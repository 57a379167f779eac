"""The tables of Tenure in a PostgreSQL database: each operation is one call of a function there."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from tenure.contracts import forms
from tenure.contracts.cells import Cell
from tenure.contracts.deadlines import MICROS
from tenure.contracts.messages import AcquireRequest, NotGranted, Queued, RenewRequest, WithdrawRequest
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError, UsageError
from tenure.outcome import Outcome
from tenure.stores import table_codec
from tenure.stores.postgresql.channel import PgChannel
from tenure.stores.postgresql.connection import Params, PgStatement, Table
from tenure.stores.postgresql.errors import CONFLICTS, NO_SUCH_CHARACTER
from tenure.stores.postgresql.link import MakePgLink, PgCall, PgLink
from tenure.stores.postgresql.options import PgDeployment
from tenure.stores.postgresql.schema import ddl
from tenure.stores.postgresql.statements import (
    TRUE,
    PgStatements,
    array,
    changes_of,
    columns_of,
    flag,
    json_text,
    names_of,
    numbers,
    read_snapshot,
    text,
)
from tenure.stores.sql.database import SqlSnapshot, SqlWrite, join_version, split_version
from tenure.stores.sql.errors import SqlServerError
from tenure.stores.sql.rows import owner_in, pack_holder
from tenure.stores.sql.tables import SWEEP_AT_MOST, SqlTables
from tenure.stores.tabled import RETENTION
from tenure.table.times import retry_in, silence_factor


class PgDatabase(SqlTables[PgDeployment, PgLink]):
    """One client's access to the tables."""

    queues = True
    conflicts = CONFLICTS
    missing = frozenset({"42P01", "3F000", "42883", "42704"})
    denied = frozenset({"42501", "3F000"})
    _do: PgStatements
    may_not_make = "tables or functions of Tenure are missing, and the role"

    def __init__(self, runtime: Runtime, deployment: PgDeployment, make_link: MakePgLink) -> None:
        link = make_link(runtime, deployment)
        super().__init__(runtime, deployment, link, PgChannel(runtime, link))
        self._do = PgStatements(deployment.schema, deployment.prefix)
        self._reads = b"%d" % forms.READS
        self._rules = (b"%d" % self._longest_ttl, flag(deployment.strict), self._reads)
        """The last parameters of the functions that may begin a quarantine."""

    # -- operations ----------------------------------------------------------------------------------------

    async def acquire(self, request: AcquireRequest, until: float) -> int | Queued | SqlSnapshot:
        """Grant a plain row that is free, or join the queue of one that is held."""
        params = (
            text(request.name),
            request.request_id.encode(),
            json_text(pack_holder(request.channel, request.owner, notify_contended=request.span > 1)),
            b"%d" % request.ttl,
            b"%d" % request.lock_delay,
            b"%d" % request.proposal,
            b"%d" % request.span,
            json_text(table_codec.dump_request(request)) if request.wait and request.channel else None,
            request.channel.encode(),
            b"%d" % request.waiter_ttl,
            *self._rules,
        )
        table = await self._run(self._do.acquire, params, until)
        token, place, counter, rest = (int(cell or 0) for cell in table[0][:4])
        if token:
            return token
        if place < 0:
            return self._snapshot(table, 4)
        return Queued(counter, retry_in(request, place, rest, silence_factor(request, place)), place)

    async def release(self, name: str, request_id: str, until: float) -> SqlSnapshot | None:
        """End the lease of a request in a plain row."""
        table = await self._run(self._do.release, (text(name), request_id.encode(), *self._rules), until)
        return None if table[0][0] == TRUE else self._snapshot(table, 1)

    def send_release(self, name: str, request_id: str, told: Callable[[SqlSnapshot | Outcome | None], None]) -> bool:
        """Send the statement of `release`, whose reply is taken later."""

        def heard(table: Table | None) -> None:
            found: SqlSnapshot | Outcome | None = None
            with suppress(StoreError):  # whoever repeats the release hears of it
                if table is not None:
                    found = Outcome.RELEASED if table[0][0] == TRUE else self._snapshot(table, 1)
            told(found)

        params = (text(name), request_id.encode(), *self._rules)
        return not self._tables_missing and self._link.send_owed(self._do.release, params, heard)

    def collect_replies(self) -> None:
        """Take the replies that have come."""
        self._link.collect_owed()

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> frozenset[str]:
        """Renew the leases that last in rows that are plain, or plain but for waiters."""
        params = (
            array(text(each.name) for each in renewals),
            array(each.request_id.encode() for each in renewals),
            numbers(each.token for each in renewals),
            numbers(each.ttl for each in renewals),
            self._reads,
        )
        contended = {
            (request_id or b"").decode(): each == TRUE
            for request_id, each in await self._run(self._do.renew, params, until)
        }
        for each in renewals:
            each.contended = contended.get(each.request_id, False)
        return frozenset(contended)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted | None:
        """Remove a waiter from the queue of a lease that lasts."""
        params = (text(withdraw.name), withdraw.request_id.encode(), flag(withdraw.unsure), *self._rules[1:])
        ((place, holder),) = await self._run(self._do.withdraw, params, until)
        return None if holder is None else NotGranted((owner_in(holder.decode()),), int(place or 0))

    async def read(self, names: Sequence[str], until: float) -> SqlSnapshot:
        """Return a snapshot of the rows of some names."""
        params = (array(text(name) for name in names), *self._rules)
        return self._snapshot(await self._run(self._do.read, params, until))

    async def write(self, write: SqlWrite, until: float) -> frozenset[str]:
        """Write rows, and send notifications."""
        return frozenset(names_of(await self._run(self._do.write, self._write_params(write), until)))

    async def transact(self, names: Sequence[str], work: Callable[[SqlSnapshot], SqlWrite], until: float) -> bool:
        """Lock rows, and write what `work` makes of them."""
        params = (array(text(name) for name in names), *self._rules)
        writing = 0

        def then(table: Table) -> PgCall | None:
            nonlocal writing
            write = work(self._snapshot(table))
            writing = len(write.rows)
            return (self._do.write, self._write_params(write)) if write.rows else None

        lock = (self._do.lock, params)
        table = await self._repeated(lambda: self._link.transact(lock, then, until), until)
        return len(table) == writing

    async def names(self, prefix: str, after: str, most: int, until: float) -> list[str]:
        """Return names in use."""
        return names_of(await self._run(self._do.names, (text(after), text(prefix), b"%d" % most, self._reads), until))

    async def sweep(self, after: str, until: float) -> str:
        """Delete old rows among some that follow a name."""
        params = (text(after), b"%d" % SWEEP_AT_MOST, b"%d" % RETENTION, self._reads)
        return names_of(await self._run(self._do.sweep, params, until))[0]

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell."""
        return self._cell(await self._run(self._do.read_cell, (text(name), *self._rules), until))

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell if it has this version."""
        since, before = split_version(version)
        params = (text(name), value.hex().encode(), b"%d" % since, b"%d" % before, b"%d" % keep, *self._rules)
        return self._cell(await self._run(self._do.write_cell, params, until))

    async def sweep_cells(self, after: str, until: float) -> str:
        """Remove cells whose time is over among some that follow a name."""
        params = (text(after), b"%d" % SWEEP_AT_MOST, self._reads)
        return names_of(await self._run(self._do.sweep_cells, params, until))[0]

    def _cell(self, table: Table) -> Cell:
        at, since, version, value, *written = table[0]
        if since is None:
            raise self._no_settings()
        kept = bytes.fromhex((value or b"").decode())
        return Cell(kept, join_version(int(since), int(version or 0)) if kept else 0, int(at or 0), written == [TRUE])

    async def end_quarantine(self, until: float) -> float:
        """End the quarantine at once."""
        await self.read([""], until)  # one that was not noticed yet begins now
        table = await self._run(self._do.end_quarantine, (), until)
        return max(0.0, int(table[0][0] or 0) / MICROS) if table else 0.0

    def _snapshot(self, table: Table, first: int = 0) -> SqlSnapshot:
        snapshot = read_snapshot(table, first)
        if self._unguarded:
            snapshot.quarantined_until = 0
        return snapshot

    def _write_params(self, write: SqlWrite) -> Params:
        told: list[bytes] = []
        for name, notifications in write.notifications.items():
            for each in notifications:
                told += (text(name), each.channel.encode(), table_codec.dump_notification(each))
        instants = (b"%d" % write.as_of, b"%d" % write.quarantined_since)
        return (
            *instants,
            *self._rules[1:],
            flag(write.atomic),
            array(told),
            *map(array, changes_of(write)),
            *columns_of(write.rows),
        )

    # -- statements ----------------------------------------------------------------------------------------

    async def _run(self, statement: PgStatement, params: Params, until: float) -> Table:
        return await self._repeated(lambda: self._link.execute(statement, params, until), until)

    async def _query(self, statement: PgStatement | PgCall, until: float) -> Table:
        call = (statement, ()) if isinstance(statement, PgStatement) else statement
        return await self._link.execute(*call, until)

    def _lengthen(self) -> PgCall:
        return self._do.lengthen, (self._rules[0],)

    def _to_store_error(self, error: SqlServerError) -> StoreError | UsageError:
        if error.code == NO_SUCH_CHARACTER:
            return UsageError(
                f"{self._deployment.title()} cannot hold a character of the name or the owner ({error}): use others, "
                "or a database with the encoding UTF8."
            )
        return super()._to_store_error(error)

    async def _run_ddl(self, until: float, *, doubted: bool) -> None:
        lock = "SELECT pg_advisory_xact_lock(hashtextextended('tenure schema', 0));\n"
        doubt = f";\n{self._do.doubt.text.decode()}" if doubted else ""
        await self._link.run_script(lock + ddl(self._deployment.schema, self._deployment.prefix) + doubt, until)
