"""The contract of a database below the SQL store: the statements that the store needs, each of them atomic.

The simulation has a database of its own that keeps this contract. So it runs the shipped store, and only the SQL of
each database is tested on real servers alone, against the grant table.

Each operation ends by `until`, a local instant, and raises what the contract of stores says. A database repeats by
itself what failed because of a deadlock or of a serialization conflict, for then nothing was done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tenure.contracts.cells import Cell
from tenure.contracts.messages import AcquireRequest, NotGranted, Notification, Queued, RenewRequest, WithdrawRequest
from tenure.outcome import Outcome
from tenure.stores.sql.rows import SqlRow

LOCKED_FOR = 1.0
"""For how many seconds at most a client that stands still keeps a row from the others."""

NEW_FOR = 60_000_000
"""For how long after it was not found a row may be made, in microseconds: less than the retention of rows."""

REMOVED_FOR = 3_600_000_000
"""For how long the row of a removed cell stays, in microseconds."""

VERSIONS = 2**63
"""Larger than the version of any row."""


@dataclass(slots=True)
class SqlSnapshot:
    """Rows as they were at one instant. Times are microseconds of the database's clock."""

    now: int
    """When they were read: not before, and less than the duration of the request after it."""
    rows: list[SqlRow]
    """The requested rows, in no order. A name that has no row gets one of version 0."""
    floor: int = 0
    """At least the counter of every row that was ever deleted."""
    silent: frozenset[str] = frozenset()
    """Those of the channels in `heads` on which certainly nobody listens."""
    quarantined_since: int = 0
    quarantined_until: int = 0
    """The last quarantine of the database, which may be over."""


@dataclass(slots=True)
class SqlWrite:
    """Rows to write, and the notifications to send if they are written."""

    as_of: int
    """The `now` of the snapshot: a row that was not there then is written soon after it, or not at all."""
    quarantined_since: int
    """That of the snapshot: nothing is written if another quarantine has begun since, or has to begin."""
    rows: list[SqlRow]
    """Each with the version of the row that it replaces."""
    notifications: dict[str, list[Notification]] = field(default_factory=dict[str, list[Notification]])
    """By name: sent only if the row of the name is written."""
    atomic: bool = False
    """Whether to write all rows or none."""
    replaced: dict[str, SqlRow] = field(default_factory=dict[str, SqlRow])
    """By name: the row that is replaced. It may be left out if it has no waiters."""


class SqlDatabase(Protocol):
    """One client's access to the tables of Tenure in a database."""

    queues: bool
    """Whether `acquire` adds waiters, and `release` hands over to them. If not, a row with waiters is one JSON text."""

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, make the tables if there are none, listen; return this client's channel ("": it has none)."""
        ...

    async def acquire(self, request: AcquireRequest, until: float) -> int | Queued | SqlSnapshot:
        """Grant a plain row that is free, and return the token; else change nothing and return a snapshot of the row.

        The request is plain. The row is free if it is plain, its holder is gone, or has expired without a lock delay;
        the request was neither withdrawn nor released; and the database is in no quarantine. A database that `queues`
        may add a request that waits to the end of the queue, behind a holder that lasts; one with a channel, for the
        times at which others poll are for the grant table to say.
        """
        ...

    async def release(self, name: str, request_id: str, until: float) -> SqlSnapshot | None:
        """End the lease of a request in a plain row and return None; else change nothing and return a snapshot.

        A database that `queues` may hand the name over to the first waiter of the queue, if it is alive.
        """
        ...

    def send_release(self, name: str, request_id: str, told: Callable[[SqlSnapshot | Outcome | None], None]) -> bool:
        """Send the statement of `release`, and have `told` get its reply later, or None if there is none.

        Return False if it cannot be sent now, and was not. See `SendsReleases` in contracts/store.py.
        """
        ...

    def collect_replies(self) -> None:
        """Take the replies to `send_release` that have come."""

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> frozenset[str]:
        """Renew the leases in plain rows that last; return the ids of their requests.

        A database that `queues` may renew those for which somebody waits, and notes in each request whether it is so.
        """
        ...

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted | None:
        """Remove a waiter from the queue of a lease that lasts; None: a step has to do that, as without `queues`."""
        ...

    async def read(self, names: Sequence[str], until: float) -> SqlSnapshot:
        """Return a snapshot of some rows. Begins a quarantine if the database may have forgotten grants."""
        ...

    async def write(self, write: SqlWrite, until: float) -> frozenset[str]:
        """Write the rows that still have the version that they replace; return their names. Then send notifications.

        A server that may have forgotten grants since the snapshot writes none: it may have others of these versions.
        """
        ...

    async def transact(self, names: Sequence[str], work: Callable[[SqlSnapshot], SqlWrite], until: float) -> bool:
        """Lock the rows of some names, in the order of the names, and write what `work` makes of their snapshot.

        Return whether it was written: not if a row was not there, and another client was faster to make it. `work` does
        not wait; if the client stands still in it nevertheless, the database ends the transaction after LOCKED_FOR.
        """
        ...

    async def names(self, prefix: str, after: str, most: int, until: float) -> list[str]:
        """Return the names in use that start with `prefix` and follow `after` in the order of the database.

        At most `most`, in this order; an empty `after` precedes all names.
        """
        ...

    async def sweep(self, after: str, until: float) -> str:
        """Delete old rows among some that follow the name `after`, and raise the floor to their counters.

        Return the last name that was looked at; empty if these were the last rows.
        """
        ...

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell: contracts/cells.py. Begins a quarantine if the database may have forgotten grants."""
        ...

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:
        """Write a cell if it has this version: contracts/cells.py.

        The version of a cell says in which quarantine it was read (`join_version`): a server that may have forgotten
        what was written since then may have given the version of the row to something else, and writes nothing.
        """
        ...

    async def sweep_cells(self, after: str, until: float) -> str:
        """Remove cells whose time is over, among some that follow the name `after`.

        Return the last name that was looked at; empty if these were the last cells.
        """
        ...

    async def end_quarantine(self, until: float) -> float:
        """End the quarantine at once; return how many seconds it would still have lasted."""
        ...

    async def close(self) -> None:
        """Disconnect. Idempotent, also before it was opened."""

    def abandon(self) -> None:
        """In a forked child: drop what was inherited, without a word to the server."""


def join_version(since: int, version: int) -> int:
    """Return the version of a cell whose row has a version, read in the quarantine that began at `since`."""
    return since * VERSIONS + version


def split_version(version: int) -> tuple[int, int]:
    """Return when the quarantine of a version began, and the version of the row."""
    return divmod(version, VERSIONS)
