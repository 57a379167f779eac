"""Leases that are handed over: detached by one client, and adopted by another by their handle.

The rules, of which docs/adr/0018-handover.md gives the reasons:

*   A detached lease belongs to nobody. The store keeps it under the id of its handle, and its owner metadata says so.
    A client that detaches a lease has ended its own before anybody has the handle.
*   An adoption is one atomic step of the store: it replaces the request id, issues a larger token, and names the new
    owner. It names the id and the token that it replaces, so of two adoptions at the same time one is refused, and
    looks again.
*   The client that had the lease before is refused from then on, whatever it sends. If it was an adopter, it may take
    the lease for its own until its own deadline. So the next adopter keeps the lease in the store until that deadline
    has passed by the store's clock, and holds it only then. Meanwhile it never restores the lease in a store that has
    forgotten the adoption.
"""

from dataclasses import dataclass, replace
from functools import partial

from tenure.contracts.deadlines import DRIFT, EPSILON, NEVER, micros, seconds, valid_until
from tenure.contracts.handles import Handle
from tenure.contracts.limits import EVERYBODY, check_ttl, describe_quarantine
from tenure.contracts.messages import AcquireRequest, AdjustRequest, HolderView, ReleaseRequest, RenewRequest
from tenure.contracts.owner_metadata import OwnerMetadata, read_metadata
from tenure.contracts.store import renew_together
from tenure.core.access import INTERVAL
from tenure.core.attempt import WAITER_TTL
from tenure.core.events import Subject
from tenure.core.lease import ADOPTED, CoreLease, Grant, why_refused
from tenure.core.session import Session
from tenure.errors import LeaseLost, LockTimeout, StoreError, StoreUnavailable, UsageError
from tenure.escaping import shown
from tenure.outcome import Outcome

ROUNDS = 8
"""How often a step is repeated if others have changed the lease or issued tokens since the look."""

NOT_HANDED_OVER = (
    "this store keeps a lease only for the connection or session that acquired it, so no lease is detached or adopted: "
    "use another store, such as redis://host or postgresql://host/database."
)


def refuse_if_bound(session: Session) -> None:
    """Raise UsageError if a lease cannot outlive the client that acquired it."""
    if not session.store.capabilities.hands_over:
        raise UsageError(NOT_HANDED_OVER)


# -- detach ------------------------------------------------------------------------------------------------


async def detach(session: Session, lease: CoreLease, ttl: float | None, reason: str) -> Handle:
    """End a lease here, and return the handle by which it goes on, for `ttl` seconds (None: its own ttl) from now on.

    Raises LeaseLost if the lease is lost, UsageError if it cannot be handed over, StoreError if the store did not
    answer: then the lease is held as before, or lost if the store may have carried out the request.
    """
    refuse_if_bound(session)
    lease.check()
    _refuse_to_detach(session, lease, ttl)
    lease.begin_guard()  # so that the lease is not handed on to another holder in this process meanwhile
    grant, request = lease.grant, lease.grant.request
    length = max(grant.longest_ttl, request.ttl, lease.ttl, 0 if ttl is None else micros(ttl))
    new_id = session.runtime.new_id()
    owner = OwnerMetadata(read_metadata(request.owner).owner, reason=reason, handle=new_id).text()
    try:
        await _stop_renewals(session, lease)
        adjust = AdjustRequest(grant.name, grant.request_id, grant.last, 0, owner, grant.last + 1, new_id, "", length)
        refused = await _raise_token(session, grant, adjust)
    except GeneratorExit:
        raise
    except BaseException:
        await session.runtime.finish(_take_back(session, lease, new_id))
        raise
    if refused is not None:
        session.renewer.lose(lease, why_refused(refused, RenewRequest(grant.name, grant.request_id, 0, 0)))
        raise lease.loss()
    handle = Handle(
        grant.name, new_id, adjust.raise_to, adjust.ttl, request.weight, request.capacity, request.lock_delay
    )
    if not lease.detach():  # it was released or lost meanwhile
        await release(session, handle)
        raise lease.loss()
    session.renewer.discard(lease)
    if session.events is not None:
        session.events.ended(lease, Outcome.DETACHED)
    return handle


