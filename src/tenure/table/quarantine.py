"""Leases that a store has forgotten, and restores in its quarantine when their holders renew them.

The rule (8 of the grant table): a store in quarantine grants nothing, so a lease that its holder still renews is alive,
and can be restored unless the store knows that it is over.
"""

from tenure.contracts.messages import AcquireRequest, RenewRequest
from tenure.table.state import PLACEHOLDER, Holder, NameState


def restore(state: NameState, renewal: RenewRequest, now: int, quarantine: range) -> Holder | None:
    """Restore the lease of a renewal, during a quarantine; return None if it is known to be over.

    A lease of the whole capacity is over if a later token was issued. Leases that share a name are renewed in any
    order, so their tokens say nothing.
    """
    request, token = renewal.request, renewal.token
    if request is None or renewal.request_id in state.tombstones:
        return None
    if renewal.request_id == state.last_released or state.find_holder(PLACEHOLDER + renewal.request_id):
        return None
    if request.weight == request.capacity:
        if token < state.counter or any(holder.token >= token for holder in state.holders):
            return None
        state.holders = []  # their leases had ended when this one was granted
    elif not make_room(state, request, token, now, quarantine):
        return None
    state.capacity = request.capacity
    state.counter = max(state.counter, token)
    state.queue.drop(request.request_id)
    holder = Holder(
        request.request_id,
        request.channel,
        request.owner,
        token,
        request.weight,
        renewal.ttl,
        request.lock_delay,
        now,
        now + renewal.ttl,
        request.span > 1,
    )
    state.holders.append(holder)
    return holder


def make_room(state: NameState, request: AcquireRequest, token: int, now: int, quarantine: range) -> bool:
    """Make room for a lease that shares the name with others; return whether there is room.

    A holder of the whole capacity with a smaller token had ended, or been downgraded, when this lease was granted. If
    that is not enough, the holders that have not renewed since the quarantine began are removed: they are over, or are
    restored when they renew. One of them may have died, and have renewed before in vain, for the store has forgotten
    it: so the lock delay of each begins at the end of the quarantine.
    """
    unheard: list[Holder] = []
    others = [each for each in state.holders if each.weight < state.capacity or each.token > token]
    if request.weight + sum(each.weight for each in others) > request.capacity:
        if any(each.weight == state.capacity for each in others):
            return False
        unheard = [each for each in others if each.expires_at - each.ttl < quarantine.start]
        others = [each for each in others if each.expires_at - each.ttl >= quarantine.start]
    if (others or state.queue) and state.capacity != request.capacity:
        return False
    if request.weight + sum(each.weight for each in others) > request.capacity:
        return False
    for each in unheard:
        if each.lock_delay:
            state.block_for(max(each.expires_at, quarantine.stop) + each.lock_delay - now, now)
    state.holders = others
    return True
