"""The codec of the scripts: messages become arguments, replies become messages. The Lua files list the positions."""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from tenure.contracts.deadlines import seconds
from tenure.contracts.messages import (
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
    ReleaseRequest,
    RenewReply,
    RenewRequest,
    Reply,
    WaiterView,
    Withdrawn,
)
from tenure.outcome import Outcome
from tenure.table.times import RETRY, TOMBSTONE

Packable = int | str | Sequence["Packable"]
"""What `pack` encodes."""

KINDS = {
    "G": (NotificationKind.GRANTED, False),
    "g": (NotificationKind.GRANTED, True),
    "H": (NotificationKind.HEAD, False),
    "R": (NotificationKind.REVOKED, False),
    "W": (NotificationKind.CONTENDED, False),
    "A": (NotificationKind.REVOCATION_REQUESTED, False),
}
"""The first letter of a push: its kind, and for a grant whether the name is contended."""

FOR_WAITERS = (b"G ", b"g ", b"H ")
"""How the pushes begin that are for acquisitions which wait."""

OUTCOMES = (None, Outcome.RELEASED, Outcome.EXPIRED, Outcome.TAKEN_OVER)
"""The outcomes by the number that a script returns."""

UNREVOKED = 2
"""What `release` adds to the outcome of a lease that it does not know, if nobody has revoked the lease."""

CONTENDED = 4
"""The number that `renew` returns for a renewed lease whose name is contended."""


_numbers_of_request = struct.Struct(">BBBdddddddddB").pack
_numbers_of_release = struct.Struct(">BBd").pack
_numbers_of_waiter = struct.Struct(">ddd").unpack

acquire_numbers: Callable[[int, int], bytes] = struct.Struct(">Bd").pack
"""Encode whether an acquire request waits, and its proposal, which stand before its id."""

release_numbers: Callable[[int, int, int], bytes] = struct.Struct(">Bdd").pack
"""Encode whether a release is unsure, the token, and how long the name is kept, which stand before the request id."""


def request_fields(request: AcquireRequest, guard: int, bound: int, *, sharded: bool) -> bytes:
    """Encode the fields that all requests of a lock have in common, for the first argument of `acquire`."""
    channel = request.channel.encode()
    numbers = _numbers_of_request(
        sharded,
        guard,
        request.votes,
        bound,
        request.ttl,
        request.interval,
        request.waiter_ttl,
        request.weight,
        request.capacity,
        request.lock_delay,
        request.span,
        request.fair_after,
        len(channel),
    )
    return numbers + channel + request.owner.encode()


def release_fields(guard: int, bound: int, *, sharded: bool) -> bytes:
    """Encode the fields of the client for the first argument of `release`."""
    return _numbers_of_release(sharded, guard, bound)


def granted_or(value: Any, request: AcquireRequest) -> Reply:  # noqa: ANN401 - as a script returns it
    """Decode the reply of `acquire` to a request: a token alone, the numbers of a waiter, or more."""
    if type(value) is int:
        return Granted(value, request.ttl)
    return Queued(*map(int, _numbers_of_waiter(value))) if type(value) is bytes else reply_of(value)


def reply_of(value: Any) -> Reply:  # noqa: ANN401 - as a script returns it
    """Decode a reply of `acquire` that is a list."""
    kind = value[0]
    if kind == 1:
        return Granted(value[1], value[2], value[3] == 1)
    if kind == 2:  # noqa: PLR2004 - acquire.lua names them
        return Queued(value[1], value[2], value[3], value[4])
    if kind == 3:  # noqa: PLR2004
        holders, quarantine = tuple(map(_text, value[3:])), value[2]
        # Without holders and quarantine, only the end of a lock delay is that far away.
        blocked = value[1] if value[1] > RETRY and not (holders or quarantine) else 0
        return Busy(value[1], holders, quarantine, blocked=blocked)
    return CapacityMismatch(value[1]) if kind == 4 else Withdrawn()  # noqa: PLR2004


