"""The release of all leases of a client that is closed, for as long as the store answers."""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tenure.core.access import OPENING, StoreAccess
from tenure.core.lease import CLOSED, CoreLease
from tenure.outcome import Outcome

if TYPE_CHECKING:
    from tenure.contracts.runtime import SpawnedTask

log = logging.getLogger("tenure")

HELPERS = 7
"""How many tasks or threads help to release the leases of a client that is closed."""

ENOUGH = 100
"""The least leases for each helper."""

Release = Callable[..., Coroutine[Any, Any, Outcome]]
"""`Releases.release`."""


@dataclass(slots=True)
class Closing:
    """The leases that are left to release while a client is closed."""

    leases: deque[CoreLease]
    until: float
    """When to give up, unless the store answers once more."""
    by: object
    """The mark of the thread or task that closes the client, whose bodies are not told; None: no body is."""

    def tells(self, lease: CoreLease) -> bool:
        """Return whether a body of a lease is told."""
        return not (self.by is None or lease.by is self.by or lease.dropped)


async def release_all_kept(access: StoreAccess, release: Release, until: float, by: object) -> float:
    """Release all leases, and return by when to end the rest: `until`, or later if the store went on to answer.

    Those with `renew=False` last for their ttl, as if their process had ended. Bodies of others than `by` are told.
    """
    unreleased = access.renewer.unreleased()
    kept = [lease for lease in unreleased if lease.renews or lease.dropped]
    closing = Closing(deque(kept), until, by)
    helpers: list[SpawnedTask] = []
    with contextlib.suppress(RuntimeError):  # the interpreter shuts down: then the caller works alone
        while len(helpers) < min(HELPERS, len(closing.leases) // ENOUGH):
            helpers.append(access.runtime.spawn(partial(release_some, access, release, closing), "release"))
    await release_some(access, release, closing)
    for helper in helpers:
        await helper.join(closing.until + OPENING * access.requests.operation_timeout)
    left = [lease for lease in kept if lease.outcome in {None, Outcome.UNKNOWN}]
    for lease in left:
        if lease.body is not None and closing.tells(lease):
            lease.lose(CLOSED)  # nobody renews it any more
    if access.events is not None:
        for lease in unreleased:
            access.events.ended(lease, Outcome.UNKNOWN)
    if left:
        log.warning(
            "the client was closed while the store did not answer: the lease of %r %s",
            left[0].grant.title,
            f"and {len(left) - 1} more end at their ttl" if len(left) > 1 else "ends at its ttl",
        )
    return closing.until


async def release_some(access: StoreAccess, release: Release, closing: Closing) -> None:
    """Release one lease after another, for as long as the store answers."""
    while closing.leases:
        try:
            lease = closing.leases.popleft()
        except IndexError:  # another thread took the last one
            return
        outcome = await release(lease, told=closing.tells(lease))
        now = access.runtime.now()
        if outcome is Outcome.UNKNOWN and now >= closing.until:
            return
        if outcome is not Outcome.UNKNOWN:
            with access.mutex:  # and max(): a helper that read the time long ago must not move the deadline back
                closing.until = max(closing.until, now + 2 * access.requests.operation_timeout)
