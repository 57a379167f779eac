"""From messages to the arguments of scripts, and from their replies back. The Lua files say what stands where."""

from collections.abc import Sequence
from typing import Any

from holdfast.contracts.deadlines import seconds
from holdfast.contracts.messages import (
    Ask,
    Busy,
    Gone,
    Granted,
    HolderView,
    Left,
    Mismatch,
    NameView,
    Notice,
    NoticeKind,
    Renewal,
    RenewReply,
    Reply,
    WaiterView,
    Waiting,
)
from holdfast.outcome import Outcome
from holdfast.stores.redis.messagepack import Packable

KINDS = {
    "G": (NoticeKind.GRANTED, False),
    "g": (NoticeKind.GRANTED, True),
    "H": (NoticeKind.HEAD, False),
    "R": (NoticeKind.REVOKED, False),
    "W": (NoticeKind.WANTED, False),
    "A": (NoticeKind.ASKED, False),
}
"""What the letter says that a push begins with: its kind, and for a grant whether somebody else waits."""

OUTCOMES = (None, Outcome.RELEASED, Outcome.EXPIRED, Outcome.TAKEN_OVER)
"""By the number that a script returns."""

WANTED = 4
"""What `renew` returns for a lease that is renewed and for which somebody waits."""


def about_ask(ask: Ask) -> tuple[Packable, ...]:
    """Return what is the same in all asks of a lock, for the first argument of `acquire`."""
    return (
        ask.inbox,
        ask.owner,
        ask.ttl,
        ask.interval,
        ask.patience,
        ask.weight,
        ask.capacity,
        ask.lock_delay,
        ask.span,
        ask.votes,
    )


def reply_of(value: Any) -> Reply:  # noqa: ANN401 - as a script returns it
    """Read what `acquire` returned."""
    kind = value[0]
    if kind == 1:
        return Granted(value[1], value[2], value[3] == 1)
    if kind == 2:  # noqa: PLR2004 - acquire.lua names them
        return Waiting(value[1], value[2], value[3], value[4])
    if kind == 3:  # noqa: PLR2004
        return Busy(value[1], tuple(map(_text, value[3:])), value[2])
    return Mismatch(value[1]) if kind == 4 else Gone()  # noqa: PLR2004


def about_renewals(renewals: Sequence[Renewal]) -> tuple[str, str]:
    """Return the inbox of the one client whose leases these are, and what the first of them says of its owner."""
    asks = [each.ask for each in renewals if each.ask is not None]
    return (asks[0].inbox, asks[0].owner) if asks else ("", "")


def renewal(each: Renewal, owner: str) -> tuple[Packable, ...]:
    """Return one lease, for `renew`, and its owner if that is another than `owner`.

    Without its ask it can be renewed, but not be taken up again.
    """
    ask = each.ask
    if ask is None:
        return (each.request, each.token, each.ttl, 0, 1, 0, 1, "")
    other = "" if ask.owner == owner else ask.owner
    return (each.request, each.token, each.ttl, ask.weight, ask.capacity, ask.lock_delay, ask.span, other)


def outcome_of(value: int) -> Outcome:
    """Read what `release` returned."""
    return OUTCOMES[value] or Outcome.UNKNOWN


def adjusted(value: int) -> RenewReply:
    """Read what `adjust` returned."""
    return OUTCOMES[value]


def renewed(renewal: Renewal, value: int) -> RenewReply:
    """Read what `renew` returned for one lease, and note whether somebody waits for its name."""
    renewal.wanted = value == WANTED
    return None if renewal.wanted else OUTCOMES[value]


def left_of(value: Any) -> Left:  # noqa: ANN401
    """Read what `leave` returned."""
    return Left(tuple(map(_text, value[2:])), value[0], value[1])


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


def notice_of(inbox: str, payload: bytes) -> Notice | None:
    """Read a push: a letter, a number, and the request; None for what is not ours."""
    letter, _, rest = payload.decode("utf-8", "replace").partition(" ")
    number, _, request = rest.partition(" ")
    kind, wanted = KINDS.get(letter, (None, False))
    if kind is None or not request or not number.isdigit():
        return None
    if kind is NoticeKind.HEAD:
        return Notice(inbox, kind, request, after=int(number))
    return Notice(inbox, kind, request, int(number), wanted=wanted)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