def channel_and_owner(renewals: Sequence[RenewRequest]) -> tuple[str, str]:
    """Return the channel of the client that has these leases, and the owner of the first of them."""
    requests = [each.request for each in renewals if each.request is not None]
    return (requests[0].channel, requests[0].owner) if requests else ("", "")


def renewal(each: RenewRequest, owner: str) -> tuple[Packable, ...]:
    """Encode one lease for `renew`, with its owner if that differs from `owner`.

    A lease without its request can be renewed, but not restored.
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


def outcome_of(release: ReleaseRequest, value: int) -> Outcome:
    """Decode the reply of `release`, and note in it for how long the lease was certainly not revoked."""
    if value >= len(OUTCOMES):
        release.unrevoked_for = TOMBSTONE
        value -= UNREVOKED
    else:
        release.unrevoked_for = 0
    return OUTCOMES[value] or Outcome.UNKNOWN


def adjusted(value: int) -> RenewReply:
    """Decode the reply of `adjust`."""
    return OUTCOMES[value]


def renewed(renewal: RenewRequest, value: int) -> RenewReply:
    """Decode the reply of `renew` for one lease, and record whether its name is contended."""
    renewal.contended = value == CONTENDED
    return None if renewal.contended else OUTCOMES[value]


def not_granted_of(value: Any) -> NotGranted:  # noqa: ANN401
    """Decode the reply of `withdraw`."""
    return NotGranted(tuple(map(_text, value[2:])), value[0], value[1])


def holders_of(value: Any) -> list[HolderView]:  # noqa: ANN401
    """Decode the holders that `inspect` and `revoke` return."""
    return [
        HolderView(_text(owner), token, weight, seconds(held), seconds(left), seconds(ttl), released=bool(released))
        for owner, token, weight, held, left, ttl, released in value
    ]


def view_of(name: str, value: Any) -> NameView:  # noqa: ANN401
    """Decode the reply of `inspect`, but for where its next page begins."""
    capacity, counter, blocked_for, holders, waiters, quarantined_for, since, _ = value
    shown = [WaiterView(_text(owner), weight, seconds(waited), bool(alive)) for owner, weight, waited, alive in waiters]
    blocked, quarantined = seconds(blocked_for), seconds(quarantined_for)
    return NameView(name, capacity, counter, holders_of(holders), shown, blocked, quarantined, seconds(since))


def notification_of(channel: str, payload: bytes) -> Notification | None:
    """Decode a push: a letter, a number and the request id; None if Tenure did not send it."""
    letter, _, rest = payload.decode("utf-8", "replace").partition(" ")
    number, _, request_id = rest.partition(" ")
    kind, contended = KINDS.get(letter, (None, False))
    if kind is None or not request_id or not number.isdigit():
        return None
    if kind is NotificationKind.HEAD:
        return Notification(channel, kind, request_id, after=int(number))
    return Notification(channel, kind, request_id, int(number), contended=contended)


def is_for_waiter(payload: bytes) -> bool:
    """Return whether a push is for an acquisition that waits, and not for the holder of a lease."""
    return payload[:2] in FOR_WAITERS


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


SMALL = tuple(bytes([number]) for number in range(0x80))
"""The encodings of the smallest numbers."""

_long_number = struct.Struct(">Bq").pack
_text_header = struct.Struct(">BI").pack
_array_header = struct.Struct(">BH").pack


def pack(*values: Packable) -> bytes:
    """Encode the values as MessagePack, one after another, to be unpacked as several results.

    The constant numbers of a lock are sent packed: each argument of a script, and each conversion from text, costs the
    server more than all of them together cost in one piece.
    """
    return b"".join(map(_pack, values))


def _pack(value: Packable) -> bytes:
    if isinstance(value, int):
        return SMALL[value] if 0 <= value < 0x80 else _long_number(0xD3, value)  # noqa: PLR2004
    if isinstance(value, str):
        text = value.encode()
        return _text_header(0xDB, len(text)) + text
    return _array_header(0xDC, len(value)) + b"".join(map(_pack, value))
