"""What `inspect` shows of a name: times in seconds, counted from the instant of the step."""

from collections.abc import Callable

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import HolderView, NameView, WaiterView
from tenure.table.state import Holder, NameState, Waiter


def view_name(
    name: str, state: NameState, now: int, listening: Callable[[str], bool], quarantine_left: int
) -> NameView:
    """Return who holds a name and who waits for it."""
    return NameView(
        name,
        state.capacity,
        state.counter,
        [view_holder(holder, now) for holder in state.holders],
        [view_waiter(waiter, now, listening) for waiter in state.queue],
        seconds(max(0, state.blocked_until - now)),
        seconds(quarantine_left),
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
    )


def view_waiter(waiter: Waiter, now: int, listening: Callable[[str], bool]) -> WaiterView:
    """Return what to show of a waiter. A waiter is alive if it asked in time and a client listens to its channel."""
    return WaiterView(
        waiter.request.owner,
        waiter.request.weight,
        seconds(now - waiter.joined_at),
        waiter.fresh_until >= now and listening(waiter.request.channel),
    )
