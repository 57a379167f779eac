"""The tables of Tenure in a PostgreSQL database: each operation is one call of a function there."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tenure.contracts import forms
from tenure.contracts.cells import Cell
from tenure.contracts.deadlines import MICROS, micros
from tenure.contracts.messages import AcquireRequest, Notification, Queued, RenewRequest
from tenure.contracts.runtime import Runtime
from tenure.errors import StoreError
from tenure.stores import table_codec
from tenure.stores.postgresql.channel import PgChannel
from tenure.stores.postgresql.connection import Params, PgStatement, Table
from tenure.stores.postgresql.errors import CONFLICTS, PgServerError, to_store_error
from tenure.stores.postgresql.link import MakePgLink, PgCall
from tenure.stores.postgresql.options import OFF, PgDeployment
from tenure.stores.postgresql.schema import ddl
from tenure.stores.postgresql.statements import (
    TRUE,
    PgStatements,
    array,
    columns_of,
    flag,
    json_text,
    names_of,
    numbers,
    read_snapshot,
    text,
)
from tenure.stores.sql.database import SqlSnapshot, SqlWrite
from tenure.stores.sql.rows import pack_holder
from tenure.stores.tabled import RETENTION
from tenure.table.times import retry_in, silence_factor

log = logging.getLogger("tenure")

SWEEP_AT_MOST = 500
"""How many rows one sweep looks at."""

MISSING = frozenset({"42P01", "3F000", "42883"})
"""The states of a server that lacks tables or functions of Tenure."""


class PgDatabase:
    """One client's access to the tables."""

    queues = True

    def __init__(self, runtime: Runtime, deployment: PgDeployment, make_link: MakePgLink) -> None:
        """Prepare; nothing is connected yet."""
        self._deployment = deployment
        self._runtime = runtime
        self._link = make_link(runtime, deployment)
        self._channel = PgChannel(runtime, self._link)
        self._do = PgStatements(deployment.schema, deployment.prefix)
        longest_ttl = 0 if deployment.guard == OFF else micros(deployment.max_ttl)
        self._reads = b"%d" % forms.READS
        self._rules = (b"%d" % longest_ttl, flag(deployment.strict), self._reads)
        """The last parameters of the functions that may begin a quarantine."""
        self._unguarded = deployment.guard == OFF

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, make the tables if there are none, and listen; return the channel."""
        try:
            mark, longest_ttl, _ = (await self._link.execute(self._do.look, (), until))[0]
        except PgServerError as error:
            if error.state not in MISSING:
                raise self._to_store_error(error) from error
            await self._make_tables(until)
            mark, longest_ttl, _ = (await self._run(self._do.look, (), until))[0]
        if forms.check((mark or b"").decode(), self._deployment.title()) < forms.WRITES:
            await self._run(self._do.raise_form, (), until)
        if int(longest_ttl or 0) < int(self._rules[0]):
            await self._run(self._do.lengthen, (self._rules[0],), until)
        return await self._channel.open(deliver, until)

    async def close(self) -> None:
        """Disconnect."""
        await self._channel.close()
        await self._link.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._channel.abandon()
        self._link.abandon()

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

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> frozenset[str]:
        """Renew the leases in plain rows that last."""
        params = (
            array(text(each.name) for each in renewals),
            array(each.request_id.encode() for each in renewals),
            numbers(each.token for each in renewals),
            numbers(each.ttl for each in renewals),
        )
        return frozenset(names_of(await self._run(self._do.renew, params, until)))

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
        return _cell(await self._run(self._do.read_cell, (text(name), self._reads), until))

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell if it has this version."""
        params = (text(name), value.hex().encode(), b"%d" % version, b"%d" % keep, self._reads)
        return _cell(await self._run(self._do.write_cell, params, until))

    async def sweep_cells(self, after: str, until: float) -> str:
        """Remove cells whose time is over among some that follow a name."""
        params = (text(after), b"%d" % SWEEP_AT_MOST, self._reads)
        return names_of(await self._run(self._do.sweep_cells, params, until))[0]

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
        return (*instants, *self._rules[1:], flag(write.atomic), array(told), *columns_of(write.rows))

    # -- statements ----------------------------------------------------------------------------------------

    async def _run(self, statement: PgStatement, params: Params, until: float) -> Table:
        return await self._repeated(lambda: self._link.execute(statement, params, until), until)

    async def _repeated(self, work: Callable[[], Coroutine[Any, Any, Table]], until: float) -> Table:
        """Carry out work; repeat it after a conflict with another transaction, for then nothing was done."""
        while True:
            try:
                return await work()
            except PgServerError as error:
                pause = 0.002 + 0.01 * self._runtime.random()
                if error.state not in CONFLICTS or self._runtime.now() + pause >= until:
                    raise self._to_store_error(error) from error
            await self._runtime.sleep(pause)

    def _to_store_error(self, error: PgServerError) -> StoreError:
        return to_store_error(self._deployment.title(), error)

    # -- tables --------------------------------------------------------------------------------------------

    async def _make_tables(self, until: float) -> None:
        """Make the tables. Of several clients that start at once one makes them, and the others find them."""
        lock = "SELECT pg_advisory_xact_lock(hashtextextended('tenure schema', 0));\n"
        try:
            await self._link.run_script(lock + ddl(self._deployment.schema, self._deployment.prefix), until)
        except PgServerError as error:
            if error.state in {"42501", "3F000"}:
                raise StoreError(
                    f"{self._deployment.title()}: tables or functions of Tenure are missing, and the role may not "
                    f"make them ({error}); have an administrator run the SQL that `tenure schema postgresql` prints"
                ) from error
            raise self._to_store_error(error) from error


def _cell(table: Table) -> Cell:
    at, version, value, *written = table[0]
    return Cell(bytes.fromhex((value or b"").decode()), int(version or 0), int(at or 0), written == [TRUE])