def _refuse_to_detach(session: Session, lease: CoreLease, ttl: float | None) -> None:
    if ttl is not None:
        check_ttl(ttl, session.store.capabilities)
    if lease.grant.guarded:
        raise UsageError(
            f"a guard of the lease of {lease.grant.title!r} was taken, so it cannot be detached: release it."
        )
    if lease.ends_at != NEVER or lease.grant.free_at or not lease.renews:
        raise UsageError(
            f"the lease of {lease.grant.title!r} has max_hold, min_hold or renew=False, which another client could not "
            "keep: make the lock without them to detach its lease."
        )


async def _stop_renewals(session: Session, lease: CoreLease) -> None:
    """Renew a lease no more, and wait for the renewal that is under way: the store would refuse it after this.

    The renewer keeps the lease, and tells its holder of its end: the store may not answer in time.
    """
    until = session.runtime.now() + session.requests.request_timeout(lease.ttl)
    while True:
        lease.due_at = NEVER
        session.renewer.moved(lease)
        if not lease.renewing or session.runtime.now() >= until:
            return
        await session.runtime.sleep(0.002)


async def _raise_token(session: Session, grant: Grant, adjust: AdjustRequest) -> Outcome | None:
    """Send a request that raises the token of a lease; raise it further if others that share the name got tokens.

    From now on the store may refuse renewals, because it knows the lease by another token: they tell of no loss.
    """
    grant.detaching = True
    timeout = session.requests.request_timeout(adjust.ttl)
    refused: Outcome | None = None
    for _ in range(ROUNDS):
        refused = await session.requests.send_up_to_three_times(partial(session.store.adjust, adjust), timeout)
        if refused is None:
            return None
        view = await session.look_at(adjust.name)
        if all(holder.token != adjust.token for holder in view.holders):
            return refused
        if view.quarantined_for:
            raise StoreUnavailable(f"{describe_quarantine(view.quarantined_for)}. Detach the lease later.")
        adjust.raise_to = max(view.last_token, adjust.raise_to) + 1
    return refused


async def _take_back(session: Session, lease: CoreLease, new_id: str) -> None:
    """Go on with a lease whose detachment failed; lose and release it if the store may have detached it.

    Nobody has a handle. A larger token tells which it is, and makes the store refuse what may still be under way. The
    lease is lost before it is released: until then its holder trusts it.
    """
    grant = lease.grant
    back = AdjustRequest(grant.name, grant.request_id, grant.last, 0, "", grant.last + 1)
    try:
        refused = await _raise_token(session, grant, back)
    except StoreError:
        refused = Outcome.UNKNOWN
    if refused is None:
        grant.last = back.raise_to
        grant.guarded = grant.detaching = False
        if lease.trusted():
            session.renewer.add(lease)
        return
    session.renewer.lose(lease, "it was to be detached, but its handle was never returned")
    for request_id in (grant.request_id, new_id):  # in this order: a detachment still under way needs the first
        await _release_unowned(session, ReleaseRequest(grant.name, request_id, 0, unsure=True), lease)


async def _release_unowned(session: Session, gone: ReleaseRequest, lease: CoreLease) -> None:
    """Release a lease that nobody has; if the store does not answer, in the background."""
    timeout = session.requests.request_timeout(lease.ttl)
    try:
        await session.store.release(gone, session.runtime.now() + timeout)
    except StoreError:
        session.late_releases.repeat(
            lambda: session.store.release(gone, session.runtime.now() + timeout), lease.grant.name, lease.kept_until
        )


# -- adopt -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Found:
    """A lease as the store shows it."""

    holder: HolderView
    owner: OwnerMetadata
    last_token: int

    @property
    def request_id(self) -> str:
        return self.owner.adopted or self.owner.handle

    @property
    def detached(self) -> bool:
        return not self.owner.adopted


