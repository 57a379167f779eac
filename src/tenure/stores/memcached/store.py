"""The memcached store: one item for each name, at one of several servers, changed by compare-and-swap.

It has no queue and no channel: a waiter polls. It forgets: an item that is evicted, a server that restarts, or a list
of servers that changes loses locks. So it is for efficiency, to spare work that nobody should do twice, and not for
correctness. What a client can check, it checks: nobody's lease is renewed, released or taken but by the exact version
of the item that was seen.
"""

from collections.abc import Callable, Sequence

from tenure.contracts.findings import Finding, Report, ignore_findings, judge
from tenure.contracts.messages import (
    AcquireRequest,
    Notification,
    Reply,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities
from tenure.doctor.memcached import RULES
from tenure.stores.memcached.acquiring import MemcachedAcquirer
from tenure.stores.memcached.examining import report_on
from tenure.stores.memcached.inspecting import MemcachedInspector, MemcachedListing
from tenure.stores.memcached.items import Items, KnownItems
from tenure.stores.memcached.link import MemcachedLink
from tenure.stores.memcached.options import MemcachedDeployment
from tenure.stores.memcached.releasing import MemcachedReleaser
from tenure.stores.memcached.renewing import MemcachedRenewals

CAPABILITIES = Capabilities(
    min_ttl=2.0,
    queue=False,
    weights=False,
    runs_in_caller=False,
    span=1,
    shows_waiters=False,
    barging=True,
    hands_over=True,
)
"""memcached counts in whole seconds, so a lease of less than two would say little."""


class MemcachedStore:
    """One client's leases at one or several memcached servers."""

    capabilities = CAPABILITIES

    def __init__(self, runtime: Runtime, deployment: MemcachedDeployment, link: MemcachedLink) -> None:
        """Create a store on `link`, which must be made for the same runtime."""
        self._runtime = runtime
        self._deployment = deployment
        self._link = link
        self._deliver: Callable[[Notification], None] = _ignore
        self.on_findings: Callable[[Sequence[Finding]], None] = ignore_findings
        items = Items(link, deployment)
        parts = runtime, items, KnownItems(), self._tell
        releaser = MemcachedReleaser(*parts)
        renewals = MemcachedRenewals(*parts)
        inspector = MemcachedInspector(*parts)
        self.acquire = MemcachedAcquirer(*parts).acquire
        self.release = releaser.release
        self.withdraw = releaser.withdraw
        self.renew = renewals.renew
        self.adjust = renewals.adjust
        self.inspect = inspector.inspect
        self.request_revocation = inspector.request_revocation
        self.revoke = inspector.revoke
        self.names = MemcachedListing(link, deployment, items).names
        self.abandon = link.abandon

    def identity(self) -> str:
        """Return "": nothing tells whether another store is the same one."""
        return ""

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, if there is one server; return "", for there is no channel.

        Of several servers each is connected when a name needs it: one that is down concerns no other names.
        """
        self._deliver = deliver
        if len(self._deployment.addresses) == 1:
            server = await self._link.server(self._deployment.addresses[0], until)
            if server.facts is not None:
                self.on_findings(judge(server.facts, RULES))
        return ""

    async def examine(self, ttl: float, timeout: float) -> Report:  # noqa: ARG002 - no setting depends on the ttl
        """Look at the settings of the servers."""
        return await report_on(self._runtime, self._link, self._deployment.addresses, timeout)

    async def close(self) -> None:
        """Disconnect."""
        self._deliver = _ignore
        await self._link.close()

    def _tell(self, notification: Notification) -> None:
        self._runtime.post(lambda: self._deliver(notification))

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Raise NotImplementedError: memcached changes one item at a time."""
        raise NotImplementedError

    async def resize(self, name: str, before: int, after: int, until: float) -> int:  # noqa: ARG002
        """Return 1: every name has one holder here."""
        return 1


def _ignore(notification: Notification) -> None: ...
