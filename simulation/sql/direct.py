"""Access to a simulated database without a network, for tests and for clients that are not under test."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from simulation.sql.server import SqlRules, SqlServer
from tenure.contracts.cells import Cell
from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import AcquireRequest, NotGranted, Notification, Queued, RenewRequest, WithdrawRequest
from tenure.contracts.store import Capabilities
from tenure.outcome import Outcome
from tenure.stores.sql.database import SqlSnapshot, SqlWrite
from tenure.stores.tabled import RETENTION

T = TypeVar("T")

SWEEP_AT_MOST = 500
"""How many rows one sweep looks at."""


def capabilities_of(rules: SqlRules) -> Capabilities:
    """Return the capabilities of the SQL store with these rules."""
    max_ttl = seconds(rules.longest_ttl) if rules.guarded else float("inf")
    return Capabilities(
        min_ttl=0.05,
        queue=True,
        weights=True,
        runs_in_caller=False,
        max_ttl=max_ttl,
        multi_acquire=True,
        barging=True,
        cells=True,
        hands_over=True,
    )


class DirectSqlDatabase:
    """One client's access to a server, without a network. Its coroutines never suspend."""

    def __init__(self, server: SqlServer, rules: SqlRules, channel: str = "") -> None:
        """Use a server; with a `channel`, listen there once this is open."""
        self.channel = channel
        self.queues = rules.queues
        self._server = server
        self._rules = rules

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:  # noqa: ARG002 - at once
        """Listen."""
        self._server.lengthen(self._rules)
        if self.channel:
            self._server.channels[self.channel] = deliver
        return self.channel

    async def acquire(self, request: AcquireRequest, until: float) -> int | Queued | SqlSnapshot:
        """Grant a plain row that is free, or add a waiter."""
        return await self._call(lambda server: server.acquire(request, self._rules), until)

    async def release(self, name: str, request_id: str, until: float) -> SqlSnapshot | None:
        """End the lease of a request in a plain row, or hand it over."""
        return await self._call(lambda server: server.release(name, request_id, self._rules), until)

    def send_release(
        self,
        name: str,  # noqa: ARG002
        request_id: str,  # noqa: ARG002
        told: Callable[[SqlSnapshot | Outcome | None], None],  # noqa: ARG002
    ) -> bool:
        """Return False: a request without a network is answered at once."""
        return False

    def collect_replies(self) -> None:
        """Do nothing: no reply is owed."""

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> frozenset[str]:
        """Renew the leases in plain rows that last."""
        return await self._call(lambda server: server.renew(renewals), until)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted | None:
        """Remove a waiter from the queue of a lease that lasts."""
        return await self._call(lambda server: server.withdraw(withdraw, self._rules), until)

    async def read(self, names: Sequence[str], until: float) -> SqlSnapshot:
        """Return a snapshot of the rows of some names."""
        return await self._call(lambda server: server.read(names, self._rules), until)

    async def write(self, write: SqlWrite, until: float) -> frozenset[str]:
        """Write rows, and send notifications."""
        return await self._call(lambda server: server.write(write, self._rules), until)

    async def transact(self, names: Sequence[str], work: Callable[[SqlSnapshot], SqlWrite], until: float) -> bool:
        """Lock rows, and write what `work` makes of them."""
        return await self._call(lambda server: server.transact(names, work, self._rules), until)

    async def names(self, prefix: str, after: str, most: int, until: float) -> list[str]:
        """Return names in use."""
        return await self._call(lambda server: server.names(prefix, after, most), until)

    async def sweep(self, after: str, until: float) -> str:
        """Delete old rows among some that follow a name."""
        return await self._call(lambda server: server.sweep(after, SWEEP_AT_MOST, RETENTION), until)

    async def read_cell(self, name: str, until: float) -> Cell:
        """Return a cell."""
        return await self._call(lambda server: server.read_cell(name, self._rules), until)

    async def write_cell(self, name: str, value: bytes, version: int, keep: int, until: float) -> Cell:  # noqa: ARG002 - kept for ever
        """Write a cell if it has this version."""
        return await self._call(lambda server: server.write_cell(name, value, version, self._rules), until)

    async def sweep_cells(self, after: str, until: float) -> str:  # noqa: ARG002 - kept for ever
        """Remove nothing."""
        return ""

    async def end_quarantine(self, until: float) -> float:
        """End the quarantine at once."""
        return await self._call(lambda server: server.end_quarantine(self._rules), until)

    async def close(self) -> None:
        """Stop listening."""
        self._server.channels.pop(self.channel, None)

    def abandon(self) -> None:
        """Do nothing: simulated processes do not fork."""

    async def _call(self, work: Callable[[SqlServer], T], until: float) -> T:  # noqa: ARG002 - at once
        return work(self._server)
