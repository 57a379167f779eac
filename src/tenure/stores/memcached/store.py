"""The memcached store: one item for each name, at one of several servers, changed by compare-and-swap.

It has no queue and no channel: a waiter polls. It forgets: an item that is evicted, a server that restarts, or a list
of servers that changes loses locks. So it is for efficiency, to spare work that nobody should do twice, and not for
correctness. What a client can check, it checks: nobody's lease is renewed, released or taken but by the exact version
of the item that was seen.
"""

from collections.abc import Callable, Sequence

from tenure.contracts.messages import (
    AcquireRequest,
    AdjustRequest,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    Page,
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WithdrawRequest,
)
from tenure.contracts.runtime import Runtime
from tenure.contracts.store import Capabilities
from tenure.outcome import Outcome
from tenure.stores.memcached.acquiring import MemcachedAcquirer
from tenure.stores.memcached.inspecting import MemcachedInspector
from tenure.stores.memcached.items import Items
from tenure.stores.memcached.known import KnownItems
from tenure.stores.memcached.link import MemcachedLink
from tenure.stores.memcached.listing import MemcachedListing
from tenure.stores.memcached.options import MemcachedDeployment
from tenure.stores.memcached.pacing import Pacing
from tenure.stores.memcached.releasing import MemcachedReleaser
from tenure.stores.memcached.renewing import MemcachedRenewals

CAPABILITIES = Capabilities(
    min_ttl=2.0,
    queue=False,
    weights=False,
    local=False,
    span=1,
    shows_waiters=False,
    barging=True,
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
        items, known, pacing = Items(link, deployment), KnownItems(), Pacing()
        self._acquirer = MemcachedAcquirer(runtime, items, known, pacing)
        self._releaser = MemcachedReleaser(runtime, items, known, pacing)
        self._renewals = MemcachedRenewals(runtime, items, known, self._tell)
        self._inspector = MemcachedInspector(runtime, items, known, self._tell)
        self._listing = MemcachedListing(link, deployment, items)

    def identity(self) -> str:
        """Return "": nothing tells whether another store is the same one."""
        return ""

    # -- life ----------------------------------------------------------------------------------------------

    async def open(self, deliver: Callable[[Notification], None], until: float) -> str:
        """Connect, if there is one server; return "", for there is no channel.

        Of several servers each is connected when a name needs it: one that is down concerns no other names.
        """
        self._deliver = deliver
        if len(self._deployment.addresses) == 1:
            await self._link.server(self._deployment.addresses[0], until)
        return ""

    async def close(self) -> None:
        """Disconnect."""
        self._deliver = _ignore
        await self._link.close()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited."""
        self._link.abandon()

    def _tell(self, notification: Notification) -> None:
        self._runtime.post(lambda: self._deliver(notification))

    # -- acquire, renew and release ------------------------------------------------------------------------

    async def acquire(self, request: AcquireRequest, until: float) -> Reply:
        """Grant the name, or refuse it with the time of the next look."""
        return await self._acquirer.acquire(request, until)

    async def acquire_many(self, requests: Sequence[AcquireRequest], until: float) -> list[Reply]:
        """Raise NotImplementedError: memcached changes one item at a time."""
        raise NotImplementedError

    async def release(self, release: ReleaseRequest, until: float) -> Outcome:
        """End a lease."""
        return await self._releaser.release(release, until)

    async def renew(self, renewals: Sequence[RenewRequest], until: float) -> list[RenewReply]:
        """Renew a batch of leases. A lease that the server has forgotten is restored, if nobody took the name."""
        return await self._renewals.renew(renewals, until)

    async def adjust(self, adjust: AdjustRequest, until: float) -> RenewReply:
        """Change the owner that a lease shows."""
        return await self._renewals.adjust(adjust, until)

    async def withdraw(self, withdraw: WithdrawRequest, until: float) -> NotGranted:
        """Give up a request, and take care that no late copy of it takes the name."""
        return await self._releaser.withdraw(withdraw, until)

    async def resize(self, name: str, before: int, after: int, until: float) -> int:  # noqa: ARG002
        """Return 1: every name has one holder here."""
        return 1

    # -- inspect -------------------------------------------------------------------------------------------

    async def inspect(self, name: str, until: float) -> NameView:
        """Return who holds a name. Waiters are not shown: they poll, and leave no trace."""
        return await self._inspector.inspect(name, until)

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use."""
        return await self._listing.names(prefix, until, rest)

    async def request_revocation(self, name: str, until: float) -> list[HolderView]:
        """Leave a revocation request where the holder finds it at its next renewal."""
        return await self._inspector.request_revocation(name, until)

    async def revoke(self, name: str, until: float, token: int = 0) -> list[HolderView]:
        """Take a name from its holder, which learns of it at its next renewal."""
        return await self._inspector.revoke(name, until, token)


def _ignore(notification: Notification) -> None: ...