async def adopt(
    session: Session, handle: Handle, title: str, *, ttl: float | None, timeout: float | None, owned: list[CoreLease]
) -> CoreLease:
    """Go on with the lease of a handle, for `ttl` seconds (None: that of the handle) after each renewal.

    The lease is put into `owned` before it is returned. Raises LeaseLost if the lease has ended; LockTimeout if an
    earlier adopter may hold it for longer than `timeout` seconds; UsageError if the store cannot hand over leases or
    grants none for this ttl; StoreError if the store did not answer: calling again is safe.
    """
    work = partial(_adopt, session, handle, title, ttl=ttl, timeout=timeout, owned=owned)
    if session.events is None:
        return await work()
    return await session.events.follow(Subject(title, "", _kind(handle), handle.weight), work, waits=timeout != 0)


def _kind(handle: Handle) -> str:
    """Return the kind of primitive that a lease is of, as events name it."""
    if handle.capacity == EVERYBODY:
        return "rw write" if handle.weight == EVERYBODY else "rw read"
    return "lock" if handle.capacity == 1 else "semaphore"


async def _adopt(
    session: Session, handle: Handle, title: str, *, ttl: float | None, timeout: float | None, owned: list[CoreLease]
) -> CoreLease:
    refuse_if_bound(session)
    length = micros(check_ttl(seconds(handle.ttl) if ttl is None else ttl, session.store.capabilities))
    session.refuse_to_acquire()
    await session.open()
    found, adjust = await _take_over(session, handle, title, length, timeout)
    mine = session.renewer.find(found.request_id)
    if mine is not None:
        session.renewer.lose(mine, ADOPTED)
    free_at = 0.0 if found.detached else await _end_of_earlier(session, adjust, title)
    renewal, sent = await _keep_until(session, adjust, title, length, free_at)
    token = adjust.raise_to
    lease = CoreLease(
        session.runtime,
        session.mutex,
        Grant(_request(handle, adjust, length), title, token, unsure=False),
        token,
        length,
        valid_until(sent, renewal.ttl),
        NEVER,
    )
    owned.append(lease)
    session.renewer.add(lease)
    session.highest_token = max(session.highest_token, lease.token)
    if not session.acquires:  # a `close` or `drain` that began after the look above may not have found the lease
        session.refuse_to_acquire()
    lease.check()
    return lease


async def _take_over(
    session: Session, handle: Handle, title: str, length: int, timeout: float | None
) -> tuple[_Found, AdjustRequest]:
    """Make this client the owner of the lease in the store; return what it was before, and the request."""
    give_up_at = None if timeout is None else session.runtime.now() + timeout
    for _ in range(ROUNDS):
        found = await _find(session, handle, title)
        if give_up_at is not None and not found.detached:
            _refuse_to_wait_for(found, title, give_up_at - session.runtime.now())
        new_id, token = session.runtime.new_id(), found.holder.token
        owner = OwnerMetadata(session.owner, reason=found.owner.reason, handle=handle.request_id, adopted=new_id)
        adjust = AdjustRequest(
            handle.name,
            found.request_id,
            token,
            0,
            owner.text(),
            max(found.last_token, token) + 1,
            new_id,
            session.channel,
            length if found.detached else 0,
        )
        if (
            await session.requests.send_up_to_three_times(
                partial(session.store.adjust, adjust), session.requests.request_timeout(length)
            )
            is None
        ):
            return found, adjust
    raise StoreUnavailable(
        f"the lease of {title!r} was adopted by other clients all the time: see `tenure show`, and adopt it by one"
    )


async def _find(session: Session, handle: Handle, title: str) -> _Found:
    """Return the lease of a handle. Raises LeaseLost if it has ended."""
    view = await session.look_at(handle.name)
    for holder in view.holders:
        owner = read_metadata(holder.owner)
        if owner.handle == handle.request_id:
            if view.quarantined_for:
                raise StoreUnavailable(
                    f"{describe_quarantine(view.quarantined_for)}. Adopt the lease of {title!r} after that"
                )
            return _Found(holder, owner, view.last_token)
    raise ended(title, handle, view.holders)


def ended(title: str, handle: Handle, holders: list[HolderView]) -> LeaseLost:
    """Make the error that says that there is no lease of a handle."""
    now = "nobody holds the name"
    if holders:
        now = f"{shown(read_metadata(holders[0].owner).owner)} holds the name by another lease"
    return LeaseLost(
        f"the lease of {title!r} (token {handle.token}) has ended, or this is not its store: {now}. Acquire a new one."
    )


