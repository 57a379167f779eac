"""Self-deadlocks: a thread or task that is about to wait for ever for a lease that it holds itself."""

import logging

from tenure.core.access import StoreAccess
from tenure.core.lease import CoreLease
from tenure.core.spec import LockSpec
from tenure.errors import SelfDeadlock, StoreError

log = logging.getLogger("tenure")


def refuse_to_wait_for_oneself(access: StoreAccess, spec: LockSpec) -> None:
    """Raise SelfDeadlock if the leases of the name that the calling thread or task holds leave no room for `spec`."""
    mine = _held_by_caller(access, spec)
    if mine and sum(lease.request.weight for lease in mine) + spec.weight > spec.capacity:
        raise SelfDeadlock(spec.title, mine[-1].token, spec.advice)


async def refuse_to_wait_behind_oneself(access: StoreAccess, spec: LockSpec, since: float) -> None:
    """Raise SelfDeadlock if an earlier waiter cannot be granted while the caller holds its lease: a writer, say.

    `since` is the local instant at which the caller's own request was sent. A waiter that joined just before it may be
    missed; no later waiter is taken for an earlier one.
    """
    mine = _held_by_caller(access, spec)
    if not mine:
        return
    try:
        view = await access.inspect(spec.name)
    except StoreError as error:
        log.debug("the waiters of %r could not be inspected for a self-deadlock: %s", spec.title, error)
        return
    held, waited = sum(each.request.weight for each in mine), access.runtime.now() - since
    for waiter in view.waiters:
        if (waiter.owner, waiter.weight) == (access.owner, spec.weight) and waiter.waited_for <= waited:
            return  # this is the caller's own request
        if waiter.alive and waiter.weight + held > view.capacity:
            advice = f"An earlier waiter can only be granted when that lease ends. {spec.advice}"
            raise SelfDeadlock(spec.title, mine[-1].token, advice)


def _held_by_caller(access: StoreAccess, spec: LockSpec) -> list[CoreLease]:
    """Return the caller's leases of the name; none if it takes part in deadlock detection, which finds them too."""
    mark = access.runtime.mark()
    if mark is None or spec.actor is not None:
        return []
    kept = access.renewer.kept()
    return [lease for lease in kept if lease.by is mark and lease.name == spec.name and lease.trusted()]
