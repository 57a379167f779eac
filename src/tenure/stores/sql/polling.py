"""The step of a waiter that polls, because no notification reaches its client.

It polls the more rarely the longer it has waited, but not later than the lease may end that it waits for. Most of its
requests find everything as it was and write nothing.
"""

from tenure.contracts.messages import AcquireRequest, NotificationKind, Queued, Reply
from tenure.table.step import Step

SHARE = 8
"""A waiter that has waited for a while polls again after this part of it."""

LONGEST = 250_000
"""The longest time between two requests of a waiter that polls, in microseconds."""


def acquire_by_polling(step: Step, request: AcquireRequest) -> Reply:
    """Take the step of an acquire request without a channel."""
    before = step.state.queue.find(request.request_id)
    fresh_until = before.fresh_until if before is not None else 0
    reply = step.acquire(request)
    waiter = step.state.queue.find(request.request_id)
    if not isinstance(reply, Queued) or waiter is None:
        return reply
    usual = request.interval + request.interval * min(reply.place, 10) // 10
    if reply.retry_in >= usual:  # else it is when the lease may end
        reply.retry_in = min(max(usual, (step.now - waiter.joined_at) // SHARE), LONGEST, max(_frees_in(step), usual))
    if fresh_until > step.now + request.waiter_ttl * 3 // 4:
        waiter.fresh_until = fresh_until
        if all(each.kind is NotificationKind.CONTENDED for each in step.notifications):
            step.notifications.clear()
    return reply


def _frees_in(step: Step) -> int:
    ends = [holder.expires_at for holder in step.state.holders]
    return min(ends) - step.now if ends else 0
