"""Renew leases that can fail apart from each other: at several servers, or in rows of their own.

A client sends the renewals of many leases at once. If what one of them needs stands still, the others must not wait for
it until they have ended.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TypeVar

from tenure.contracts.messages import RenewReplies, RenewReply, RenewRequest
from tenure.errors import StoreError

K = TypeVar("K", bound=Hashable)


async def renew_apart(
    renewals: Sequence[RenewRequest],
    place_of: Callable[[RenewRequest], K],
    renew: Callable[[K, Sequence[RenewRequest], float], Awaitable[RenewReplies]],
    now: Callable[[], float],
    until: float,
) -> RenewReplies:
    """Renew the leases of one place after the other, those of a place together; return all replies, in their order.

    A place has at most half of the time that is left, and the last one all of it. The leases that failed the last time
    come last, and their places too: so a place that stands still costs the others time once.
    """
    groups: dict[K, list[RenewRequest]] = {}
    for each in renewals:
        place = place_of(each)
        group = groups[place] = groups.pop(place, [])
        group.append(each)
    replies: dict[str, RenewReply | StoreError] = {}
    for left, (place, group) in zip(range(len(groups) - 1, -1, -1), groups.items(), strict=True):
        half = (until - now()) / 2
        try:
            said = await renew(place, group, until - half if left else until)
        except StoreError as error:
            said = [error] * len(group)
        replies.update(zip((each.request_id for each in group), said, strict=True))
    return [replies[each.request_id] for each in renewals]
