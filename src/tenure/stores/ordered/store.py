"""The store on an ordered directory: ZooKeeper or etcd.

Each contender is an entry of its client's session, and the first entries that fit hold the name. No server grants
anything: the removal of an entry wakes the waiter that watches it, and the waiter looks whether it holds the name. So a
hand-off costs one event and one look.

These end a lease that is not released:

*   **The session** ends it, if the process dies or is cut off. The entries of a session certainly stay for `trust`
    after the last proof, so a grant or a renewal counts for no longer than that, whatever its ttl.
*   **The client** ends it while the process lives: a lease that was not renewed for its ttl, or a waiter whose requests
    stopped.
*   **Those that wait** end it, if it was never renewed for its ttl (`renewing.py`).

So the ttl bounds a holder that hangs, even if the ttl is shorter than the session, and a waiter that is dead when its
turn comes; the session bounds a holder that dies later.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from tenure.contracts.cells import CellStore
from tenure.contracts.deadlines import seconds
from tenure.contracts.findings import Finding, Report, Unseen, ignore_findings
from tenure.contracts.messages import (
    AcquireRequest,
    Notification,
    NotificationKind,
    Reply,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities
from tenure.guard import Guard, Guarding
from tenure.outcome import Outcome
from tenure.stores.ordered.acquiring import Acquirer
from tenure.stores.ordered.caretaker import Caretaker
from tenure.stores.ordered.contenders import BESIDES, WOKEN_TTL, ContenderRegistry
from tenure.stores.ordered.directory import Directory, ExaminableDirectory
from tenure.stores.ordered.entries import RANGE
from tenure.stores.ordered.inspector import Inspector
from tenure.stores.ordered.releasing import EntryRemover, Releaser
from tenure.stores.ordered.renewing import Adjuster, LeaseRenewals

log = logging.getLogger("tenure")

MESSAGES = frozenset({NotificationKind.CONTENDED, NotificationKind.REVOKED, NotificationKind.REVOCATION_REQUESTED})
"""The kinds of notifications that one client sends to another; the store sends the others."""

CAPABILITIES = Capabilities(
    min_ttl=0.05,
    queue=True,
    weights=True,
    runs_in_caller=False,
    span=RANGE,
    notifies_contention=True,
    shows_renewals=False,
)

WITH_CELLS = replace(CAPABILITIES, cells=True)


class OrderedStore:
    """One client's contenders in a directory."""

    def __init__(self, runtime: Runtime, directory: Directory, capabilities: Capabilities = CAPABILITIES) -> None:
        """Create a store on `directory`, which must be made for the same runtime.

        Most operations are bound methods of the parts.
        """
        self.capabilities = capabilities
        self.directory = directory
        self.on_findings: Callable[[Sequence[Finding]], None] = ignore_findings
        self._runtime = runtime
        self._deliver: Callable[[Notification], None] = _ignore
        now = runtime.now
        self._contenders = contenders = ContenderRegistry(runtime.mutex(), now)
        inspector = Inspector(directory, now)
        self._remover = remover = EntryRemover(directory, now)
        self._caretaker = caretaker = Caretaker(runtime, directory, contenders, remover.remove_expired)
        acquirer = Acquirer(runtime, directory, contenders, caretaker, remover=remover, inspector=inspector)
        adjuster = Adjuster(directory, contenders, runtime.new_id)
        releaser = Releaser(directory, contenders, caretaker, now, remover=remover, inspector=inspector)
        self.acquire = acquirer.acquire
        self.renew = LeaseRenewals(directory, contenders, caretaker, now).renew
        self.adjust = adjuster.adjust
        self.release = releaser.release
        self.send_release = releaser.send
        self.collect_replies = releaser.collect_replies
        self.withdraw = releaser.withdraw
        self.resize = adjuster.resize
        self.inspect = inspector.inspect
        self.names = directory.names
        self.request_revocation = inspector.request_revocation
        self.revoke = inspector.revoke

    def identity(self) -> str:
        """Return "": nothing tells whether another store is the same one."""
        return ""

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Begin a session and return "": a directory has no notification channel, it wakes waiters through watches."""
        self._deliver = deliver
        await self.directory.open(self, until)
        self._caretaker.start()
        if isinstance(self.directory, ExaminableDirectory):
            self.on_findings(self.directory.at_opening())
        return ""

    async def examine(self, ttl: float, timeout: float) -> Report:
        """Look at the settings of the servers."""
        if isinstance(self.directory, ExaminableDirectory):
            return await self.directory.examine(ttl, timeout)
        return Report("", unseen=[Unseen("the store", "its settings", "a directory of this kind does not tell them")])

    async def close(self) -> None:
        """End the session, and remove all that was added in it."""
        await self._caretaker.stop()
        await self.directory.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._caretaker.abandon()
        self.directory.abandon()

    def guard(self, name: str, request_id: str, token: int) -> Guard | None:
        """Return a condition for the user's own transactions, or None if the directory has none."""
        return self.directory.guard(name, request_id, token) if isinstance(self.directory, Guarding) else None

    # -- events of the directory -----------------------------------------------------------------------------

    def woken(self, request_id: str) -> None:
        """Have a waiter repeat its request, which tells whether it holds the name. If it doesn't, it expires soon."""
        request_id = request_id.removesuffix(BESIDES)
        contender = self._contenders.live.get(request_id)
        if contender is not None:
            self._contenders.wake(contender, self._runtime.now() + max(seconds(contender.request.ttl), WOKEN_TTL))
            self._caretaker.look_by(contender.ends_at)
            self._deliver(Notification("", NotificationKind.HEAD, request_id))

    def told(self, message: str) -> None:
        """Deliver another client's message about a lease of this client.

        It says that the other waits for the name, requests the revocation of the lease, or tells that it was revoked.
        """
        kind, _, rest = message.partition(" ")
        request_id, _, token = rest.partition(" ")
        if kind not in MESSAGES or not token.isdecimal():
            log.debug("a message that cannot be read is ignored: %r", message)
            return
        if kind == NotificationKind.REVOKED:
            self._contenders.end_of(request_id, int(token), Outcome.TAKEN_OVER)
        self._deliver(Notification("", NotificationKind(kind), request_id, int(token)))

    def lost(self) -> None:
        """Have every waiter join again, and every holder find out about its lease."""
        log.warning(
            "the session at the store has ended: its leases are lost, and its waiters join the queue again at the end"
        )
        self.gap()

    def gap(self) -> None:
        """Have every waiter send its request again and every lease renewed, soon."""
        self._deliver(Notification("", NotificationKind.GAP, ""))

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Raise NotImplementedError: an ordered store grants names one by one."""
        raise NotImplementedError


class OrderedCellStore(OrderedStore):
    """The same, with the cells that the store keeps beside the directory."""

    def __init__(self, runtime: Runtime, directory: Directory, cells: CellStore) -> None:
        """Create a store on `directory` and `cells`, which must be made for the same runtime."""
        super().__init__(runtime, directory, WITH_CELLS)
        self.read_cell = cells.read_cell
        self.write_cell = cells.write_cell


def _ignore(notification: Notification) -> None: ...
