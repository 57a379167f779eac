"""From messages to the arguments of scripts, and from their replies back. The Lua files say what stands where."""

from collections.abc import Sequence
from typing import Any

from holdfast.core.deadlines import seconds
from holdfast.core.messages import (
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
from holdfast.stores.redis.link import Word

KINDS = {ord("G"): NoticeKind.GRANTED, ord("H"): NoticeKind.HEAD, ord("R"): NoticeKind.REVOKED}

OUTCOMES = (None, Outcome.RELEASED, Outcome.EXPIRED, Outcome.TAKEN_OVER)
"""By the number that a script returns."""


def ask_args(ask: Ask) -> tuple[Word, ...]:
    """Return the arguments of `acquire`."""
    return (
        ask.request,
        ask.inbox,
        ask.owner,
        ask.ttl,
        ask.first_ttl,
        ask.pushed_ttl,
        ask.interval,
        ask.patience,
        ask.weight,
        ask.capacity,
        ask.lock_delay,
        ask.proposal,
        1 if ask.wait else 0,
    )


def reply_of(value: Any) -> Reply:  # noqa: ANN401 - as a script returns it
    """Read what `acquire` returned."""
    kind = value[0]
    if kind == 1:
        return Granted(value[1], value[2])
    if kind == 2:  # noqa: PLR2004 - acquire.lua names them
        return Waiting(value[1], value[2], value[3], value[4])
    if kind == 3:  # noqa: PLR2004
        return Busy(value[1], tuple(map(_text, value[3:])), value[2])
    return Mismatch(value[1]) if kind == 4 else Gone()  # noqa: PLR2004


def renewal_args(renewals: Sequence[Renewal]) -> tuple[Word, ...]:
    """Return the arguments of `renew`, for leases of one client."""
    args: list[Word] = ["", ""]
    for renewal in renewals:
        ask = renewal.ask
        weight, capacity, delay = (ask.weight, ask.capacity, ask.lock_delay) if ask else (0, 1, 0)
        if ask is not None:
            args[:2] = [ask.owner, ask.inbox]
        args += [renewal.request, renewal.token, renewal.ttl, weight, capacity, delay]
    return tuple(args)


def outcome_of(value: int) -> Outcome:
    """Read what `release` returned."""
    return OUTCOMES[value] or Outcome.UNKNOWN


def renewed(value: int) -> RenewReply:
    """Read what `renew` returned for one lease."""
    return OUTCOMES[value]


def left_of(value: Any) -> Left:  # noqa: ANN401
    """Read what `leave` returned."""
    return Left(tuple(map(_text, value[2:])), value[0], value[1])


def holders_of(value: Any) -> list[HolderView]:  # noqa: ANN401
    """Read the holders that `inspect` and `revoke` return."""
    return [
        HolderView(_text(owner), token, weight, seconds(held), seconds(left), seconds(ttl), bool(confirmed))
        for owner, token, weight, held, left, ttl, confirmed in value
    ]


def view_of(name: str, value: Any) -> NameView:  # noqa: ANN401
    """Read what `inspect` returned."""
    capacity, counter, blocked_for, holders, waiters = value
    shown = [WaiterView(_text(owner), weight, seconds(waited), bool(alive)) for owner, weight, waited, alive in waiters]
    return NameView(name, capacity, counter, holders_of(holders), shown, seconds(blocked_for))


def notice_of(inbox: str, payload: bytes) -> Notice | None:
    """Read a push: a letter for its kind, a number, and the request; None for what is not ours."""
    kind = KINDS.get(payload[0]) if payload else None
    words = payload.split(b" ")
    if kind is None or len(words) != 3 or not words[1].isdigit():  # noqa: PLR2004
        return None
    number, request = int(words[1]), words[2].decode()
    return (
        Notice(inbox, kind, request, after=number) if kind is NoticeKind.HEAD else Notice(inbox, kind, request, number)
    )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
