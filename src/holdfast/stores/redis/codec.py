"""From messages to the arguments of scripts, and from their replies back. The Lua files say what stands where."""

from collections.abc import Sequence
from typing import Any

from holdfast.contracts.deadlines import seconds
from holdfast.contracts.messages import (
    AcquireRequest,
    Busy,
    CapacityMismatch,
    Granted,
    HolderView,
    NameView,
    NotGranted,
    Notification,
    NotificationKind,
    Queued,
    RenewReply,
    RenewRequest,
    Reply,
    WaiterView,
    Withdrawn,
)
from holdfast.outcome import Outcome
from holdfast.stores.redis.messagepack import Packable

KINDS = {
    "G": (NotificationKind.GRANTED, False),
    "g": (NotificationKind.GRANTED, True),
    "H": (NotificationKind.HEAD, False),
    "R": (NotificationKind.REVOKED, False),
    "W": (NotificationKind.CONTENDED, False),
    "A": (NotificationKind.REVOCATION_REQUESTED, False),
}
"""What the letter says that a push begins with: its kind, and for a grant whether somebody else waits."""

OUTCOMES = (None, Outcome.RELEASED, Outcome.EXPIRED, Outcome.TAKEN_OVER)
"""By the number that a script returns."""

CONTENDED = 4
"""What `renew` returns for a lease that is renewed and for which somebody waits."""


def request_words(request: AcquireRequest) -> tuple[Packable, ...]:
    """Return what is the same in all requests of a lock, for the first argument of `acquire`."""
    return (
        request.channel,
        request.owner,
        request.ttl,
        request.interval,
        request.waiter_ttl,
        request.weight,
        request.capacity,
        request.lock_delay,
        request.span,
        request.votes,
    )


def reply_of(value: Any) -> Reply:  # noqa: ANN401 - as a script returns it
    """Read what `acquire` returned."""
    kind = value[0]
    if kind == 1:
        return Granted(value[1], value[2], value[3] == 1)
    if kind == 2:  # noqa: PLR2004 - acquire.lua names them
        return Queued(value[1], value[2], value[3], value[4])
    if kind == 3:  # noqa: PLR2004
        return Busy(value[1], tuple(map(_text, value[3:])), value[2])
    return CapacityMismatch(value[1]) if kind == 4 else Withdrawn()  # noqa: PLR2004


def renewal_words(renewals: Sequence[RenewRequest]) -> tuple[str, str]:
    """Return the channel of the one client whose leases these are, and what the first of them says of its owner."""
    requests = [each.request for each in renewals if each.request is not None]
    return (requests[0].channel, requests[0].owner) if requests else ("", "")


def renewal(each: RenewRequest, owner: str) -> tuple[Packable, ...]:
    """Return one lease, for `renew`, and its owner if that is another than `owner`.

    Without its request it can be renewed, but not be taken up again.
    """
    request = each.request
    if request is None:
        return (each.request_id, each.token, each.ttl, 0, 1, 0, 1, "")
    other = "" if request.owner == owner else request.owner
    return (
        each.request_id,
        each.token,
        each.ttl,
        request.weight,
        request.capacity,
        request.lock_delay,
        request.span,
        other,
    )


def outcome_of(value: int) -> Outcome:
    """Read what `release` returned."""
    return OUTCOMES[value] or Outcome.UNKNOWN


def adjusted(value: int) -> RenewReply:
    """Read what `adjust` returned."""
    return OUTCOMES[value]


def renewed(renewal: RenewRequest, value: int) -> RenewReply:
    """Read what `renew` returned for one lease, and note whether somebody waits for its name."""
    renewal.contended = value == CONTENDED
    return None if renewal.contended else OUTCOMES[value]


def left_of(value: Any) -> NotGranted:  # noqa: ANN401
    """Read what `withdraw` returned."""
    return NotGranted(tuple(map(_text, value[2:])), value[0], value[1])


def holders_of(value: Any) -> list[HolderView]:  # noqa: ANN401
    """Read the holders that `inspect` and `revoke` return."""
    return [
        HolderView(_text(owner), token, weight, seconds(held), seconds(left), seconds(ttl))
        for owner, token, weight, held, left, ttl in value
    ]


def view_of(name: str, value: Any) -> NameView:  # noqa: ANN401
    """Read what `inspect` returned."""
    capacity, counter, blocked_for, holders, waiters, quarantined_for = value
    shown = [WaiterView(_text(owner), weight, seconds(waited), bool(alive)) for owner, weight, waited, alive in waiters]
    blocked, quarantined = seconds(blocked_for), seconds(quarantined_for)
    return NameView(name, capacity, counter, holders_of(holders), shown, blocked, quarantined)


def notification_of(channel: str, payload: bytes) -> Notification | None:
    """Read a push: a letter, a number, and the request; None for what is not ours."""
    letter, _, rest = payload.decode("utf-8", "replace").partition(" ")
    number, _, request_id = rest.partition(" ")
    kind, contended = KINDS.get(letter, (None, False))
    if kind is None or not request_id or not number.isdigit():
        return None
    if kind is NotificationKind.HEAD:
        return Notification(channel, kind, request_id, after=int(number))
    return Notification(channel, kind, request_id, int(number), contended=contended)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
