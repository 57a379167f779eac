"""What `inspect` shows of a name: times in seconds, counted from the instant of the step."""

from collections.abc import Callable

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import HolderView, NameView, WaiterView
from tenure.table.state import PLACEHOLDER, Holder, NameState, Waiter
from tenure.table.times import VOTE_OFFER


def view_name(
    name: str, state: NameState, now: int, listening: Callable[[str], bool], quarantine: tuple[int, int]
) -> NameView:
    """Return who holds a name and who waits for it, and how long the quarantine still lasts and has lasted."""
    return NameView(
        name,
        state.capacity,
        state.counter,
        [view_holder(holder, now) for holder in state.holders],
        [view_waiter(waiter, now, listening) for waiter in state.queue],
        seconds(max(0, state.blocked_until - now)),
        *map(seconds, quarantine),
    )


def view_holder(holder: Holder, now: int) -> HolderView:
    """Return what to show of a holder."""
    return HolderView(
        holder.owner,
        holder.token,
        holder.weight,
        seconds(now - holder.granted_at),
        seconds(holder.expires_at - now),
        seconds(holder.ttl),
        released=holder.request_id.startswith(PLACEHOLDER) and holder.ttl != VOTE_OFFER,
    )


def view_waiter(waiter: Waiter, now: int, listening: Callable[[str], bool]) -> WaiterView:
    """Return what to show of a waiter. A waiter is alive if it asked in time and a client listens to its channel."""
    return WaiterView(
        waiter.request.owner,
        waiter.request.weight,
        seconds(now - waiter.joined_at),
        waiter.fresh_until >= now and listening(waiter.request.channel),
    )
