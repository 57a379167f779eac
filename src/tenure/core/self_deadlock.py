"""Self-deadlocks: a thread or task that is about to wait for ever for a lease that it holds itself.

The lease counts only if nobody can release it meanwhile: a `with` statement holds it, in a function that waits for the
very acquisition, and nobody else has its lease object. A thread or task that acquired a lease of the name in any other
way waits, because another one may release that lease. A semaphore never refuses to wait: its permits are often released
by others. Who waits like that is told so in the log, after a second.
"""

import logging

from tenure.core.access import StoreAccess
from tenure.core.lease import CoreLease
from tenure.core.spec import LockSpec
from tenure.entering import is_alone, is_of_with, running_frame
from tenure.errors import SelfDeadlock, StoreError

log = logging.getLogger("tenure")

WARN_AFTER = 1.0
"""After how many seconds a thread or task is told that it may wait for itself."""


def held_by_caller(access: StoreAccess, spec: LockSpec) -> list[CoreLease]:
    """Return the leases of the name that the calling thread or task acquired.

    It returns none if the caller takes part in deadlock detection, which finds them too, and none that ends by itself.
    """
    mark = access.runtime.mark()
    if mark is None or spec.actor is not None:
        return []
    kept = access.renewer.kept()
    mine = [lease for lease in kept if lease.by is mark and lease.grant.name == spec.name and lease.trusted()]
    return [lease for lease in mine if lease.renews]


async def refuse_to_wait_for_oneself(access: StoreAccess, spec: LockSpec, since: float) -> None:
    """Raise SelfDeadlock if leases that nobody else can release keep the caller waiting for ever.

    `since` is the local instant at which the caller's own request was sent.
    """
    if spec.resizable:  # a semaphore
        return
    bound = [lease for lease in held_by_caller(access, spec) if _is_bound(lease)]
    if bound and (why := await _why_blocked(access, spec, bound, since)) is not None:
        raise SelfDeadlock(spec.title, bound[-1].token, f"{why}{spec.advice}")


async def warn_of_waiting_for_oneself(access: StoreAccess, spec: LockSpec, since: float) -> None:
    """Log a warning if leases that the caller acquired keep it waiting."""
    mine = held_by_caller(access, spec)
    if mine and (why := await _why_blocked(access, spec, mine, since)) is not None:
        log.warning(
            "a thread or task has waited for %r for a second, and has acquired it itself (token %d): unless somebody "
            "else releases that lease, it waits for ever. %s%s",
            spec.title,
            mine[-1].token,
            why,
            spec.advice,
        )


def _is_bound(lease: CoreLease) -> bool:
    """Return whether nobody can release the lease before the caller goes on."""
    if lease.body is None:
        return False
    where, lease_object = lease.body
    frame = running_frame(where)
    return frame is not None and is_of_with(where) and is_alone(lease_object, frame)


WAITS_BEHIND = "An earlier waiter can only be granted when that lease ends. "


async def _why_blocked(access: StoreAccess, spec: LockSpec, leases: list[CoreLease], since: float) -> str | None:
    """Return None if the leases leave room for `spec` and the waiters before it; else more about that, or "".

    A waiter that joined just before `since` may be missed; no later waiter is taken for an earlier one.
    """
    # Only now: another thread may have released a lease, and forgotten it, since the look at who has its lease object.
    held = sum(lease.grant.request.weight for lease in leases if lease.trusted())
    if held + spec.weight > spec.capacity:
        return ""
    try:
        view = await access.inspect(spec.name)
    except StoreError as error:
        log.debug("the waiters of %r could not be inspected for a self-deadlock: %s", spec.title, error)
        return None
    waited = access.runtime.now() - since
    for waiter in view.waiters:
        if (waiter.owner, waiter.weight) == (access.owner, spec.weight) and waiter.waited_for <= waited:
            return None  # this is the caller's own request
        if waiter.alive and waiter.weight + held > view.capacity:
            return WAITS_BEHIND
    return None