def _refuse_to_wait_for(found: _Found, title: str, left: float) -> None:
    """Raise LockTimeout if an earlier adopter may hold the lease for longer than the time that is left."""
    if found.holder.expires_in > left:
        raise LockTimeout(
            f"the lease of {title!r} was adopted by {shown(found.owner.owner)} before, which may hold it for another "
            f"{found.holder.expires_in:.1f} s: give a longer timeout, or let that client detach or release it."
        )


async def _end_of_earlier(session: Session, adjust: AdjustRequest, title: str) -> float:
    """Return the local instant until which the earlier adopter may hold the lease. It cannot renew any more."""
    view = await session.look_at(adjust.name)
    for holder in view.holders:
        if read_metadata(holder.owner).adopted == adjust.successor:
            coarse = session.store.capabilities.min_ttl  # no less than the unit in which the store counts
            return session.runtime.now() + holder.expires_in * (1.0 + 2 * DRIFT) + EPSILON + coarse
    raise LeaseLost(f"the lease of {title!r} has ended, or was adopted once more: look at it with `tenure show`.")


async def _keep_until(
    session: Session, adjust: AdjustRequest, title: str, length: int, until: float
) -> tuple[RenewRequest, float]:
    """Renew the lease until a local instant has passed; return the last renewal, and when it was sent."""
    while True:
        renewal = RenewRequest(adjust.name, adjust.successor, adjust.raise_to, length)  # without what restores a lease
        sent = await _renew(session, renewal, title)
        if sent >= until:
            return renewal, sent
        await session.runtime.sleep(min(seconds(length) / 4, max(0.001, until - session.runtime.now())))


async def _renew(session: Session, renewal: RenewRequest, title: str) -> float:
    """Renew a lease that is no `CoreLease`; return when the renewal that was answered was sent.

    Raises LeaseLost if the store refuses, StoreError without an answer.
    """
    length = renewal.ttl

    async def once(until: float) -> tuple[Outcome | None, float]:
        sent, renewal.ttl = session.runtime.now(), length
        (reply,) = await renew_together(session.store, [renewal], until)
        if not renewal.ttl:  # the server of this name did not answer
            raise StoreUnavailable(f"the store did not renew the lease of {title!r} in time: try again")
        return reply, sent

    refused, sent = await session.requests.send_up_to_three_times(once, session.requests.request_timeout(length))
    if refused is not None:
        raise LeaseLost(
            f"the lease of {title!r} (token {renewal.token}) is lost: {why_refused(refused, renewal)}. It has ended, "
            "or was adopted by its handle: see its holder with `tenure show`."
        )
    return sent


def _request(handle: Handle, adjust: AdjustRequest, length: int) -> AcquireRequest:
    """Return the request by which the lease is known from now on, as if the adopter had acquired it."""
    return AcquireRequest(
        handle.name,
        adjust.successor,
        adjust.channel,
        adjust.owner,
        length,
        INTERVAL,
        WAITER_TTL,
        handle.weight,
        handle.capacity,
        handle.lock_delay,
    )


# -- by its handle alone -----------------------------------------------------------------------------------


async def renew(session: Session, handle: Handle, title: str, ttl: float | None) -> Handle:
    """Renew a detached lease for `ttl` seconds (None: its ttl) from now on; return its handle with that ttl.

    The lease never ends earlier for it. Raises LeaseLost if the lease has ended or was adopted, UsageError if the store
    grants no lease for this ttl, StoreError if the store did not answer.
    """
    refuse_if_bound(session)
    length = micros(check_ttl(seconds(handle.ttl) if ttl is None else ttl, session.store.capabilities))
    await session.open()
    renewal = RenewRequest(handle.name, handle.request_id, handle.token, length)
    await _renew(session, renewal, title)
    return replace(handle, ttl=renewal.ttl)


async def release(session: Session, handle: Handle) -> Outcome:
    """Release a detached lease. Not RELEASED: it had ended, or was adopted. Raises StoreError without an answer."""
    refuse_if_bound(session)
    await session.open()
    request = ReleaseRequest(handle.name, handle.request_id, handle.token)
    timeout = session.requests.operation_timeout
    return await session.requests.send_up_to_three_times(partial(session.store.release, request), timeout)
